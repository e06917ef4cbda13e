"""Records as columns: what the broker stored, cell by cell, by the fast path and record by record."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.protocol import properties as props
from mq.protocol.messages.compression import CODECS, deflate, inflate
from mq.protocol.messages.records import decode_record, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from spark import columns
from spark.columns import Source, decode_batches
from spark.errors import AnswerDamaged, BodyUnreadable
from spark.schema import COLUMN_NAMES

ALL = COLUMN_NAMES
SOURCE = Source("Orders", "broker-a")

steady = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

V4, V6 = encode_host("10.0.0.1", 10911), encode_host("2001:db8::1", 65535)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "colour"]) | TEXT
PIECES = st.builds("{}\x01{}".format, NAMES, TEXT) | TEXT
"""A property, or what is none: without a value, without a name, without a separator."""
TEXTS = st.lists(PIECES, max_size=5).map("\x02".join) | st.lists(PIECES, max_size=5).map(
    lambda pieces: "".join(f"{piece}\x02" for piece in pieces)
)


@st.composite
def records(draw: st.DrawFn, *, uniform: bool = False) -> bytes:
    body = draw(st.binary(max_size=40))
    flag, body = draw(st.sampled_from([(0, body), *[deflate(codec, body * 20) for codec in CODECS]]))
    return encode_record(
        topic="Orders" if uniform else draw(st.sampled_from(["Orders", "T" * 127, "t" * 200])),
        queue_id=draw(I32),
        body=body,
        properties=draw(TEXTS),
        queue_offset=QueueOffset(draw(I64)),
        physical_offset=PhysicalOffset(draw(st.integers(0, 2**63 - 1))),
        born_timestamp_ms=draw(I64),
        born_host=V4 if uniform else draw(st.sampled_from([V4, V6])),
        store_timestamp_ms=draw(st.integers(0, 2**42)),
        store_host=V4 if uniform else draw(st.sampled_from([V4, V6])),
        flag=draw(I32),
        sys_flag=flag,
        reconsume_times=draw(I32),
    )


def timestamp(milliseconds: int) -> int | None:
    return milliseconds * 1000 if abs(milliseconds) <= (2**63 - 1) // 1000 else None


def expected(record: bytes) -> dict[str, Any]:
    """What a consumer of the SDK sees, by the SDK's own decoder."""
    stored = decode_record(memoryview(record))
    received = inflate(stored.sys_flag, stored.body, 2**20)
    hosts = {
        f"{end}_host": f"[{host.ip}]:{host.port}" if ":" in host.ip else f"{host.ip}:{host.port}"
        for end, host in (("born", stored.born_host), ("store", stored.store_host))
    }
    return {
        "topic": SOURCE.topic,
        "broker_name": SOURCE.broker_name,
        "queue_id": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "message_id": stored.properties.get("UNIQ_KEY") or stored.offset_message_id,
        "tags": stored.properties.get("TAGS"),
        "keys": stored.properties.get("KEYS"),
        "body": received,
        "properties": list(stored.properties.items()),
        "born_timestamp": timestamp(stored.born_timestamp_ms),
        "store_timestamp": timestamp(stored.store_timestamp_ms),
        "reconsume_times": stored.reconsume_times,
        "flag": stored.flag,
        "sys_flag": stored.sys_flag,
        "physical_offset": stored.physical_offset,
        **hosts,
    }


