"""A property name that a message has more than once: every reader takes the last one with a value, as RocketMQ does."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq.filter.sql import SqlFilter
from mq.protocol import properties as props
from mq.protocol.hashes import tag_code
from mq.protocol.messages.delay import TURNS_MS, timer_turn_ms
from mq.protocol.messages.records import (
    decode_record,
    encode_host,
    encode_record,
    properties_text,
    scan_fixed,
    tag_code_of,
)
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.key_index.record_keys import KeyedRecord, has_key
from mq.store.sequenced import sequenced_record

NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "RAFTMQ_PRODUCER", "RAFTMQ_SEQUENCE", "TIMER_OUT_MS", "REAL_TOPIC", "X")


def as_java(text: str) -> dict[str, str]:
    """`MessageDecoder.string2messageProperties`, step by step: a piece needs three characters, a name and a value."""
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        end = text.find("\x02", index)
        if end < 0:
            end = len(text)
        if end - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < end - 1:
                found[text[index:separator]] = text[separator + 1 : end]
        index = end + 1
    return found


PIECES = st.one_of(
    st.builds("{}\x01{}".format, st.sampled_from(NAMES), st.sampled_from(["", "A", "B", "7", "12", "TAGS\x01C", "é"])),
    st.text("\x01ATAGSX", max_size=8),
    st.sampled_from(["", "TAGS", "\x01A", "XTAGS\x01A", "TAGS\x01TAGS\x01A"]),
)
TEXTS = st.builds(
    lambda pieces, is_ended: "\x02".join(pieces) + "\x02" * is_ended, st.lists(PIECES, max_size=8), st.booleans()
)
steady = settings(derandomize=True, deadline=None, max_examples=300)
repeated = [
    "TAGS\x01A\x02TAGS\x01B\x02",
    "TAGS\x01A\x02TAGS\x01\x02",
    "TAGS\x01\x02TAGS\x01B",
    "TAGS\x01A\x02X\x01TAGS\x01B\x02",
    "TAGS\x01A\x02TAGS",
]


@steady
@given(TEXTS)
@example("\x02".join(repeated))
def test_every_reader_takes_the_last_value(text: str) -> None:
    expected = as_java(text)
    encoded = text.encode()
    assert props.decode(text) == expected
    for name in NAMES:
        value = expected.get(name)
        assert props.find(text, name) == value
        within = b"TAGS\x01Z\x02" + encoded + b"TAGS\x01Z\x02"
        wanted = f"{name}\x01".encode()
        assert props.value_of(encoded, wanted).decode() == (value or "")
        assert props.value_of(within, wanted, 7, 7 + len(encoded)).decode() == (value or "")
    assert tag_code_of(encoded) == tag_code(expected.get("TAGS", ""))
    assert SqlFilter("TAGS = 'B'").matches_text(text) == (expected.get("TAGS") == "B")
    turn_ms = TURNS_MS[TIMER_TOPIC](1000, 0, encoded)
    due = expected.get("TIMER_OUT_MS", "")
    assert turn_ms == (timer_turn_ms(1000, int(due)) if due.isascii() and due.isdecimal() else 1000)
    sequenced = sequenced_record(encoded, PhysicalOffset(5), 6)
    numbers = (expected.get("RAFTMQ_PRODUCER"), expected.get("RAFTMQ_SEQUENCE"))
    assert (sequenced and (sequenced.producer, str(sequenced.first))) == (
        numbers if numbers[0] and numbers[1] in ("7", "12") else None
    )


@steady
@given(TEXTS)
def test_last_repetition_of_a_key_property_counts(text: str) -> None:
    expected = as_java(text)
    data = b"T" + text.encode() + b"KEYS\x01Q\x02"
    record = KeyedRecord(0, 1 + len(text.encode()), 0, b"T", 1)
    for word in ("A", "B", "7", "TAGS\x01C", "Q"):
        assert has_key(data, record, b"T", word.encode(), unique=True) == (expected.get("UNIQ_KEY") == word)
        in_either = word in (expected.get("UNIQ_KEY"), *expected.get("KEYS", "").split(" "))
        assert has_key(data, record, b"T", word.encode(), unique=False) == in_either


@pytest.mark.parametrize("text", repeated)
def test_stored_records_have_the_last_tag(text: str) -> None:
    host = encode_host("10.0.0.1", 1)
    record = encode_record(
        topic="T",
        queue_id=0,
        body=b"TAGS\x01body\x02",
        properties=text,
        queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(0),
        born_timestamp_ms=1,
        born_host=host,
        store_timestamp_ms=1,
        store_host=host,
    )
    expected = as_java(text)
    assert decode_record(memoryview(record)).properties == expected
    assert properties_text(record) == text
    assert [code for *_, code in scan_fixed(record * 2)] == [tag_code(expected["TAGS"])] * 2
