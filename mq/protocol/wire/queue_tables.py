"""Encodes and decodes tables whose keys are queues.

Java writes such a table with objects as keys, ``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``, which is not JSON. Go
clients accept only this form, and only if it is compact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from mq.protocol.errors import BodyError
from mq.protocol.wire import fastjson
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.json_body import Body, decode_as

_LONG: Final = range(-(2**63), 2**63)
_encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder(order="sorted").encode


class QueueRef(msgspec.Struct, rename=wire(), frozen=True, order=True):
    """A queue of a topic in one broker group."""

    topic: str
    broker_name: str
    queue_id: I32


class OffsetRow(msgspec.Struct, rename=wire(), frozen=True):
    """A queue and an offset, in the format for C++ clients."""

    topic: str
    broker_name: str
    queue_id: I32
    offset: I64


class _OffsetRows(Body, rename=wire(rows="offsetTable")):
    rows: list[OffsetRow]


def queue_row(queue: QueueRef, value: bytes) -> bytes:
    """Encode one row of a queue table."""
    return _encode(queue) + b":" + value


def queue_table(rows: Iterable[tuple[QueueRef, bytes]]) -> bytes:
    """Encode a queue table from rows of `queue_row`, whose values are JSON texts."""
    return b"{" + b",".join([queue_row(key, value) for key, value in rows]) + b"}"


def offset_table_body(offsets: Mapping[QueueRef, int], *, as_list: bool = False) -> bytes:
    """Encode the body of requests 220 and 222: offsets of queues, as a list for C++ clients."""
    if as_list:
        rows = [OffsetRow(ref.topic, ref.broker_name, ref.queue_id, offset) for ref, offset in sorted(offsets.items())]
        return _OffsetRows(rows).encode()
    table = queue_table((ref, b"%d" % offset) for ref, offset in sorted(offsets.items()))
    return b'{"offsetTable":' + table + b"}"


def read_queue_table(value: object) -> dict[QueueRef, Any]:
    """Decode the queues and values of a table that `mq.protocol.wire.fastjson` has parsed. Raises BodyError."""
    if isinstance(value, list):  # the format of C++ clients
        try:
            rows = msgspec.convert(value, list[OffsetRow], strict=False)
        except msgspec.ValidationError as error:
            raise BodyError(f"a table of queues: {error}") from error
        return {QueueRef(row.topic, row.broker_name, row.queue_id): row.offset for row in rows}
    if not isinstance(value, dict):
        raise BodyError(f"the table of queues is a {type(value).__name__}, not an object")
    return {decode_as(QueueRef, key.encode()): each for key, each in value.items()}


def read_offset_rows(body: bytes | memoryview) -> dict[str, Any]:
    """Decode the rows of an offset table with text keys; returns none if the body has no table. Raises BodyError."""
    value = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    rows = value.get("offsetTable") if isinstance(value, dict) else None
    return rows if isinstance(rows, dict) else {}


def read_offset_table(body: bytes | memoryview) -> dict[QueueRef, int]:
    """Decode an offset table. Skips invalid offsets. Raises BodyError."""
    value = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    table = read_queue_table(value.get("offsetTable") if isinstance(value, dict) else None)
    return {ref: offset for ref, offset in table.items() if isinstance(offset, int) and offset >= 0}


def read_member_offsets(body: bytes | memoryview) -> dict[QueueRef, int]:
    """Decode the offsets in a consumer's response to request code 221. Skips invalid offsets. Raises BodyError."""
    value = fastjson.parse(body) if body else {}
    table = read_queue_table(value.get("messageQueueTable") or {}) if isinstance(value, dict) else {}
    return {ref: offset for ref, offset in table.items() if isinstance(offset, int) and offset in _LONG}


def read_offsets_file(data: bytes) -> dict[QueueRef, int]:
    """Decode a file with only an offset table. Unlike `read_offset_table`, raises BodyError for any bad offset."""
    value = fastjson.parse(data, values_max=fastjson.TRUSTED_VALUES_MAX)
    if not isinstance(value, dict) or "offsetTable" not in value:
        raise BodyError("the table of offsets is missing")
    table = read_queue_table(value["offsetTable"])
    for ref, offset in table.items():
        if not isinstance(offset, int):
            raise BodyError(f"queue {ref.broker_name}/{ref.queue_id} of {ref.topic} has the offset {offset!r}")
    return table


T = TypeVar("T")


def decode_queue_table(body: bytes | memoryview, kind: type[T]) -> dict[QueueRef, T]:
    """Decode the values of a body whose field ``offsetTable`` has queues as keys. Raises BodyError."""
    document = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    if not isinstance(document, dict):
        raise BodyError(f"body of {len(body)} bytes is not a table of queues")
    try:
        return {
            ref: msgspec.convert(value, kind, strict=False)
            for ref, value in read_queue_table(document.get("offsetTable", {})).items()
        }
    except msgspec.ValidationError as error:
        raise BodyError(f"body of {len(body)} bytes is not a table of queues: {error}") from error
