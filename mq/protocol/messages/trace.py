"""Encodes and decodes the trace records of producers and consumers, in the format of Java's client.

A trace message contains many records, each a kind and fields in a fixed order. A missing text is written as ``null``,
so a text of these four letters is read as missing. Separators of records and fields cannot occur in a text; they are
replaced by a blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from mq.protocol.names import TRACE_TOPIC

__all__ = [
    "TRACE_BODY_BYTES_MAX",
    "TRACE_GROUP",
    "TRACE_TOPIC",
    "ContextCode",
    "HandlingBegun",
    "HandlingEnded",
    "MessageKind",
    "MessageTrace",
    "Recalled",
    "SendTrace",
    "TraceRecord",
    "TracedHandling",
    "TransactionEnded",
    "build_trace",
    "decode_trace",
    "encode_trace",
    "trace_messages",
]

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
TRACE_BODY_BYTES_MAX: Final = 118_000
"""A trace message is full above this size; one more record may exceed it."""
KEYS_BYTES_MAX: Final = 16_000

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_SEPARATORS: Final = str.maketrans({_FIELD: " ", _RECORD: " "})
_NULL: Final = "null"


class MessageKind(IntEnum):
    """The type of a sent message."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(IntEnum):
    """The result of a consumer's handling of a message."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    NULL = 3
    FAILED = 4


class SendTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A producer sent a message (``Pub``). Blanks separate the ``keys``; ``kind`` is a `MessageKind`, or a newer
    number.
    """

    timestamp_ms: int
    region: str | None = None
    group: str = ""
    topic: str = ""
    message_id: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    body_bytes: int = 0
    cost_ms: int = 0
    kind: int = MessageKind.NORMAL
    offset_message_id: str | None = None
    success: bool = True
    client_host: str | None = None


