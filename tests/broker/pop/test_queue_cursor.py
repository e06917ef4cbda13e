"""Which queues a pop looks into, of all that its topic has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consume.record_reader import RecordReader, RecordSpan
from mq.broker.net.refusals import RequestRefused
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.pop.queue_cursor import PopQueues, PopRequest
from mq.broker.state.metadata import Metadata
from mq.filter.subscription import parse_subscription
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.queue_store import QueueStore, QueueStoreSettings
from tests.support.popping import pop, popped
from tests.support.running_broker import Client

QUEUES = 4
NOW_MS = 1_700_000_000_000

# Of a queue: whether its offsets begin later, its messages, those that are gone, and the group's offset.
STATES = st.tuples(
    st.sampled_from([0, 3]), st.integers(0, 3), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 7))
)


@given(st.lists(STATES, min_size=QUEUES, max_size=QUEUES), st.booleans(), st.booleans(), st.booleans())
def test_pop_visits_every_queue_with_messages(
    states: list[tuple[int, int, int, int | None]], at_end: bool, young: bool, in_order: bool
) -> None:
    def read_each(places: list[RecordSpan]) -> Sequence[bytes]:
        return [bytes(size) for _, size in places]

    metadata, expected = Metadata(), set()
    with TemporaryDirectory() as root:
        store = QueueStore.open(root, QueueStoreSettings(), queues={}, dropped_count=0, log_end=PhysicalOffset(0))
        for queue_id, (first, count, gone, offset) in enumerate(states):
            if first:
                store.add_empty("T", queue_id, QueueOffset(first))
            if count:
                entries = b"".join(QUEUE_ENTRY.pack(100 * number, 100, 0) for number in range(count))
                store.append_run(QueueRun("T", queue_id, QueueOffset(first), entries))
                queue = store.get("T", queue_id)
                assert queue is not None
                queue.expire(PhysicalOffset(100 * min(gone, count)))
            if offset is not None:
                metadata.consumer_offsets.setdefault(("G", "T"), {})[queue_id] = QueueOffset(offset)
        queues = PopQueues(
            metadata=metadata,
            store=store,
            records=RecordReader(lambda position, nbytes: bytes(nbytes), read_each, 2**30),
            read_each=read_each,
            is_in_memory=lambda begin, end: True,
            is_young=lambda queue: young,
            is_hidden=lambda low, offset: False,
            has_acks_in_flight=lambda key: False,
            ordered_clock=OrderedClock(lambda: 0.0),
            broker_name="b",
        )
        attempt = "a" if in_order else None
        everything = parse_subscription("T", "*", None)
        wish = PopRequest("G", "T", "%RETRY%G_T", everything, NOW_MS, 1000, 0, at_end, attempt)
        expected = {queue_id for queue_id in range(QUEUES) if queues.take(wish, "T", queue_id, 32, 10_000) is not None}
        looked_at = list(queues.unread("G", "T", range(QUEUES), at_end=at_end))
        assert expected <= set(looked_at)
        for queue_id in range(QUEUES):
            if queues.has_message(("G", "T", queue_id), at_end=False, attempt=attempt, now_ms=NOW_MS):
                assert queue_id in queues.unread("G", "T", range(QUEUES), at_end=False)
        ends = [first + count for first, count, _, _ in states]
        metadata.consumer_offsets["G", "T"] = dict(enumerate(map(QueueOffset, ends)))
        assert not list(queues.unread("G", "T", range(QUEUES), at_end=at_end))
        store.close()


def test_damaged_retried_message_is_refused_and_named(tmp_path: Path) -> None:
    store = QueueStore.open(str(tmp_path), QueueStoreSettings(), queues={}, dropped_count=0, log_end=PhysicalOffset(0))
    host = encode_host("127.0.0.1", 1)
    whole = encode_record(
        topic="%RETRY%G_T",
        queue_id=0,
        body=b"whole",
        properties="",
        queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(4000),
        born_timestamp_ms=1,
        born_host=host,
        store_timestamp_ms=1,
        store_host=host,
    )
    log = {4000: whole, 4321: b"\x40" * 100}
    entries = b"".join(QUEUE_ENTRY.pack(position, len(record), 0) for position, record in log.items())
    store.append_run(QueueRun("%RETRY%G_T", 0, QueueOffset(0), entries))
    metadata = Metadata()
    queues = PopQueues(
        metadata=metadata,
        store=store,
        records=RecordReader(lambda position, nbytes: log[position], lambda places: [], 2**30),
        read_each=lambda places: [log[position] for position, _ in places],
        is_in_memory=lambda begin, end: True,
        is_young=lambda queue: False,
        is_hidden=lambda low, offset: False,
        has_acks_in_flight=lambda key: False,
        ordered_clock=OrderedClock(lambda: 0.0),
        broker_name="b",
    )
    everything = parse_subscription("T", "*", None)
    wish = PopRequest("G", "T", "%RETRY%G_T", everything, NOW_MS, 1000, 0, False, None)
    taken = queues.take(wish, "%RETRY%G_T", 0, 32, 10_000)
    assert taken is not None
    assert [taken.messages, taken.command.next_offset, taken.rest] == [1, 1, 1]
    metadata.consumer_offsets["G", "%RETRY%G_T"] = {0: QueueOffset(1)}
    with pytest.raises(RequestRefused, match="message at byte 4321 of the log"):
        queues.take(wish, "%RETRY%G_T", 0, 32, 10_000)
    store.close()


async def test_pop_finds_one_message_in_a_thousand_queues(client: Client) -> None:
    await client.create_topic("T", 1000)
    for queue_id in (0, 999, 500):
        await client.send(e=queue_id, body=b"%d" % queue_id)
        (message,) = await popped(client)
        assert message.body == b"%d" % queue_id
    assert (await pop(client)).code == 19
