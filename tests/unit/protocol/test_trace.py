"""Trace records: what is written is read again, by us and by Java's client, whatever is in the fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.messages.trace import (
    KEYS_BYTES_MAX,
    TRACE_BODY_BYTES_MAX,
    HandlingBegun,
    HandlingEnded,
    MessageKind,
    Recalled,
    SendTrace,
    TraceRecord,
    TransactionEnded,
    build_trace,
    decode_trace,
    encode_trace,
    trace_messages,
)

PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")).filter(lambda t: t != "null")
TEXTS = PLAIN | st.none()
NUMBERS = st.integers(-(2**63), 2**63 - 1)
RECORDS: st.SearchStrategy[TraceRecord] = st.one_of(
    st.builds(
        SendTrace,
        timestamp_ms=NUMBERS,
        region=TEXTS,
        group=PLAIN,
        topic=PLAIN,
        message_id=PLAIN,
        tags=TEXTS,
        keys=TEXTS,
        store_host=TEXTS, body_bytes=NUMBERS, cost_ms=NUMBERS, kind=NUMBERS, offset_message_id=TEXTS,
        success=st.booleans(), client_host=TEXTS,
    ),
    st.builds(
        HandlingBegun, timestamp_ms=NUMBERS, region=TEXTS, group=PLAIN, request_id=PLAIN, message_id=PLAIN,
        retry_times=NUMBERS, keys=TEXTS, client_host=TEXTS,
    ),
    st.builds(
        HandlingEnded, request_id=PLAIN, message_id=PLAIN, cost_ms=NUMBERS, success=st.booleans(), keys=TEXTS,
        context_code=NUMBERS, timestamp_ms=NUMBERS, group=PLAIN,
    ),
    st.builds(
        TransactionEnded, timestamp_ms=NUMBERS, region=TEXTS, group=PLAIN, topic=PLAIN, message_id=PLAIN, tags=TEXTS,
        keys=TEXTS, store_host=TEXTS, kind=NUMBERS, transaction_id=TEXTS,
        state=st.sampled_from(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]), from_check=st.booleans(),
    ),
    st.builds(
        Recalled, timestamp_ms=NUMBERS, region=TEXTS, group=PLAIN, topic=PLAIN, message_id=PLAIN, success=st.booleans(),
    ),
)  # fmt: skip


@given(st.lists(RECORDS))
def test_records_survive_encoding_and_decoding(records: list[TraceRecord]) -> None:
    assert decode_trace("".join(map(encode_trace, records))) == (records, 0)


@given(
    st.lists(st.builds(SendTrace, timestamp_ms=st.just(1), tags=st.text(), keys=st.text(), topic=st.text()), max_size=4)
)
def test_field_with_separators_leaves_its_neighbours_intact(records: list[SendTrace]) -> None:
    read, unreadable = decode_trace("".join(map(encode_trace, records)))
    assert (len(read), unreadable) == (len(records), 0)


@given(st.text(alphabet="Pubnl0\x01\x02é") | st.text())
def test_trace_decoder_accepts_any_text(text: str) -> None:
    records, unreadable = decode_trace(text)
    assert len(records) + unreadable == len([piece for piece in text.split("\x02") if piece])


JAVA_PUB = "Pub|1700000000123|DefaultRegion|P|T|ID|null|k1 k2|10.0.0.1:10911|5|12|3|OFF|true"


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (
            JAVA_PUB,
            SendTrace(
                timestamp_ms=1700000000123,
                region="DefaultRegion",
                group="P",
                topic="T",
                message_id="ID",
                keys="k1 k2",
                store_host="10.0.0.1:10911",
                body_bytes=5,
                cost_ms=12,
                kind=MessageKind.DELAY,
                offset_message_id="OFF",
            ),
        ),
        (
            "SubBefore|1700000000200|null|G|REQ|ID|2|null",
            HandlingBegun(timestamp_ms=1700000000200, group="G", request_id="REQ", message_id="ID", retry_times=2),
        ),
        (
            "SubAfter|REQ|ID|7|false|k1 k2|2|1700000000210|G",
            HandlingEnded(
                request_id="REQ",
                message_id="ID",
                cost_ms=7,
                success=False,
                keys="k1 k2",
                context_code=2,
                timestamp_ms=1700000000210,
                group="G",
            ),
        ),
        (
            "EndTransaction|5|null|P|T|ID|null|null|10.0.0.1:10911|2|TX|COMMIT_MESSAGE|true",
            TransactionEnded(
                timestamp_ms=5,
                group="P",
                topic="T",
                message_id="ID",
                store_host="10.0.0.1:10911",
                transaction_id="TX",
                state="COMMIT_MESSAGE",
                from_check=True,
            ),
        ),
        ("Recall|5|null|P|T|ID|true", Recalled(timestamp_ms=5, group="P", topic="T", message_id="ID")),
    ],
)
def test_lines_of_javas_client(line: str, record: TraceRecord) -> None:
    text = line.replace("|", "\x01") + "\x02"
    assert decode_trace(text) == ([record], 0)
    assert encode_trace(record) == text


def test_lines_of_other_versions() -> None:
    old = "Pub|1|null|P|T|ID|null|null|h|5|1|0|false".replace("|", "\x01")
    new = (JAVA_PUB + "|10.0.0.9").replace("|", "\x01")
    before = "SubBefore|1|null|G|REQ|ID|0|null|10.0.0.9".replace("|", "\x01")
    after = "SubAfter|REQ|ID|7|true|null".replace("|", "\x01")
    records, unreadable = decode_trace("\x02".join((old, new, before, after)))
    assert unreadable == 0
    first, second, third, fourth = records
    assert isinstance(first, SendTrace)
    assert isinstance(second, SendTrace)
    assert isinstance(third, HandlingBegun)
    assert isinstance(fourth, HandlingEnded)
    assert (first.success, first.offset_message_id) == (False, None)
    assert (second.success, second.offset_message_id, second.client_host) == (True, "OFF", "10.0.0.9")
    assert third.client_host == "10.0.0.9"
    assert (fourth.context_code, fourth.timestamp_ms, fourth.group) == (0, 0, "")


def test_thousands_of_records_become_messages_findable_by_each_id_and_key() -> None:
    records = [
        SendTrace(
            timestamp_ms=number, message_id=f"{number:032X}", keys=f"k{number} all é{number}", tags="t" * (number % 300)
        )
        for number in range(5000)
    ]
    messages = list(trace_messages(records))
    assert 10 < len(messages) < 50
    read: list[TraceRecord] = []
    for keys, body, count in messages:
        assert len(body) < TRACE_BODY_BYTES_MAX + 1000
        assert sum(len(key.encode()) + 1 for key in keys) <= KEYS_BYTES_MAX
        inside, unreadable = decode_trace(body.decode())
        assert (len(inside), unreadable) == (count, 0)
        assert {each.message_id for each in inside} <= set(keys)
        read += inside
    assert read == records
    assert list(trace_messages([])) == []


def test_keys_without_end_leave_the_id() -> None:
    record = SendTrace(timestamp_ms=1, message_id="ID", keys=" ".join(map(str, range(20_000))))
    [(keys, body, _)] = trace_messages([record])
    assert keys[0] == "ID"
    assert len(" ".join(keys).encode()) <= KEYS_BYTES_MAX
    assert decode_trace(body.decode())[1] == 0


def test_trace_records_are_ordered_by_message() -> None:
    records: list[TraceRecord] = [
        HandlingEnded(request_id="R2", message_id="ID", cost_ms=3, timestamp_ms=33, group="G"),
        HandlingBegun(timestamp_ms=30, group="G", request_id="R2", message_id="ID", retry_times=1),
        HandlingBegun(timestamp_ms=20, group="G", request_id="R1", message_id="ID"),
        HandlingEnded(request_id="R1", message_id="ID", success=False, context_code=2, timestamp_ms=21, group="G"),
        HandlingBegun(timestamp_ms=25, group="H", request_id="R3", message_id="ID"),
        HandlingEnded(request_id="R9", message_id="ID", cost_ms=5, timestamp_ms=45, group="I"),
        HandlingBegun(timestamp_ms=1, group="G", request_id="R1", message_id="another"),
        SendTrace(timestamp_ms=10, group="P", message_id="ID"),
        SendTrace(timestamp_ms=5, group="P", message_id="first,ID,last"),
        Recalled(timestamp_ms=50, message_id="ID"),
        TransactionEnded(timestamp_ms=15, message_id="ID"),
    ]
    story = build_trace("ID", records * 2, 4)
    assert story.found
    assert [each.timestamp_ms for each in story.sent] == [5, 10]
    assert [
        (each.begun.group, each.begun.timestamp_ms, each.ended.success if each.ended else None)
        for each in story.handled
    ] == [("G", 20, False), ("H", 25, None), ("G", 30, True), ("I", 40, True)]
    assert (len(story.transactions), len(story.recalled), story.unreadable) == (1, 1, 4)
    assert not build_trace("nothing", records).found