class HandlingBegun(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer began to handle a message (``SubBefore``). The record of its end has the same ``request_id``."""

    timestamp_ms: int
    region: str | None = None
    group: str = ""
    request_id: str = ""
    message_id: str = ""
    retry_times: int = 0
    keys: str | None = None
    client_host: str | None = None


class HandlingEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer finished handling a message (``SubAfter``). Old clients do not write the last three fields."""

    request_id: str = ""
    message_id: str = ""
    cost_ms: int = 0
    success: bool = True
    keys: str | None = None
    context_code: int = ContextCode.SUCCESS
    timestamp_ms: int = 0
    group: str = ""


class TransactionEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A producer committed or rolled back a transaction (``EndTransaction``).

    ``state`` is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW; ``from_check`` says that it follows a check-back.
    """

    timestamp_ms: int
    region: str | None = None
    group: str = ""
    topic: str = ""
    message_id: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    kind: int = MessageKind.COMMIT
    transaction_id: str | None = None
    state: str = "UNKNOW"
    from_check: bool = False


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A producer recalled a delayed message (``Recall``)."""

    timestamp_ms: int
    region: str | None = None
    group: str = ""
    topic: str = ""
    message_id: str = ""
    success: bool = True


TraceRecord = SendTrace | HandlingBegun | HandlingEnded | TransactionEnded | Recalled


def encode_trace(record: TraceRecord) -> str:
    """Encode one record with its separator. An unknown client host is omitted."""
    names = record.__struct_fields__
    values = [getattr(record, name) for name in names]
    if names[-1] == "client_host" and values[-1] is None:
        values.pop()
    return _FIELD.join([_FORMATS[type(record)][0], *map(_field_text, values)]) + _RECORD


def decode_trace(text: str) -> tuple[list[TraceRecord], int]:
    """Decode the records of a trace message. Returns them and the number of invalid pieces."""
    records: list[TraceRecord] = []
    unreadable = 0
    for piece in text.split(_RECORD):
        if not piece:
            continue
        fields = piece.split(_FIELD)
        try:
            records.append(_record(fields))
        except (ValueError, IndexError):
            unreadable += 1
    return records, unreadable


def _record(fields: list[str]) -> TraceRecord:
    """Decode the fields of one trace record. Raises ValueError for an invalid record."""
    kind = _KINDS.get(fields[0])
    if kind is None:
        raise ValueError(f"{fields[0][:40]!r} is not a kind of trace record")
    (word, least), names, texts = _FORMATS[kind], kind.__struct_fields__, fields[1:]
    if kind is SendTrace and len(texts) == least:
        texts.insert(names.index("offset_message_id"), _NULL)  # old clients have none
    if len(texts) < least:
        raise ValueError(f"a trace record {word} has {len(texts)} fields, it needs {least}")
    values = {name: _READ.get(name, _text)(text) for name, text in zip(names, texts, strict=False)}
    return msgspec.convert(values, kind)


def _field_text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    # For a `StrEnum` or `IntEnum` the value, whatever its text is.
    return value.translate(_SEPARATORS) if isinstance(value, str) else str(int(value))  # type: ignore[call-overload]


def _text(field: str) -> str | None:
    return None if field == _NULL else field


def _required_text(field: str) -> str:
    return _text(field) or ""


def _boolean(field: str) -> bool:
    return field.lower() == "true"


_FORMATS: Final[dict[type[TraceRecord], tuple[str, int]]] = {
    SendTrace: ("Pub", 12),
    HandlingBegun: ("SubBefore", 7),
    HandlingEnded: ("SubAfter", 5),
    TransactionEnded: ("EndTransaction", 12),
    Recalled: ("Recall", 6),
}
"""The word by which records of a kind begin, and how many fields all clients write; in the order of the class."""
_KINDS: Final = {word: kind for kind, (word, _) in _FORMATS.items()}
_READ: Final[dict[str, Callable[[str], object]]] = {
    **dict.fromkeys(("timestamp_ms", "body_bytes", "cost_ms", "kind", "retry_times", "context_code"), int),
    **dict.fromkeys(("group", "topic", "message_id", "request_id"), _required_text),
    **dict.fromkeys(("success", "from_check"), _boolean),
    "state": lambda field: _text(field) or "UNKNOW",
}
"""The functions that read fields; all other fields are optional texts."""


# -- messages ----------------------------------------------------------------------------------------------------------


class _TraceMessage(NamedTuple):
    """A message to the trace topic."""

    keys: Sequence[str]
    body: bytes
    records: int


def trace_messages(records: Iterable[TraceRecord]) -> Iterator[_TraceMessage]:
    """Pack trace records into messages that can be found by the ids and keys of the messages they describe.

    If there are too many keys for one message, some are omitted; ids never are.
    """
    texts: list[str] = []
    keys: dict[str, None] = {}
    body_bytes = keys_bytes = 0
    for record in records:
        text = encode_trace(record)
        nbytes = len(text.encode("utf-8", "replace"))
        message_keys = _split(record.message_id)
        key_bytes = sum(_key_bytes(each) for each in message_keys if each not in keys)
        if texts and (body_bytes >= TRACE_BODY_BYTES_MAX or keys_bytes + key_bytes > KEYS_BYTES_MAX):
            yield _message(texts, keys)
            texts, keys, body_bytes, keys_bytes = [], {}, 0, 0
        texts.append(text)
        body_bytes += nbytes
        if isinstance(record, SendTrace | HandlingBegun | HandlingEnded | TransactionEnded) and record.keys:
            message_keys += _split(record.keys)
        for key in message_keys:
            if key not in keys and keys_bytes + _key_bytes(key) <= KEYS_BYTES_MAX:
                keys[key] = None
                keys_bytes += _key_bytes(key)
    if texts:
        yield _message(texts, keys)


def _message(texts: list[str], keys: Iterable[str]) -> _TraceMessage:
    return _TraceMessage(tuple(keys), "".join(texts).encode("utf-8", "replace"), len(texts))


def _split(text: str) -> list[str]:
    return text.translate(_SEPARATORS).encode("utf-8", "replace").decode().split()


def _key_bytes(key: str) -> int:
    return len(key.encode()) + 1


# -- traces ------------------------------------------------------------------------------------------------------------


class TracedHandling(msgspec.Struct, frozen=True, kw_only=True):
    """The handling of a message by a consumer. ``ended`` is None if there is no record of its end."""

    begun: HandlingBegun
    ended: HandlingEnded | None


class MessageTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded events of a message, in chronological order."""

    message_id: str
    sent: tuple[SendTrace, ...] = ()
    handled: tuple[TracedHandling, ...] = ()
    transactions: tuple[TransactionEnded, ...] = ()
    recalled: tuple[Recalled, ...] = ()
    unreadable: int = 0
    """Invalid pieces of trace messages."""

    @property
    def found(self) -> bool:
        """Whether there is any trace record of the message."""
        return bool(self.sent or self.handled or self.transactions or self.recalled)


def build_trace(message_id: str, records: Iterable[TraceRecord], unreadable: int = 0) -> MessageTrace:
    """Build the trace of one message from the records of many messages. Duplicate records are ignored."""
    of_it = [each for each in dict.fromkeys(records) if message_id in each.message_id.split(",")]
    ends = {each.request_id: each for each in of_it if isinstance(each, HandlingEnded)}
    starts = [each for each in of_it if isinstance(each, HandlingBegun)]
    request_ids = {each.request_id for each in starts}
    # A consumer that was cut off may have recorded only the end.
    starts += [
        HandlingBegun(
            timestamp_ms=max(each.timestamp_ms - each.cost_ms, 0),
            group=each.group,
            request_id=request_id,
            message_id=message_id,
            keys=each.keys,
        )
        for request_id, each in ends.items()
        if request_id not in request_ids
    ]
    handlings = [TracedHandling(begun=each, ended=ends.get(each.request_id)) for each in starts]
    return MessageTrace(
        message_id=message_id,
        sent=tuple(sorted((each for each in of_it if isinstance(each, SendTrace)), key=_time)),
        handled=tuple(sorted(handlings, key=lambda each: each.begun.timestamp_ms)),
        transactions=tuple(sorted((each for each in of_it if isinstance(each, TransactionEnded)), key=_time)),
        recalled=tuple(sorted((each for each in of_it if isinstance(each, Recalled)), key=_time)),
        unreadable=unreadable,
    )


def _time(record: SendTrace | TransactionEnded | Recalled) -> int:
    return record.timestamp_ms
