"""The snapshot of a broker group's metadata: its fields, and their encoding as CBOR.

`mq.broker.state.metadata` fills and restores it. Equal states give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import cbor2
import msgspec

from mq.broker.state.commands import DataVersion, GroupConfig, OffsetRow, TopicConfig, offset_pairs
from mq.broker.state.nested_tables import Rows, in_order
from mq.broker.state.pop_checkpoints import NUMBER_BYTES_MAX
from mq.broker.state.table import SnapshotDamaged
from mq.protocol.numbers import QueueOffset
from raftlog.safe_cbor import decode_safe

SNAPSHOT_FORMAT = 1
_CBOR_ARRAY, _CBOR_MAP = 0x80, 0xA0
_ROWS_PER_STEP = 50
"""Rows encoded in one step: a millisecond, in which no other thread runs."""

LockRows = list[tuple[str, str, list[tuple[int, str]]]]
"""Encoded locks: group, topic, and queue ids with the client that holds them."""


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """The metadata as sorted rows. ``parts`` are the tables with modules of their own, by name."""

    format: int
    topics: list[TopicConfig]
    groups: list[GroupConfig]
    consumer_offsets: Sequence[OffsetRow]
    data_version: DataVersion
    offset_resets: Sequence[OffsetRow] = []
    queue_locks: LockRows = []
    delay_offsets: dict[int, QueueOffset] = msgspec.field(default_factory=dict)
    replicas: dict[str, str] = {}
    forbidden: list[tuple[str, str]] = []
    parts: dict[str, Any] = {}
    topic_identities: list[tuple[str, str]] = []


def encode_snapshot(state: Snapshot) -> bytes:
    """Encode a snapshot as CBOR."""
    return b"".join(_encode(state))


def decode_snapshot(body: bytes) -> Snapshot:
    """Decode a snapshot. Raises ValueError or msgspec.ValidationError, SnapshotDamaged for another format."""
    fields = decode_safe(body, number_bytes_max=NUMBER_BYTES_MAX, any_key=True)
    _check_format(fields)
    return msgspec.convert(fields, Snapshot)


def _check_format(fields: object) -> None:
    """Raise SnapshotDamaged if a snapshot has another format. Checked before its other fields, which may differ."""
    version = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(version, int) and version != SNAPSHOT_FORMAT:
        raise SnapshotDamaged(f"the metadata has format version {version}, this version understands {SNAPSHOT_FORMAT}")


def _encode(state: Snapshot) -> Iterator[bytes]:
    """Yield a snapshot as CBOR, in pieces.

    No other thread runs while a piece is encoded, so tables are divided: ten thousand groups take a third of a second.
    """
    yield _cbor_head(_CBOR_MAP, len(state.__struct_fields__))
    for name in state.__struct_fields__:
        yield cbor2.dumps(name)
        value = getattr(state, name)
        if name == "parts":
            yield _cbor_head(_CBOR_MAP, len(value))
            for part, table in value.items():
                yield cbor2.dumps(part)
                yield from _encoded_value(table)
        else:
            yield from _encoded_value(value)


def _encoded_value(value: object) -> Iterator[bytes]:
    if isinstance(value, list | Rows):
        yield _cbor_head(_CBOR_ARRAY, len(value))
        for at in range(0, len(value), _ROWS_PER_STEP):
            rows = msgspec.to_builtins(value[at : at + _ROWS_PER_STEP], builtin_types=(bytes,))
            yield b"".join(map(cbor2.dumps, rows))
    else:
        yield cbor2.dumps(msgspec.to_builtins(value, builtin_types=(bytes,)))


def _cbor_head(kind: int, count: int) -> bytes:
    """Return the head of an array or a map with ``count`` items, in the shortest form, as `cbor2` writes it."""
    if count < 24:
        return bytes((kind | count,))
    for width, mark in ((1, 24), (2, 25), (4, 26)):
        if count < 1 << 8 * width:
            return bytes((kind | mark,)) + count.to_bytes(width, "big")
    raise AssertionError(f"the table has {count} rows; maximum: 2**32 - 1")


def offset_rows(tables: Mapping[tuple[str, str], dict[int, QueueOffset]]) -> Sequence[OffsetRow]:
    """Return the rows of a table of offsets, sorted. Each is built when it is encoded."""
    return Rows(list(in_order(tables)), lambda key: (*key, list(chain.from_iterable(sorted(tables[key].items())))))


def offset_table(rows: Sequence[OffsetRow]) -> dict[tuple[str, str], dict[int, QueueOffset]]:
    """Return the table of offsets that these rows encode. Raises CommandInvalid if they are damaged."""
    return {(group, topic): dict(offset_pairs(group, topic, row)) for group, topic, row in rows}
