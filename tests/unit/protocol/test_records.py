"""Stored records: round trips over all layouts, the scan against the decoder, and damage."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.protocol import properties as props
from mq.protocol.hashes import tag_code
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import (
    FIXED,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    Host,
    RecordError,
    StoredMessage,
    check_place,
    check_records,
    decode_record,
    decode_records,
    encode_host,
    encode_message,
    encode_record,
    iter_sizes,
    latest_store_timestamp,
    record_size,
    scan_fixed,
    split_record,
    tag_code_of,
)
from mq.protocol.numbers import PhysicalOffset

steady = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.sampled_from([Host("10.0.0.1", 10911), Host("0.0.0.0", 0), Host("2001:db8::1", 65535), Host("::1", 1)])
TEXT = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=12)
TOPICS = st.sampled_from(["T", "T" * 127, "%RETRY%" + "g" * 121, "t" * 255])

RECORDS = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "queue_id": I32,
        "body": st.binary(max_size=300),
        "properties": st.dictionaries(st.sampled_from(["TAGS", "XTAGS", "KEYS"]) | TEXT, TEXT, max_size=4).map(
            props.encode
        ),
        "queue_offset": I64,
        "physical_offset": st.integers(0, 2**63 - 1),
        "born_timestamp_ms": I64,
        "born_host": HOSTS,
        "store_timestamp_ms": I64,
        "store_host": HOSTS,
        "flag": I32,
        "sys_flag": st.sampled_from([0, 1, 0x301, 4, 8, 12]),
        "reconsume_times": I32,
        "prepared_offset": I64,
    }
)


def encoded(fields: dict[str, Any]) -> bytes:
    hosts = {name: encode_host(*fields[name]) for name in ("born_host", "store_host")}
    return encode_record(**{**fields, **hosts})


def simple_record(body: bytes = b"body", **fields: Any) -> bytes:
    return encode_record(
        **{
            "topic": "T1",
            "queue_id": 1,
            "body": body,
            "properties": "TAGS\x01A\x02",
            "queue_offset": 2,
            "physical_offset": 3,
            "born_timestamp_ms": 4,
            "born_host": encode_host("127.0.0.1", 5),
            "store_timestamp_ms": 6,
            "store_host": encode_host("127.0.0.1", 7),
            **fields,
        }
    )


@steady
@given(st.lists(RECORDS, max_size=4))
def test_round_trip_and_scan(rows: list[dict[str, Any]]) -> None:
    pieces = [encoded(row) for row in rows]
    data = b"".join(pieces)

    records = decode_records(data)

    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        for name, value in row.items():
            if name == "properties":
                assert record.properties == props.decode(value)
            elif name == "sys_flag":
                assert record.sys_flag & ~0x30 == value
            else:
                assert getattr(record, name) == value, name
        where = parse_offset_message_id(record.offset_message_id)
        assert where == (*record.store_host, record.physical_offset)

    offsets = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
    assert list(iter_sizes(data)) == list(zip(offsets, map(len, pieces), strict=True))
    assert list(scan_fixed(memoryview(data))) == [
        (
            offset,
            record.size,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag,
            record.topic.encode(),
            tag_code(props.find(row["properties"], "TAGS") or ""),
        )
        for offset, record, row in zip(offsets, records, rows, strict=True)
    ]


@steady
@given(RECORDS, TOPICS, I32)
def test_copy_in_another_queue_is_otherwise_unchanged(fields: dict[str, Any], topic: str, queue_id: int) -> None:
    message = decode_record(memoryview(encoded(fields)))
    there = fields | {"topic": topic, "queue_id": queue_id, "properties": "TAGS\x01other\x02"}
    assert encode_message(message, topic, queue_id, "TAGS\x01other\x02") == encoded(there)


@steady
@given(RECORDS)
def test_parts_of_a_record_are_its_own_bytes(fields: dict[str, Any]) -> None:
    record = encoded(fields)
    raw, decoded = split_record(record), decode_record(memoryview(record))
    assert (raw.flag, raw.sys_flag, raw.reconsume_times) == (decoded.flag, decoded.sys_flag, decoded.reconsume_times)
    assert (raw.born_timestamp_ms, raw.prepared_offset) == (decoded.born_timestamp_ms, decoded.prepared_offset)
    assert (raw.born_host, raw.body) == (encode_host(*decoded.born_host), decoded.body)
    assert raw.properties.decode() == fields["properties"]
    [(*_, scanned)] = scan_fixed(record)
    assert tag_code_of(raw.properties) == scanned


def test_damaged_record_has_no_parts() -> None:
    record = simple_record(b"body")
    for damaged in (record.replace(b"body", b"bodx"), record[:-1], b""):
        with pytest.raises(RecordError):
            split_record(damaged)


def test_head_joined_with_its_parts_is_the_record() -> None:
    """Brokers build records so, one pack per record."""
    body, topic, text = b"hello", b"T1", b"TAGS\x01A\x02"
    host = encode_host("10.0.0.1", 10911)
    size = record_size(len(body), len(topic), len(text))
    head = HEAD.pack(size, MAGIC_V1, 0x3610A686, 1, 2, 3, 4, 0, 5, host, 6, host, 7, 8, len(body))
    record = head + body + bytes([len(topic)]) + topic + struct.pack(">h", len(text)) + text
    assert len(record) == size == FIXED + 5 + 2 + 7
    assert decode_record(memoryview(record)).body == body


def test_topic_of_128_bytes_uses_record_version_two() -> None:
    assert struct.unpack_from(">i", simple_record(topic="t" * 127), 4) == (MAGIC_V1,)
    assert struct.unpack_from(">i", simple_record(topic="t" * 128), 4) == (MAGIC_V2,)


def patched(record: bytes, at: int, value: int, form: str = ">i") -> bytes:
    data = bytearray(record)
    struct.pack_into(form, data, at, value)
    return bytes(data)


RECORD = simple_record()
BODY_END = HEAD.size + 4


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00", "1 bytes are left"),
        (RECORD[:-1], "are left"),
        (RECORD[: FIXED - 1], "are left"),
        (patched(RECORD, 0, 0), "size is 0"),
        (patched(RECORD, 0, -1), "size is -1"),
        (patched(RECORD, 0, 2**31 - 1), "size is 2147483647"),
        (patched(RECORD, 0, len(RECORD) - 1), "its properties do not end where"),
        (patched(RECORD, 4, -875286124), "magic number is 0xcbd43194"),
        (patched(RECORD, 4, 0), "magic number is 0x0"),
        (patched(RECORD, 84, -1), "a body of -1 bytes"),
        (patched(RECORD, 84, 2**31 - 1), "a body of 2147483647 bytes"),
        (patched(RECORD, 84, 10), "a topic of 65 bytes"),
        (patched(RECORD, 84, 14), "a body of 14 bytes"),
        (patched(RECORD, BODY_END, 255, ">B"), "a topic of 255 bytes"),
        (patched(RECORD, BODY_END + 3, -1, ">h"), "its properties do not end where"),
        (patched(RECORD, BODY_END + 3, 0, ">h"), "its properties do not end where"),
        (patched(RECORD, 36, 0x10), "bytes"),
        (patched(RECORD, 36, 0x30), "bytes"),
    ],
)
def test_damaged_record_layout_is_refused(data: bytes, reason: str) -> None:
    good = simple_record(b"first")
    for read in (decode_records, lambda each: list(scan_fixed(each)), lambda each: list(iter_sizes(each))):
        with pytest.raises(RecordError, match=reason) as caught:
            read(good + data)
        assert caught.value.offset == len(good)


def one_by_one(data: bytes) -> list[StoredMessage]:
    """What `decode_records` returns, by the function for one record of any layout."""
    records: list[StoredMessage] = []
    while (at := sum(record.size for record in records)) < len(data):
        records.append(decode_record(memoryview(data), offset=at))
    return records


def test_damaged_record_body_is_refused() -> None:
    damaged = patched(RECORD, HEAD.size, 0xFF, ">B")
    with pytest.raises(RecordError, match="checksum"):
        decode_records(damaged)
    assert decode_records(damaged, verify=False)[0].body == b"\xffody"


@steady
@given(st.data())
def test_damaged_records_are_refused_or_decoded_equally(data: st.DataObject) -> None:
    damaged = bytearray(RECORD * 2)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # one of the lengths, which small changes hardly reach
        at = data.draw(st.sampled_from((0, HEAD.size - 4))) + data.draw(st.sampled_from((0, len(RECORD))))
        near = st.integers(-len(RECORD) - FIXED, 2 * len(RECORD) + FIXED)
        length = data.draw(st.one_of(near, st.sampled_from((-(1 << 31), (1 << 31) - 1))))
        struct.pack_into(">i", damaged, at, length)
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    try:
        sizes = list(iter_sizes(bytes(damaged)))
    except RecordError as error:
        for scan in (latest_store_timestamp, lambda each: list(scan_fixed(each))):
            with pytest.raises(RecordError, match=f"^{re.escape(str(error))}$"):
                scan(bytes(damaged))
    else:
        assert [each[:2] for each in scan_fixed(bytes(damaged))] == sizes
    try:
        records = decode_records(bytes(damaged))
    except RecordError as error:
        with pytest.raises(RecordError, match=f"^{re.escape(str(error))}$"):
            one_by_one(bytes(damaged))
        return
    assert records == one_by_one(bytes(damaged))
    assert sum(record.size for record in records) == len(damaged)
    assert latest_store_timestamp(bytes(damaged)) == max([0, *(each.store_timestamp_ms for each in records)])
    scanned = [(each[2], each[3], each[4], each[5]) for each in scan_fixed(bytes(damaged))]
    assert scanned == [(each.queue_id, each.queue_offset, each.physical_offset, each.sys_flag) for each in records]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TAGS\x01A\x02", 65),
        ("TAGS\x01A", 65),
        ("K\x01v\x02TAGS\x01A", 65),
        ("K\x01v\x02TAGS\x01A\x02L\x01w", 65),
        ("MYTAGS\x01B\x02TAGS\x01A\x02", 65),
        ("MYTAGS\x01B\x02", 0),
        ("K\x01TAGS\x02", 0),
        ("TAGS\x01\x02", 0),
        ("TAGS\x01" + "A" * 1000 + "\x02", tag_code("A" * 1000)),
        ("TAGS\x01中文\x02", 646394),
    ],
)
def test_scan_returns_the_tag_code_of_a_record(text: str, code: int) -> None:
    assert [row[-1] for row in scan_fixed(simple_record(properties=text))] == [code]


def test_too_large_record_raises_assertion_error() -> None:
    with pytest.raises(AssertionError, match="properties of 32768 bytes"):
        simple_record(properties="x" * 32768)


@steady
@given(st.lists(RECORDS, max_size=4), st.data())
def test_record_check_and_scan_accept_the_same_bodies(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, 2**40))
    body = bytearray()
    for fields in rows:
        body += encoded(fields | {"physical_offset": position + len(body)})
    check_records(bytes(body), PhysicalOffset(position))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body))) :]
    try:
        for at, _, _, _, physical_offset, *_ in scan_fixed(bytes(body)):
            check_place(at, PhysicalOffset(position + at), physical_offset)
    except RecordError:
        with pytest.raises(RecordError):
            check_records(memoryview(body), PhysicalOffset(position))
    else:
        check_records(memoryview(body), PhysicalOffset(position))


@pytest.mark.parametrize("data", [b"x", bytes(90), bytes(91), b"\xff" * 500, struct.pack(">ii", 100, MAGIC_V1)])
def test_garbage_does_not_pass_the_check(data: bytes) -> None:
    with pytest.raises(RecordError):
        check_records(data, PhysicalOffset(0))


@pytest.mark.parametrize("born", ["10.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("store", ["10.0.0.1", "2001:db8::1"])
def test_latest_store_time_of_records_with_all_kinds_of_hosts(born: str, store: str) -> None:
    hosts = {"born_host": encode_host(born, 1), "store_host": encode_host(store, 2)}
    data = b"".join(simple_record(store_timestamp_ms=ms, **hosts) for ms in (5, 1_700_000_000_000, 7))
    assert latest_store_timestamp(data) == 1_700_000_000_000
    assert latest_store_timestamp(b"") == 0
    with pytest.raises(RecordError):
        latest_store_timestamp(data[:-1])
