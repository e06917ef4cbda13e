"""Copies of messages: properties, batches, checksums."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mq.cli.mirror.copies import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    SourcePlace,
    batches_of,
    checksum_of,
    copied_properties,
    is_another,
    place_of,
)
from mq.protocol import properties as props
from mq.protocol.errors import BodyError
from mq.protocol.messages.batch import decode_batch
from mq.protocol.messages.records import IN_LITE_TOPIC, Host, StoredMessage
from mq.protocol.numbers import PhysicalOffset, QueueOffset


def stored(offset: int = 7, **given: Any) -> StoredMessage:
    message = StoredMessage(
        topic="T",
        queue_id=3,
        flag=5,
        queue_offset=QueueOffset(offset),
        physical_offset=PhysicalOffset(1000),
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=Host("10.0.0.1", 1),
        store_timestamp_ms=1_700_000_000_123,
        store_host=Host("10.0.0.2", 2),
        reconsume_times=0,
        prepared_offset=PhysicalOffset(0),
        body=b"body",
        properties={"UNIQ_KEY": "K", "TAGS": "t", "own": "x"},
        size=200,
    )
    return msgspec.structs.replace(message, **given)


def test_mirrored_lite_message_names_its_lite_topic() -> None:
    lite = {
        "__LITE_TOPIC": "a",
        "INNER_MULTI_DISPATCH": "%LMQ%$T$a",
        "INNER_MULTI_QUEUE_OFFSET": "0",
        "RAFTMQ_LITE": "3e8",
    }
    original = stored(sys_flag=IN_LITE_TOPIC | 1, properties={"UNIQ_KEY": "K", "own": "x"} | lite)
    [batch] = batches_of([original])
    [copy] = decode_batch(batch.body("broker-a"))
    assert not lite.keys() & props.decode(copy.properties).keys()
    assert batch.fields("g", "T", "g1", 9, "p")["f"] == "1"
    kept = {"UNIQ_KEY": "K", "own": "x", "RAFTMQ_SOURCE_LITE_TOPIC": "a"}
    assert copied_properties(original) == kept
    made = stored(sys_flag=1, properties=kept | {"RAFTMQ_SOURCE": "T/b/1/2/3"})
    assert checksum_of(original, is_copy=False) == checksum_of(made, is_copy=True)
    assert copied_properties(made) == kept, "the copy of a copy names it as well"
    lost = stored(sys_flag=1, properties={"UNIQ_KEY": "K", "own": "x", "RAFTMQ_SOURCE": "T/b/1/2/3"})
    assert checksum_of(original, is_copy=False) != checksum_of(lost, is_copy=True)


def test_copy_records_the_position_and_birth_time_of_its_original() -> None:
    [batch] = batches_of([stored()])
    [copy] = decode_batch(batch.body("broker-a"))
    properties = props.decode(copy.properties)
    assert (copy.body, copy.flag) == (b"body", 5)
    assert properties["BORN_TIMESTAMP"] == "1700000000000"
    assert place_of(properties) == SourcePlace("T", "broker-a", 3, 7, 1_700_000_000_123)
    fields = batch.fields("g", "T2", "g1", 9, "p")
    assert (fields["b"], fields["n"], fields["e"], fields["g"]) == ("T2", "g1", "9", "1700000000000")
    numbers = props.decode(fields["i"])
    assert numbers == {"RAFTMQ_PRODUCER": "p", "RAFTMQ_SEQUENCE": "7", "RAFTMQ_COPIED": "true"}


def test_message_that_was_born_before_1970_can_be_copied() -> None:
    [batch] = batches_of([stored(born_timestamp_ms=-1)])
    [copy] = decode_batch(batch.body("broker-a"))
    assert props.decode(copy.properties)["BORN_TIMESTAMP"] == "0"


def test_properties_without_room_for_the_copy_ones_fail_only_this_message() -> None:
    [batch] = batches_of([stored(properties={"own": "x" * (props.PROPERTIES_BYTES_MAX - 10)})])
    with pytest.raises(BodyError, match="maximum in a batch: 32767"):
        batch.body("broker-a")


@pytest.mark.parametrize("text", ["", "T", "T/b/1/2", "T/b/1/2/x", "T/b/-1/2/3", "/"])
def test_invalid_place_is_ignored(text: str) -> None:
    assert place_of({props.SOURCE: text}) is None
    assert place_of({}) is None


def test_copies_omit_only_properties_added_by_brokers() -> None:
    given = {"CLUSTER": "c", "MSG_REGION": "r", "TRACE_ON": "true", "DELAY": "3", "REAL_TOPIC": "T", "WAIT": "true"}
    assert copied_properties(stored(properties=given)) == {"DELAY": "3", "REAL_TOPIC": "T", "WAIT": "true"}


def test_sender_sequence_number_keeps_its_other_name_through_a_second_mirror() -> None:
    first = copied_properties(stored(properties={"RAFTMQ_PRODUCER": "billing", "RAFTMQ_SEQUENCE": "4"}))
    assert first == {"RAFTMQ_SOURCE_PRODUCER": "billing", "RAFTMQ_SOURCE_SEQUENCE": "4"}
    at_target = {**first, "RAFTMQ_SOURCE": "T/b/1/2/3", "RAFTMQ_PRODUCER": "mirror-1-2", "RAFTMQ_SEQUENCE": "7"}
    assert copied_properties(stored(properties=at_target)) == first


def test_run_ends_at_a_gap_or_another_flag_or_retries() -> None:
    messages = [stored(0), stored(1), stored(3), stored(4, sys_flag=1), stored(5, sys_flag=1), stored(6)]
    messages += [stored(7, reconsume_times=1), stored(8, reconsume_times=2)]
    batches = [[each.queue_offset for each in batch.messages] for batch in batches_of(messages)]
    assert batches == [[0, 1], [3], [4, 5], [6], [7], [8]]


def test_run_fits_a_batch() -> None:
    batches = list(batches_of([stored(n) for n in range(2 * BATCH_MESSAGES_MAX + 1)]))
    assert [len(batch.messages) for batch in batches] == [BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX, 1]
    large = list(batches_of([stored(n, size=BATCH_BYTES_MAX // 2) for n in range(3)]))
    assert [len(batch.messages) for batch in large] == [1, 1, 1]


def test_refused_batch_is_halved_down_to_one_message() -> None:
    [batch] = batches_of([stored(n) for n in range(5)])
    assert [[each.queue_offset for each in half.messages] for half in batch.halves()] == [[0, 1], [2, 3, 4]]
    [one] = batches_of([stored()])
    assert one.halves() == []


def test_copy_has_the_checksum_of_its_original() -> None:
    original = stored(properties={"UNIQ_KEY": "K", "b": "2", "a": "1", "CLUSTER": "one", "RAFTMQ_SEQUENCE": "3"})
    properties = copied_properties(original)
    properties |= {"RAFTMQ_SOURCE": "T/b/3/7/1", "RAFTMQ_PRODUCER": "m", "RAFTMQ_SEQUENCE": "7-9", "CLUSTER": "two"}
    copy = stored(99, properties=dict(reversed(properties.items())), store_timestamp_ms=5, sys_flag=0x10, queue_id=0)
    assert checksum_of(original, is_copy=False) == checksum_of(copy, is_copy=True)


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"bodz"},
        {"flag": 6},
        {"born_timestamp_ms": 1},
        {"reconsume_times": 1},
        {"sys_flag": 1},
        {"properties": {"UNIQ_KEY": "K", "TAGS": "t", "own": "y"}},
        {"properties": {"UNIQ_KEY": "K", "TAGS": "t"}},
    ],
)
def test_checksum_covers_every_copied_field(change: dict[str, Any]) -> None:
    assert checksum_of(stored(), is_copy=False) != checksum_of(stored(**change), is_copy=True)


def test_message_without_a_unique_key_gets_one_at_the_target() -> None:
    original, copy = stored(properties={"a": "1"}), stored(properties={"a": "1", "UNIQ_KEY": "new"})
    assert checksum_of(original, is_copy=False) != checksum_of(copy, is_copy=True)
    without = [checksum_of(each, is_copy=each is copy, without_key=True) for each in (original, copy)]
    assert without[0] == without[1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"store_timestamp_ms": 1_700_000_000_124}, True),
        ({"properties": {"UNIQ_KEY": "L"}}, True),
        ({"properties": {}}, False),  # a message without a key gets one at the target
        ({"queue_offset": 8, "store_timestamp_ms": 5}, False),  # not where the original was
        ({"queue_id": 4, "store_timestamp_ms": 5}, False),
        ({"topic": "U", "store_timestamp_ms": 5}, False),
    ],
)
def test_replaced_original_is_recognized_by_store_time_and_unique_key(given: dict[str, Any], expected: bool) -> None:
    copy = stored(99, properties={"UNIQ_KEY": "K", "RAFTMQ_SOURCE": "T/b/3/7/1700000000123"}, store_timestamp_ms=9)
    message = msgspec.structs.replace(stored(), **given)
    assert is_another(message, copy, "b") is expected
    assert not is_another(message, copy, "c")
    assert not is_another(message, stored(99, store_timestamp_ms=9), "b")
