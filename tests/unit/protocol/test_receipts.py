"""Receipts of popped messages, and batches of their acknowledgements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.names import TOPIC_BYTES_MAX, check_topic, pop_retry_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.receipts import (
    BatchAck,
    Receipt,
    ReceiptError,
    ReceiptReader,
    count_info,
    decode_bits,
    encode_bits,
    queue_info,
    read_count_info,
)


def test_acknowledgement_bits_match_the_protocol_sample() -> None:
    text = b'{"acks":[{"b":"BQI=","c":"cg","it":60000,"pt":1600000000000,"q":1,"r":"0","rq":3,"so":100,"t":"T1"}]}'
    (row,) = BatchAck.decode(text).acks
    assert row.bits == 1 << 0 | 1 << 2 | 1 << 9
    assert encode_bits(row.bits) == "BQI="
    assert decode_bits("") == 0
    assert (row.group, row.topic, row.mark, row.start, row.queue_id, row.pop_time_ms) == (
        "cg",
        "T1",
        "0",
        100,
        1,
        1_600_000_000_000,
    )
    long = (
        b'{"acks":[{"bitSet":"BQI=","consumerGroup":"cg","invisibleTime":60000,"popTime":1600000000000,"queueId":1,'
        b'"retry":"0","reviveQueueId":3,"startOffset":100,"topic":"T1"}],"brokerName":"b-a"}'
    )
    (same,) = BatchAck.decode(long).acks
    assert (same.group, same.start, same.bits, same.pop_time_ms) == (row.group, row.start, row.bits, row.pop_time_ms)
    (listed,) = BatchAck.decode(text.replace(b'"BQI="', b"[5,2,0,0,0,0,0,0]")).acks
    assert listed.bits == row.bits


@given(st.integers(0, 2**1024 - 1))
def test_decoded_bits_equal_the_encoded_bits(bits: int) -> None:
    assert decode_bits(encode_bits(bits)) == bits


@pytest.mark.parametrize("given", ["=", "\u0661", [256], [-1], [2**70], [0] * 100_000])
def test_invalid_set_of_bits_is_refused(given: str | list[int]) -> None:
    with pytest.raises(ReceiptError):
        decode_bits(given)


def test_decoded_receipt_equals_the_encoded_one() -> None:
    text = "7 1600000000000 60000 0 1 b-a 3 9"
    receipt = Receipt.decode(text)
    assert receipt == Receipt(QueueOffset(7), 1_600_000_000_000, 60_000, 0, "1", "b-a", 3, QueueOffset(9))
    assert receipt.encode() == text
    assert Receipt.decode(text + " 4711") == receipt  # as RocketMQ's proxy sends it back


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7 1 2 0 1 b 3",
        "7 1 2 0 1 b 3 9x 9",
        "x 1 2 0 1 b 3 9",
        "+7 1 2 0 1 b 3 9",
        "1_0 1 2 0 1 b 3 9",
        "\u0661 1 2 0 1 b 3 9",
        f"7 {2**63} 2 0 1 b 3 9",
        "7  2 0 1 b 3 9",
    ],
)
def test_other_text_is_refused_as_a_receipt(text: str) -> None:
    with pytest.raises(ReceiptError):
        Receipt.decode(text)


def test_queue_and_count_info_match_the_java_format() -> None:
    first, third, other = QueueOffset(10), QueueOffset(12), QueueOffset(4)
    rows = [("0", 3, first, [first, third]), ("1", 0, other, [other])]
    assert queue_info(rows) == ("0 3 10;1 0 4", "0 3 10,12;1 0 4")
    assert queue_info([]) == ("", "")
    assert count_info("0", 3, {QueueOffset(10): 2, QueueOffset(12): 1}) == "0 3 1;0 qo3%10 2;0 qo3%12 1"
    assert count_info("0", 3, {}) == ""


def test_counts_are_read_back() -> None:
    text = count_info("0", 3, {QueueOffset(10): 2, QueueOffset(12): 1}) + ";0 4 7"
    named = {("0", 3, -1): 0, ("0", 3, 10): 2, ("0", 3, 12): 1, ("0", 4, -1): 7}
    assert read_count_info(text) == named
    assert read_count_info(";".join(reversed(text.split(";")))) == named
    assert read_count_info("") == {}


@pytest.mark.parametrize("text", ["0 3", "0 3 x", "0 qo3 1", "0 qo3% 1", "0 -3 1", "0 3 1 2", "0 3 12345678901"])
def test_invalid_pop_counts_are_refused(text: str) -> None:
    with pytest.raises(ReceiptError, match="the count of pops"):
        read_count_info(text)


def test_retry_topic_keeps_its_usual_name_if_short_enough() -> None:
    assert pop_retry_topic("G", "T") == "%RETRY%G_T"
    assert pop_retry_topic("G", "%RETRY%G_T") == "%RETRY%G_T"
    long = pop_retry_topic("g" * 120, "t" * 127)
    check_topic(long)
    assert len(long) == TOPIC_BYTES_MAX
    assert long != pop_retry_topic("g" * 120, "t" * 126)


_ENDS = ["0", "7", "-1", "+1", "", "x", "1_0", "\u0663", "9" * 18, "9" * 19, "9" * 20, "7 ", "7 99", "7 99 x", " 7"]


@given(
    st.lists(st.tuples(st.sampled_from(["5 6 7 0 0 b 1", "5 6 7 0 0 b 2", "5 6 7 0 0 b", "5"]), st.sampled_from(_ENDS)))
)
def test_reader_of_many_receipts_reads_each_as_if_alone(parts: list[tuple[str, str]]) -> None:
    reader = ReceiptReader()
    for begin, end in parts:
        text = f"{begin} {end}"
        assert _read(reader.decode, text) == _read(Receipt.decode, text)


def _read(decode: Callable[[str], Receipt], text: str) -> Receipt | str:
    try:
        return decode(text)
    except ReceiptError as error:
        return str(error)
