"""Properties of messages: the room that is kept for later ones, and names that a message has more than once."""

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
from mq.protocol.names import GROUP_BYTES_MAX, TIMER_TOPIC, TOPIC_BYTES_MAX
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.key_index.record_keys import KeyedRecord, has_key
from mq.store.sequenced import sequenced_record

TOPIC, GROUP, BROKER = "t" * TOPIC_BYTES_MAX, "g" * GROUP_BYTES_MAX, "b" * 127
INT32, INT64, IPV6_ID = str(2**31 - 1), str(2**63 - 1), "A" * 56
ADDED_LATER = {
    # a redelivery, by a broker or a consumer
    props.RETRY_TOPIC: TOPIC,
    props.ORIGIN_MESSAGE_ID: IPV6_ID,
    props.DELAY: "64",
    props.RECONSUME_TIME: INT32,
    props.MAX_RECONSUME_TIMES: INT32,
    "MIN_OFFSET": INT64,
    "MAX_OFFSET": INT64,
    "CONSUME_START_TIME": INT64,
    # a delay or a transaction
    props.REAL_TOPIC: TOPIC,
    props.REAL_QUEUE_ID: INT32,
    props.TIMER_OUT_MS: INT64,
    props.TIMER_ENQUEUE_MS: INT64,
    props.TIMER_DEQUEUE_MS: INT64,
    props.TIMER_ROLL_TIMES: INT32,
    props.TRANSACTION_CHECK_TIMES: INT32,
    # a pop
    props.POP_CK: f"{INT64} {INT64} {INT64} {INT32} 1 {BROKER} {INT32} {INT64}",
    props.FIRST_POP_TIME: INT64,
    props.ORIGIN_GROUP: GROUP,
    props.ORIGIN_BROKER: BROKER,
    props.ORIGIN_QUEUE_ID: INT32,
    props.ORIGIN_OFFSET: INT64,
    # a dead letter
    props.FAILURE: "e" * props.SAFE_BYTES_MAX,
    props.DEAD_GROUP: GROUP,
    props.DEAD_REASON: f"given up after {INT32} deliveries",
    props.DEAD_ATTEMPTS: INT32,
    props.DEAD_MS: INT64,
    props.DEAD_TOPIC: TOPIC,
    props.DEAD_MESSAGE_ID: IPV6_ID,
    props.DEAD_BY: "o" * 200,
    # the unique key of a message that was sent without one, and the cluster again, behind a client's copy of it
    props.UNIQUE_KEY: IPV6_ID,
    **props.of_cluster("c" * 127),
}


def test_additions_of_brokers_fit_behind_the_longest_properties() -> None:
    room = props.PROPERTIES_BYTES_MAX - props.SENT_PROPERTIES_BYTES_MAX
    assert len(props.encode(ADDED_LATER).encode()) <= room
    longest = {"n": "v" * (props.SENT_PROPERTIES_BYTES_MAX - 3)}
    assert props.decode(props.fit(longest | ADDED_LATER).decode()) == longest | ADDED_LATER


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ValueError: no", "ValueError: no"),
        ("a\x01b\x02c\nd\re\x00", "a b c d e"),
        ("x" * 600, "x" * 512),
        ("\u20ac" * 300, "\u20ac" * 170),
        ("\ud800", "?"),
        ("", ""),
    ],
)
def test_safe_value_is_one_bounded_line(text: str, value: str) -> None:
    assert props.safe_value(text) == value
    assert props.decode(props.encode({"a": value})) == ({"a": value} if value else {})


NAMES = st.sampled_from(["n", "m", "KEYS", "TAGS", *ADDED_LATER]) | st.integers(0, 9999).map(str)
VALUES = st.sampled_from(["v", "v" * 100, "é" * 250, "v" * 20_000, "\ufffd" * 11_000])


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=40), st.sampled_from([b"", b"CLUSTER\x01c\x02"]))
@example({str(number): "" for number in range(10_000)} | ADDED_LATER, b"")
@example({"KEYS": "k" * 32_750} | ADDED_LATER, b"")
@example({f"\U0001f600{number}" * 20: "v" * 3000 for number in range(12)} | ADDED_LATER, b"x\x01y\x02")
def test_fitted_properties_fit_and_count_omitted_ones(properties: dict[str, str], suffix: bytes) -> None:
    encoded = props.fit(properties, suffix)
    assert len(encoded) <= props.PROPERTIES_BYTES_MAX
    assert encoded.endswith(suffix)
    kept = props.decode(encoded.removesuffix(suffix).decode())
    said = kept.pop(props.OMITTED, None)
    given = {name: value for name, value in properties.items() if value}
    lacking = given.keys() - kept.keys()
    assert kept.items() <= given.items()
    if len(props.encode(properties).encode()) + len(suffix) <= props.PROPERTIES_BYTES_MAX:
        assert not lacking
        assert said is None
    else:
        assert said is not None
        count, what = said.split(" ", 1)
        assert int(count) >= len(lacking) > 0 or int(count) > 0
        assert what.startswith("properties of ")
        assert not any(props.is_reserved(name) and len(name + given[name]) < 150 for name in lacking)


REPEATED_NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "RAFTMQ_PRODUCER", "RAFTMQ_SEQUENCE", "TIMER_OUT_MS", "REAL_TOPIC", "X")


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
    st.builds(
        "{}\x01{}".format, st.sampled_from(REPEATED_NAMES), st.sampled_from(["", "A", "B", "7", "12", "TAGS\x01C", "é"])
    ),
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
    for name in REPEATED_NAMES:
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
def test_last_repetition_of_a_key_property_is_used(text: str) -> None:
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
