"""Where the newest message of each key of a queue is."""

from __future__ import annotations

import tracemalloc

from mq.broker.admin.newest_keys import NewestKeys, compaction_facts, hash_of
from mq.protocol import properties as props
from mq.protocol.messages.records import encode_record, split_record
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset


def record(body: bytes = b"body", **properties: str) -> bytes:
    return encode_record(
        topic="T",
        queue_id=0,
        body=body,
        properties=props.encode(properties),
        queue_offset=FIRST_OFFSET,
        physical_offset=PhysicalOffset(0),
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_timestamp_ms=5000,
        store_host=bytes(8),
    )


def test_newest_keys_keep_the_last_message_of_a_key() -> None:
    keys = NewestKeys()
    a, b = hash_of(record(KEYS="a")), hash_of(record(KEYS="b"))
    assert a is not None
    assert b is not None
    for offset, key in enumerate((a, b, a)):
        keys.learn(key, QueueOffset(offset))
    keys.learn(a, QueueOffset(0))  # once more
    newest = [keys.is_newest(key, QueueOffset(offset)) for key, offset in ((a, 0), (b, 1), (a, 2))]
    assert (newest, len(keys)) == ([False, True, True], 2)
    keys.forget(a, QueueOffset(0))
    assert len(keys) == 2
    keys.forget(a, QueueOffset(2))
    assert (keys.is_newest(a, QueueOffset(2)), len(keys)) == (False, 1)


def test_key_is_the_whole_text_of_the_keys() -> None:
    assert hash_of(record(KEYS="a b")) != hash_of(record(KEYS="a"))
    assert hash_of(record(KEYS="a")) == hash_of(record(b"", KEYS="a", TAGS="t"))
    assert hash_of(record(TAGS="a")) is None
    assert hash_of(record(KEYS=" ")) is None


def test_carried_copy_has_the_age_of_its_original() -> None:
    for value, stored_ms in (("7 1234", 1234), ("7 9999", 5000), ("7", 5000), ("7 x", 5000), ("7 -1", 5000)):
        assert compaction_facts(split_record(record(b"", KEYS="a", RAFTMQ_CARRIED=value))) == (True, stored_ms)
    assert compaction_facts(split_record(record(KEYS="a"))) == (False, 5000)


def test_key_takes_less_than_two_hundred_bytes() -> None:
    count = 50_000
    tracemalloc.start()
    try:
        keys = NewestKeys()
        for number in range(count):
            key = hash_of(record(KEYS=f"a key that is as long as those of real applications may be {number}"))
            assert key is not None
            keys.learn(key, QueueOffset(1_000_000 + number))
        nbytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert nbytes / count < 200, f"a key takes {nbytes / count:.0f} bytes"
