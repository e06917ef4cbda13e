"""Turns rows of a data frame into messages: which columns a sink accepts, and how it uses each.

Needs pyarrow only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from mq.protocol import properties as props
from mq.protocol.messages.compression import COMPRESSED, LZ4, ZLIB, ZSTD
from spark.errors import RowInvalid
from spark.numbering import Destination
from spark.option_table import nearest
from spark.options import OptionInvalid

Codec = Literal["none", "zlib", "lz4", "zstd"]

_TEXT: Final = ("string",)
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": _TEXT,
    "broker_name": _TEXT,
    "queue_id": _INTEGERS,
    "keys": _TEXT,
    "tags": _TEXT,
    "properties": ("map<string,string>",),
}
"""The columns that a sink accepts, with Spark's names for their types."""
_ALIASES: Final = {"key": "keys", "tag": "tags", "value": "body"}

LEFT_OUT: Final = props.RESERVED - {props.KEYS, props.TAGS} | {props.PRODUCER_ID, props.SEQUENCE}
"""Properties that belong to another message: to the one that was read, if its properties are written again."""

_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">H")
OVERHEAD_BYTES: Final = _HEAD.size + _LENGTH.size
"""Bytes of a message in a batch besides its body and properties."""
_PROPERTIES_BYTES_MAX: Final = 29 * 1024
_CODEC_FLAGS: Final = {"lz4": LZ4, "zstd": ZSTD, "zlib": ZLIB}
COMPRESS_BYTES_MIN: Final = 4096


class Message(NamedTuple):
    """One row to send, as a message. ``properties`` are encoded."""

    destination: Destination
    body: bytes
    properties: bytes


class SinkColumns(NamedTuple):
    """The positions of a sink's columns in its rows, and the topic of rows without one."""

    topic_option: str | None
    at: dict[str, int]


def sink_columns(fields: Sequence[tuple[str, str]], topic: str | None) -> SinkColumns:
    """Find the sink's columns in a schema of names and Spark's types. ``topic`` is the option of that name.

    Raises:
        OptionInvalid: an unknown column, one of another type, a duplicate one, or none for the body or topic.
    """
    at: dict[str, int] = {}
    for number, (name, kind) in enumerate(fields):
        column = _ALIASES.get(name, name)
        if column not in COLUMNS:
            raise OptionInvalid(
                f"the sink takes no column {name!r}; it takes {', '.join(COLUMNS)}: select only these"
                f"{nearest(name, [*COLUMNS, *_ALIASES])}"
            )
        if kind not in COLUMNS[column]:
            raise OptionInvalid(f"column {name} of the sink is {' or '.join(COLUMNS[column])}, not {kind}")
        if column in at:
            raise OptionInvalid(f"columns {fields[at[column]][0]} and {name} are the same column of the sink")
        at[column] = number
    if "body" not in at:
        raise OptionInvalid("the sink needs a column body, binary or string")
    if "topic" not in at and topic is None:
        raise OptionInvalid("the sink needs the option topic, or a column topic")
    return SinkColumns(topic, at)


def messages_of(batch: pa.RecordBatch, columns: SinkColumns) -> Iterator[Message]:
    """Yield the rows of a record batch as messages. Raises RowInvalid at the first bad row."""
    nothing = [None] * batch.num_rows
    cells = {name: batch.column(number).to_pylist() for name, number in columns.at.items() if name != "body"}
    bodies = _binary(batch.column(columns.at["body"])).to_pylist()
    where = [cells.get(name, nothing) for name in ("topic", "broker_name", "queue_id")]
    what = [cells.get(name, nothing) for name in ("keys", "tags", "properties")]
    plain = all(one is nothing for one in what)
    destinations: dict[tuple[str | None, str | None, int | None], Destination] = {}
    for number, (body, place) in enumerate(zip(bodies, zip(*where, strict=True), strict=True)):
        if not body:
            raise RowInvalid(number, "its body is null" if body is None else "its body is empty")
        if (destination := destinations.get(place)) is None:
            destination = destinations[place] = _destination(number, place, columns.topic_option)
        properties = b"" if plain else _properties(number, *(one[number] for one in what))
        yield Message(destination, body, properties)


def encode_messages(messages: Sequence[Message], codec: Codec) -> tuple[int, bytes]:
    """Return the system flag and the body of a SEND_BATCH_MESSAGE request with these messages.

    The flag applies to all messages, so all bodies of a batch are compressed or none: all, if they average 4 KiB or
    more and become smaller.
    """
    flag = 0
    bodies = [message.body for message in messages]
    nbytes = sum(map(len, bodies))
    if codec != "none" and nbytes >= COMPRESS_BYTES_MIN * len(bodies):
        deflated_bodies = [_deflate(codec, body) for body in bodies]
        if sum(map(len, deflated_bodies)) < nbytes:
            flag, bodies = COMPRESSED | _CODEC_FLAGS[codec], deflated_bodies
    parts: list[bytes] = []
    for body, (_, _, properties) in zip(bodies, messages, strict=True):
        size = OVERHEAD_BYTES + len(body) + len(properties)
        parts += (_HEAD.pack(size, 0, 0, 0, len(body)), body, _LENGTH.pack(len(properties)), properties)
    return flag, b"".join(parts)


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _destination(
    number: int, place: tuple[str | None, str | None, int | None], topic_option: str | None
) -> Destination:
    topic, broker_name, queue_id = place
    topic = topic or topic_option
    if topic is None:
        raise RowInvalid(number, "it has no topic, and option topic is not set")
    if queue_id is not None and queue_id < 0:
        raise RowInvalid(number, f"its queue_id is {queue_id}; allowed: 0 or more")
    return Destination(topic, broker_name, queue_id)


def _properties(number: int, keys: str | None, tags: str | None, pairs: list[tuple[str, str | None]] | None) -> bytes:
    properties: dict[str, str] = {}
    for name, value in pairs or ():
        if name in LEFT_OUT or (props.is_reserved(name) and name not in props.RESERVED) or not value:
            continue
        properties[name] = value
    if keys:
        properties[props.KEYS] = keys
    if tags:
        if "||" in tags:
            raise RowInvalid(number, f"its tag {tags!r} is a filter for several tags")
        properties[props.TAGS] = tags
    for name, value in properties.items():
        if not name or any(letter in text for text in (name, value) for letter in "\x01\x02"):
            raise RowInvalid(number, f"the property {name!r} has no name, or contains a separator, 0x01 or 0x02")
    data = props.encode(properties).encode()
    if len(data) > _PROPERTIES_BYTES_MAX:
        raise RowInvalid(number, f"its properties have {len(data)} bytes; {_PROPERTIES_BYTES_MAX} are allowed")
    return data


def _deflate(codec: Codec, body: bytes) -> bytes:
    match codec:
        case "lz4":
            import lz4.frame

            return bytes(lz4.frame.compress(body))
        case "zstd":
            import zstandard

            return zstandard.ZstdCompressor().compress(body)
        case _:
            return zlib.compress(body, 5)