def rows_of(batches: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
        rows += pa.table(plain, names=batch.schema.names).to_pylist()
    return rows


def decoded(pieces: list[bytes], names: tuple[str, ...] = ALL, **options: Any) -> list[Any]:
    return list(decode_batches(b"".join(pieces), [len(piece) for piece in pieces], names, SOURCE, **options))


def record(body: bytes = b"body", **fields: Any) -> bytes:
    return encode_record(
        **{
            "topic": "Orders",
            "queue_id": 1,
            "body": body,
            "properties": "TAGS\x01A\x02",
            "queue_offset": 2,
            "physical_offset": 3,
            "born_timestamp_ms": 4,
            "born_host": V4,
            "store_timestamp_ms": 6,
            "store_host": V4,
            **fields,
        }
    )


@pytest.mark.slow
@steady
@given(st.lists(records(), max_size=6) | st.lists(records(uniform=True), max_size=6))
def test_columns_equal_the_messages_of_a_consumer(pieces: list[bytes]) -> None:
    assert rows_of(decoded(pieces)) == [expected(piece) for piece in pieces]


@steady
@given(st.lists(st.text("ab\x01\x02é", max_size=12), min_size=1, max_size=5))
def test_separators_may_be_anywhere(texts: list[str]) -> None:
    pieces = [record(properties=text) for text in texts]
    assert rows_of(decoded(pieces)) == [expected(piece) for piece in pieces]


@steady
@given(
    st.permutations(["TAGS", "KEYS", "UNIQ_KEY", "e"]),
    st.lists(st.tuples(*[st.text("xyz", min_size=1, max_size=3)] * 4), min_size=2, max_size=5),
    st.sampled_from(["", "\x02"]),
)
def test_records_of_one_producer_have_the_same_names(names: list[str], rows: list[tuple[str, ...]], end: str) -> None:
    texts = ["\x02".join(f"{name}\x01{value}" for name, value in zip(names, row, strict=True)) + end for row in rows]
    pieces = [record(properties=text) for text in texts]
    assert rows_of(decoded(pieces)) == [expected(piece) for piece in pieces]
    others = [*pieces, record(properties=f"other\x01v{end}")]
    assert rows_of(decoded(others)) == [expected(piece) for piece in others]


@steady
@given(st.lists(records(uniform=True), min_size=1, max_size=6), st.lists(st.sampled_from(ALL), min_size=1, unique=True))
def test_fast_path_and_reference_read_the_same_cells(pieces: list[bytes], names: list[str]) -> None:
    (batch, *_) = batches = decoded(pieces, tuple(names))

    assert batch.schema.names == names
    assert rows_of(batches) == [{name: expected(piece)[name] for name in names} for piece in pieces]


def without_body(piece: bytes) -> bytes:
    stored = decode_record(memoryview(piece))
    head = 88 + 12 * (":" in stored.born_host.ip) + 12 * (":" in stored.store_host.ip)
    assert piece[head : head + len(stored.body)] == stored.body
    return piece[:head] + piece[head + len(stored.body) :]


@pytest.mark.slow
@steady
@given(st.lists(records(), max_size=6) | st.lists(records(uniform=True), max_size=6))
def test_records_without_their_bodies_have_the_same_other_cells(pieces: list[bytes]) -> None:
    names = tuple(name for name in ALL if name != "body")
    rows = rows_of(decoded([without_body(piece) for piece in pieces], names, without_bodies=True))
    assert rows == [{name: expected(piece)[name] for name in names} for piece in pieces]


@pytest.mark.parametrize("is_cut", [True, False])
def test_decoder_refuses_unexpected_or_missing_bodies(is_cut: bool) -> None:
    piece = without_body(record()) if is_cut else record()
    with pytest.raises(AnswerDamaged):
        decoded([piece], ("queue_id",), without_bodies=not is_cut)


def test_records_of_one_layout_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "decode_row", None)

    (batch,) = decoded([record(b"a"), record(b"b", properties=props.encode({"UNIQ_KEY": "u", "KEYS": "k l"}))])

    assert batch.column("body").to_pylist() == [b"a", b"b"]
    assert batch.column("keys").to_pylist() == [None, "k l"]
    assert batch.column("tags").to_pylist() == ["A", None]
    assert batch.column("message_id").to_pylist() == ["0A00000100002A9F0000000000000003", "u"]


def test_invalid_utf_8_text_gets_replacement_characters() -> None:
    damaged = record(properties="name\x01vAlue\x02").replace(b"vAlue", b"v\xff\xfeue")

    (row,) = rows_of(decoded([damaged], ("properties", "queue_id")))

    assert row["properties"] == [("name", "v\ufffd\ufffdue")]


def test_last_of_equal_property_names_is_used() -> None:
    (row,) = rows_of(decoded([record(properties="a\x011\x02b\x012\x02a\x013\x02")], ("properties",)))

    assert row["properties"] == [("a", "3"), ("b", "2")]


@pytest.mark.parametrize("at", range(len(record())))
def test_flipped_bit_in_a_record_frame_is_detected(at: int) -> None:
    """Sizes, magic, lengths and the bits that say how long the hosts are; other bytes are for the entry's checksum."""
    good = record()
    bad = bytearray(good)
    bad[at] ^= 0x10
    structure = {*range(8), *range(84, 88), 92, 99, 100}
    if at not in structure and at != 39:
        assert len(decoded([bytes(bad), good])) == 1
        return
    with pytest.raises(AnswerDamaged):
        decoded([bytes(bad), good])


@pytest.mark.parametrize("sizes", [[], [10], [len(record()) - 1], [len(record()), 91], [len(record()) + 91, -91]])
def test_sizes_that_do_not_fit_the_bytes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(AnswerDamaged):
        list(decode_batches(record(), np.array(sizes, dtype=np.int64), ALL, SOURCE))


@pytest.mark.parametrize("flag", [0x1, 0x101, 0x201, 0x301, 0x401, 0x701])
def test_body_that_cannot_be_inflated_is_refused_or_kept(flag: int) -> None:
    bad = record(b"not compressed at all", sys_flag=flag)

    with pytest.raises(BodyUnreadable, match=r"topic 'Orders', queue broker-a:1, offset 2: .*onBadBody=keep"):
        decoded([record(), bad])
    rows = rows_of(decoded([record(), bad], keep_bad_bodies=True))
    assert [row["body"] for row in rows] == [b"body", b"not compressed at all"]


def test_inflated_bodies_are_bounded_in_each_batch() -> None:
    limits = columns.BodyLimits(bodies_bytes_max=1000)
    flag, small = deflate("zlib", b"x" * 600)

    batches = decoded([record(small, sys_flag=flag, queue_offset=number) for number in range(5)], limits=limits)

    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert [row["queue_offset"] for row in rows_of(batches)] == list(range(5))
    with pytest.raises(BodyUnreadable, match="more than 599"):
        decoded([record(small, sys_flag=flag)], limits=columns.BodyLimits(body_bytes_max=599))


def test_timestamps_equal_those_of_spark() -> None:
    (batch,) = decoded([record(store_timestamp_ms=1_700_000_000_123)], ("store_timestamp",))

    assert batch.column(0).to_pylist() == [dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=dt.UTC)]


def test_executors_import_nothing_but_numpy_and_pyarrow() -> None:
    strange = "{'msgspec', 'trio', 'anyio', 'lz4', 'zstandard', 'pyspark', 'pandas'}"
    program = f"import sys; import spark.columns; print(sorted(sys.modules.keys() & {strange}))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
