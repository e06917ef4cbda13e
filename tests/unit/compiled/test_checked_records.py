"""The compiled check of received records against its reference in Python: the same verdict, with the same error."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.compiled import IS_COMPILED, checked_records
from mq.protocol.messages.records import FIXED, RecordError, check_records, encode_record
from mq.protocol.numbers import PhysicalOffset

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

HOSTS = st.sampled_from([bytes(8)] * 6 + [bytes(20)])
RECORDS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "Orders", "t" * 127, "t" * 255]),
        "queue_id": st.just(1),
        "body": st.binary(max_size=40) | st.just(bytes(300)),
        "properties": st.sampled_from(["", "UNIQ_KEY\x01A\x02", "KEYS\x01" + "k" * 300 + "\x02"]),
        "queue_offset": st.just(7),
        "born_timestamp_ms": st.just(1),
        "born_host": HOSTS,
        "store_timestamp_ms": st.just(2),
        "store_host": HOSTS,
    }
)
LENGTH_PLACES = [*range(8), 28, 35, 36, 39, *range(84, FIXED)]
"""Where a record has its size, magic number, physical offset, system flag and body length, and its topic often."""


def encoded(rows: list[dict[str, Any]], position: int) -> bytearray:
    body = bytearray()
    for fields in rows:
        body += encode_record(physical_offset=PhysicalOffset(position + len(body)), **fields)
    return body


def verdict(body: bytearray, position: int, checked: int) -> str | None:
    try:
        check_records(memoryview(body), PhysicalOffset(position), checked)
    except RecordError as error:
        return str(error)
    return None


@given(st.lists(RECORDS, max_size=4), st.integers(0, 2**40), st.data())
def test_any_bytes_get_the_reference_verdict(rows: list[dict[str, Any]], position: int, data: st.DataObject) -> None:
    body = encoded(rows, position)
    for _ in range(data.draw(st.integers(0, 2))):
        if body:
            at = data.draw(st.sampled_from(LENGTH_PLACES) | st.integers(0, len(body) - 1)) % len(body)
            body[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body))) :]
    checked = checked_records(memoryview(body), position)
    assert 0 <= checked <= len(body)
    assert verdict(body, position, checked) == verdict(body, position, 0)


@given(st.lists(RECORDS, min_size=1, max_size=4), st.integers(1, 127))
def test_records_of_the_usual_layout_are_all_checked(rows: list[dict[str, Any]], topic_bytes: int) -> None:
    for fields in rows:
        fields |= {"topic": "t" * topic_bytes, "born_host": bytes(8), "store_host": bytes(8)}
    body = encoded(rows, 1000)
    assert checked_records(body, 1000) == len(body)
    assert checked_records(body, 1001) == 0


@pytest.mark.parametrize("position", [-(2**63), -1, 2**62, 2**63 - 100, 2**63 - 1, 2**63, 2**64 - 1])
def test_positions_that_no_log_has_are_left_to_the_reference(position: int) -> None:
    # At the end of 64 bits the physical offsets would wrap around, and be equal to those of the records again.
    fields: Any = {"topic": "T", "queue_id": 0, "body": b"b", "properties": "", "queue_offset": 0}
    fields |= dict.fromkeys(["born_timestamp_ms", "store_timestamp_ms"], 1)
    fields |= dict.fromkeys(["born_host", "store_host"], bytes(8))
    record = encode_record(physical_offset=PhysicalOffset(0), **fields)
    body = bytearray(record * 2)
    for number in range(2):
        offset = (position + number * len(record)) % 2**64
        struct.pack_into(">Q", body, number * len(record) + 28, offset)
    assert checked_records(body, position) == 0


@pytest.mark.parametrize("data", [b"", b"x", bytes(90), bytes(91), b"\xff" * 500])
def test_bytes_that_are_not_a_record_are_not_checked(data: bytes) -> None:
    assert checked_records(data, 0) == 0
