"""Shows a message to people: its place, its properties, and its body as text, JSON or bytes. Pure."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from mq.client.message import ReceivedMessage
from mq.console.views.links import link
from mq.console.views.text import number, visible
from mq.inspection.formatting import time_of

BEGIN_CHARACTERS: Final = 120
DEPTH_MAX: Final = 50
_LINE: Final = 16


class BodyForm(enum.Enum):
    """The form in which a body is shown. AUTO: as JSON if it is JSON, else as text if it is text, else as bytes."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"

    @classmethod
    def from_name(cls, text: str) -> Self:
        """Return the form with this name; AUTO for an unknown name."""
        try:
            return cls(text)
        except ValueError:
            return cls("auto")


@dataclass(frozen=True, slots=True)
class Body:
    """A body as text. ``note`` says why it is not in the requested form; ``cut`` is the number of bytes not shown."""

    form: str
    text: str
    size: str
    note: str
    cut: int


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A row of a list of messages."""

    stored: str
    place: str
    tag: str
    keys: str
    size: str
    begin: str
    link: str


def message_rows(messages: Sequence[ReceivedMessage], *, hide_bodies: bool) -> list[MessageRow]:
    """Return a row for each message, in their order."""
    return [message_row(each, hide_bodies=hide_bodies) for each in messages]


def message_row(message: ReceivedMessage, *, hide_bodies: bool) -> MessageRow:
    """Return the row of one message in a list."""
    return MessageRow(
        stored=time_of(message.record.store_timestamp_ms) or "-",
        place=f"{message.queue.broker_name}/{message.queue.queue_id} {message.queue_offset:,}",
        tag=message.tags or "",
        keys=" ".join(message.keys),
        size=f"{len(message.raw_body):,} B",
        begin="" if hide_bodies else begin_of(message.raw_body),
        link=message_link(message),
    )


def message_link(message: ReceivedMessage) -> str:
    """Return the address of a message's page."""
    queue = message.queue
    return link(
        "/message",
        topic=message.record.topic,
        broker=queue.broker_name,
        queue=str(queue.queue_id),
        offset=str(message.queue_offset),
    )


def begin_of(body: bytes) -> str:
    """Return the beginning of a body on one line, or its first bytes if it is not text."""
    part = body[: 4 * BEGIN_CHARACTERS]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if error.start < len(part) - 3 or len(part) == len(body):  # not just a character that was cut off
            return part[:32].hex(" ") + (" ..." if len(body) > 32 else "")
        text = part[: error.start].decode()
    text = visible(text[:BEGIN_CHARACTERS])
    return text + (" ..." if len(body) > len(text.encode("utf-8", "surrogatepass")) else "")


def record_of(message: ReceivedMessage) -> list[tuple[str, str]]:
    """List what the broker stored about a message, as name and value."""
    record = message.record
    return [
        ("message id", message.message_id),
        ("offset message id", record.offset_message_id),
        ("topic", message.topic),
        ("queue", f"{message.queue.broker_name}/{message.queue.queue_id}"),
        ("offset", number(record.queue_offset)),
        ("tag", message.tags or "-"),
        ("keys", " ".join(message.keys) or "-"),
        ("stored", time_of(record.store_timestamp_ms) or "-"),
        ("sent", time_of(record.born_timestamp_ms) or "-"),
        ("sender", f"{record.born_host.ip}:{record.born_host.port}"),
        ("broker", f"{record.store_host.ip}:{record.store_host.port}"),
        ("redelivered", number(record.reconsume_times)),
    ]


def property_rows(message: ReceivedMessage) -> list[tuple[str, str, bool]]:
    """Return name and value of each property, and whether the application set it."""
    own = message.user_properties
    return [(name, value, name in own) for name, value in sorted(message.properties.items())]


def body_of(message: ReceivedMessage, form: BodyForm, bytes_max: int | None) -> Body:
    """Decompress a body and return it in the given form, at most ``bytes_max`` bytes of it."""
    whole = message.raw_body
    body = whole if bytes_max is None else whole[:bytes_max]
    cut = len(whole) - len(body)
    size = f"{len(whole):,} bytes"
    text = _text(body, is_cut=bool(cut))
    if form is BodyForm.HEX:
        return Body("hex", _hex(body), size, "", cut)
    if form in (BodyForm.AUTO, BodyForm.JSON) and not cut and text is not None:
        pretty = _json(text)
        if pretty is not None and (form is BodyForm.JSON or pretty[0] in "{["):
            return Body("json", pretty, size, "", 0)
    if text is None:
        note = "" if form is BodyForm.AUTO else "it is not UTF-8, so its bytes are shown"
        return Body("hex", _hex(body), size, note, cut)
    note = ""
    if form is BodyForm.JSON:
        note = "only a part is shown, so it is shown as text" if cut else "it is not JSON, so it is shown as text"
    return Body("text", lines(text), size, note, cut)


def lines(text: str) -> str:
    """Return a text with its line feeds and tabs; other invisible characters become escapes."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.replace("\r\n", "\n").split("\n"))


def _text(body: bytes, *, is_cut: bool) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(body) - 3:
            return body[: error.start].decode()
        return None


def _json(text: str) -> str | None:
    """Indent JSON; its names and numbers stay as they are written, which a dict or a float would change."""
    try:
        value = json.loads(text, parse_float=_DecimalText, parse_constant=_refuse, object_pairs_hook=_Pairs)
        return lines(_indent(value, 0))
    except (ValueError, RecursionError):
        return None


class _DecimalText(str):
    """A number with a point or an exponent."""

    __slots__ = ()


class _Pairs(list[tuple[str, object]]):
    """An object; a name may be there twice."""


def _indent(value: object, depth: int) -> str:
    """Raises ValueError if it is nested too deeply to be read."""
    if depth > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} levels")
    if isinstance(value, _DecimalText):
        return str(value)
    if isinstance(value, _Pairs):
        inner = [f"{json.dumps(name, ensure_ascii=False)}: {_indent(each, depth + 1)}" for name, each in value]
    elif isinstance(value, list):
        inner = [_indent(each, depth + 1) for each in value]
    else:
        return json.dumps(value, ensure_ascii=False)
    begin, end = "{}" if isinstance(value, _Pairs) else "[]"
    if not inner:
        return begin + end
    space = "  " * (depth + 1)
    return begin + "\n" + ",\n".join(space + each for each in inner) + "\n" + "  " * depth + end


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _hex(body: bytes) -> str:
    rows = []
    for at in range(0, len(body), _LINE):
        part = body[at : at + _LINE]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        rows.append(f"{at:08x}  {part.hex(' '):<{3 * _LINE - 1}}  {plain}")
    return "\n".join(rows)
