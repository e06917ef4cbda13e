"""The room that a message keeps for properties that are added after it was stored, and what happens without it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq.protocol import properties as props
from mq.protocol.names import GROUP_BYTES_MAX, TOPIC_BYTES_MAX

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
    assert props.decode(props.fitted(longest | ADDED_LATER).decode()) == longest | ADDED_LATER


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
    encoded = props.fitted(properties, suffix)
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
