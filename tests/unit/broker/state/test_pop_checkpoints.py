"""The table of open checkpoints against a naive one: a message is open or it is not."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mq.broker.state.commands import (
    DeleteGroup,
    DeleteTopic,
    PutTopic,
    ResetOffset,
    TopicConfig,
    decode_command,
    encode_command,
)
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import SPAN_MAX, AckMessages, Checkpoint, DeferMessage, PopMessages, offsets_of
from mq.broker.state.table import CommandInvalid
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset

GROUPS, TOPICS, QUEUES = ("G", "H"), ("T", "U"), 2
KEYS = st.tuples(st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.integers(0, QUEUES - 1))


def popped(
    pop_time_ms: int,
    key: tuple[str, str, int] = ("G", "T", 0),
    *,
    before: int = -1,
    start: int = 0,
    end: int = 2,
    taken: int = 3,
    invisible_ms: int = 10,
    attempt: str | None = None,
) -> PopMessages:
    """The first two messages, if nothing else is said."""
    group, topic, queue_id = key
    return PopMessages(
        group=group,
        topic=topic,
        queue_id=queue_id,
        before=QueueOffset(before),
        next_offset=QueueOffset(end),
        start=QueueOffset(start),
        pop_time_ms=pop_time_ms,
        invisible_ms=invisible_ms,
        taken=taken,
        attempt=attempt,
    )


def popped_in_order(pop_time_ms: int, *, before: int = -1, attempt: str = "") -> PopMessages:
    return popped(pop_time_ms, before=before, attempt=attempt)


def put_off(
    offset: int,
    start: int,
    pop_time_ms: int,
    new_pop_time_ms: int,
    *,
    key: tuple[str, str, int] = ("G", "T", 0),
    invisible_ms: int = 50,
    suspended: bool = False,
) -> DeferMessage:
    group, topic, queue_id = key
    return DeferMessage(
        group=group,
        topic=topic,
        queue_id=queue_id,
        start=QueueOffset(start),
        pop_time_ms=pop_time_ms,
        offset=QueueOffset(offset),
        new_pop_time_ms=new_pop_time_ms,
        invisible_ms=invisible_ms,
        suspended=suspended,
    )


def copy_of(metadata: Metadata) -> Metadata:
    """What is restored from its snapshot."""
    copy = Metadata()
    copy.restore(metadata.snapshot())
    return copy


class Open(NamedTuple):
    """A message that is open, as the naive table has it."""

    key: tuple[str, str, int]
    start: int
    pop_time_ms: int
    offset: int


class PopStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.metadata = Metadata()
        self.open: dict[Open, int] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.now_ms = 1_000

    def apply(self, command: Any) -> None:
        body = encode_command(command)
        assert decode_command(body) == command
        self.metadata.apply(decode_command(body))

    @initialize()
    def topics(self) -> None:
        for topic in TOPICS:
            self.create(topic)

    @rule(topic=st.sampled_from(TOPICS))
    def create(self, topic: str) -> None:
        self.apply(PutTopic(config=TopicConfig(name=topic, read_queues=QUEUES, write_queues=QUEUES), timestamp_ms=1))

    @rule(key=KEYS, skip=st.integers(0, 3), taken=st.integers(0, 2**40), late=st.booleans(), time=st.integers(0, 2))
    def pop(self, key: tuple[str, str, int], skip: int, taken: int, late: bool, time: int) -> None:
        """With ``late`` the group's offset has become another one meanwhile."""
        self.now_ms += time
        before = self.offsets.get(key, -1)
        start = max(before, 0) + skip
        next_offset = start + taken.bit_length()
        self.apply(
            popped(
                self.now_ms,
                key,
                before=before + 7 if late else before,
                end=next_offset,
                start=start,
                taken=taken,
                invisible_ms=50,
            )
        )
        if key[1] not in self.metadata.topics:
            return
        for offset in range(taken.bit_length()):
            if taken >> offset & 1:
                self.open[Open(key, start, self.now_ms, start + offset)] = 50
        if not late:
            self.offsets[key] = max(before, next_offset)

    @rule(data=st.data(), noise=st.integers(0, 2**8), twice=st.booleans())
    def ack(self, data: st.DataObject, noise: int, twice: bool) -> None:
        """Acknowledge any of what is open, and some of what is not."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.open)), unique=True)) if self.open else []
        rows = [(*one.key, QueueOffset(one.start), one.pop_time_ms, 1 << (one.offset - one.start)) for one in chosen]
        rows.append(("G", "T", 0, QueueOffset(10**9), 1, noise))
        for _ in range(1 + twice):
            self.apply(AckMessages(rows=rows))
        for one in chosen:
            del self.open[one]

    @rule(data=st.data(), invisible_ms=st.integers(0, 100), time=st.integers(0, 2))
    def defer(self, data: st.DataObject, invisible_ms: int, time: int) -> None:
        if not self.open:
            return
        self.now_ms += time
        one = data.draw(st.sampled_from(sorted(self.open)))
        self.apply(put_off(one.offset, one.start, one.pop_time_ms, self.now_ms, key=one.key, invisible_ms=invisible_ms))
        del self.open[one]
        # What was popped from there in the same millisecond has the same checkpoint, and now its time.
        for other in self.open:
            if other[:3] == (one.key, one.offset, self.now_ms):
                self.open[other] = invisible_ms
        self.open[Open(one.key, one.offset, self.now_ms, one.offset)] = invisible_ms

    @rule(key=KEYS, offset=st.integers(0, 20))
    def reset(self, key: tuple[str, str, int], offset: int) -> None:
        group, topic, queue_id = key
        self.apply(ResetOffset(group=group, topic=topic, queue_id=queue_id, offset=QueueOffset(offset)))
        if topic in self.metadata.topics:
            self.offsets[key] = offset
            self.now_ms += 1  # one who pops the same messages again does so later

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.apply(DeleteTopic(name=topic, timestamp_ms=1))
        self.open = {one: time for one, time in self.open.items() if one.key[1] != topic}
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[1] != topic}

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.apply(DeleteGroup(name=group, timestamp_ms=1))
        self.open = {one: time for one, time in self.open.items() if one.key[0] != group}

    @rule(data=st.data(), low=st.integers(0, 100))
    def look_for_the_first(self, data: st.DataObject, low: int) -> None:
        """Nothing that is open lies before the first one, and something soon behind it."""
        if not self.open:
            return
        key = data.draw(st.sampled_from(sorted({one.key for one in self.open})))
        left = [one.offset for one in self.open if one.key == key and one.offset >= low]
        found = self.metadata.pops.get(key).first_hidden(QueueOffset(low), self.now_ms)
        assert (found is None) == (not left)
        if found is not None:
            assert low <= found <= min(left) < found + SPAN_MAX

    @rule()
    def restart(self) -> None:
        snapshot = self.metadata.snapshot()
        self.metadata = copy_of(self.metadata)
        assert self.metadata.snapshot() == snapshot

    @invariant()
    def same(self) -> None:
        self.metadata.check_invariants()
        found = {
            Open(key, start, pop_time_ms, offset): checkpoint.invisible_ms
            for key, queue in self.metadata.pops.queues.items()
            for (start, pop_time_ms), checkpoint in queue.open.items()
            for offset in offsets_of(start, checkpoint.bits)
        }
        assert found == self.open
        assert self.metadata.pops.count == len({one[:3] for one in self.open})
        assert all(queue.open or queue.ordered for queue in self.metadata.pops.queues.values())
        stored = {
            (*pair, at): offset for pair, row in self.metadata.consumer_offsets.items() for at, offset in row.items()
        }
        assert stored == self.offsets


PopStateMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_checkpoints = pytest.mark.slow(PopStateMachine.TestCase)


def ready() -> Metadata:
    metadata = Metadata()
    metadata.apply(PutTopic(config=TopicConfig(name="T", read_queues=1, write_queues=1), timestamp_ms=1))
    return metadata


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30), st.integers(1, 5))
def test_ordered_group_offset_is_at_the_first_open_message(steps: list[tuple[bool, int]], at_once: int) -> None:
    """Against a list of what is acknowledged: pops begin at its first gap, and the group's offset is there."""
    metadata, done, popped_ms, end = ready(), -1, 0, 0
    count: dict[int, int] = {}
    key, open_now = ("G", "T", 0), set[int]()
    for now_ms, (is_pop, which) in enumerate(steps, 1):
        if is_pop:
            begin = done + 1
            for offset in open_now:
                count[offset] = count.get(offset, 0) + 1
            open_now, end, popped_ms = set(range(begin, begin + at_once)), begin + at_once, now_ms
            count = {offset: times for offset, times in count.items() if offset in open_now}
            before = metadata.consumer_offsets.get(("G", "T"), {}).get(0, QueueOffset(-1))
            metadata.apply(popped(now_ms, before=before, end=end, start=begin, taken=(1 << at_once) - 1, attempt=""))
            start = begin
        elif open_now:
            offset = start + which
            metadata.apply(AckMessages(rows=[("G", "T", 0, QueueOffset(start), popped_ms, 1 << which)]))
            open_now.discard(offset)
            done = (min(open_now) if open_now else end) - 1
        ordered = metadata.pops.get(key).ordered
        assert set(offsets_of(ordered.start, ordered.bits) if ordered else ()) == open_now
        assert (metadata.consumer_offset(*key) or 0) == done + 1
        if ordered is not None:
            assert {offset: times for offset, times in ordered.counts.items() if offset in open_now} == {
                offset: times for offset, times in count.items() if offset in open_now
            }


def test_checkpoint_of_32_messages_uses_less_than_100_snapshot_bytes() -> None:
    metadata, sizes = ready(), []
    for number in range(2):
        sizes.append(len(metadata.snapshot()))
        pop_time_ms = 1_700_000_000_000 + number
        metadata.apply(popped(pop_time_ms, start=10**12, end=10**12 + 32, taken=2**32 - 1, invisible_ms=60_000))
    assert len(metadata.snapshot()) - sizes[1] < 40


def test_changed_ordered_time_blocks_until_the_last_message_may_be_redelivered() -> None:
    metadata = ready()
    metadata.apply(popped_in_order(100, attempt="a"))
    metadata.apply(put_off(1, 0, 100, 105))
    for each in (metadata, copy_of(metadata)):
        ordered = each.pops.get(("G", "T", 0)).ordered
        assert ordered is not None
        assert ordered.blocked_until_ms() == 155
    metadata.apply(AckMessages(rows=[("G", "T", 0, FIRST_OFFSET, 100, 2)]))
    ordered = metadata.pops.get(("G", "T", 0)).ordered
    assert ordered is not None
    assert ordered.blocked_until_ms() == 110


def test_suspended_ordered_message_is_redelivered_uncounted() -> None:
    metadata = ready()
    metadata.apply(popped_in_order(100))
    metadata.apply(put_off(0, 0, 100, 105, suspended=True))
    metadata.apply(put_off(0, 0, 100, 106, suspended=True))  # twice, as when the first answer is lost
    for each in (metadata, copy_of(metadata)):
        each.apply(popped_in_order(200, before=0))
        ordered = each.pops.get(("G", "T", 0)).ordered
        assert ordered is not None
        assert (ordered.counts, ordered.suspended) == ({1: 1}, ()), "it counts for the one behind it, and only once"
    metadata.apply(put_off(0, 0, 200, 205, suspended=True))
    metadata.apply(put_off(0, 0, 200, 206, suspended=False))  # the last word counts
    metadata.apply(popped_in_order(300, before=0))
    ordered = metadata.pops.get(("G", "T", 0)).ordered
    assert ordered is not None
    assert ordered.counts == {0: 1, 1: 2}


def test_snapshots_mark_suspended_messages_only() -> None:
    metadata = ready()
    pop = msgspec.structs.replace(popped_in_order(100), attempt=None)
    metadata.apply(pop)
    metadata.apply(put_off(0, 0, 100, 105, suspended=True))
    metadata.apply(put_off(1, 0, 100, 105, suspended=False))
    rows = metadata.pops.capture()()
    assert rows == [("G", "T", 0, [(0, 105, 50, 1, True), (1, 105, 50, 1)], None)]
    assert copy_of(metadata).pops.get(("G", "T", 0)).open == metadata.pops.get(("G", "T", 0)).open
    metadata.apply(put_off(0, 0, 105, 110, suspended=False))
    assert metadata.pops.get(("G", "T", 0)).open[QueueOffset(0), 110] == Checkpoint(50, 1, suspended=False)
    assert b"suspended" not in encode_command(put_off(0, 0, 105, 110, suspended=False))


@pytest.mark.parametrize(
    "command",
    [
        PopMessages(group="", topic="T", queue_id=0, before=QueueOffset(-1), next_offset=QueueOffset(0)),
        PopMessages(group="G", topic="T", queue_id=-1, before=QueueOffset(-1), next_offset=QueueOffset(0)),
        PopMessages(group="G", topic="T", queue_id=0, before=QueueOffset(-2), next_offset=QueueOffset(0)),
        PopMessages(group="G", topic="T", queue_id=0, before=QueueOffset(-1), next_offset=QueueOffset(3), taken=1 << 3),
        PopMessages(
            group="G", topic="T", queue_id=0, before=QueueOffset(-1), next_offset=QueueOffset(2**20), taken=1 << 1024
        ),
        PopMessages(group="G", topic="T", queue_id=0, before=QueueOffset(-1), next_offset=QueueOffset(0), taken=-1),
        AckMessages(rows=[("G", "T", 0, FIRST_OFFSET, 0, -1)]),
        AckMessages(rows=[("G", "../T", 0, FIRST_OFFSET, 0, 1)]),
        put_off(4, 5, 0, 0),
    ],
)
def test_impossible_command_is_refused(command: Any) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(command)


class NotGoneThrough(dict[Any, Any]):
    """A table whose rows are looked up one by one."""

    def __iter__(self) -> Any:
        raise AssertionError("all rows of a large table were looked at")

    items = keys = values = __iter__


def test_deleting_a_topic_removes_its_pop_checkpoints() -> None:
    metadata = Metadata()
    for topic in TOPICS:
        metadata.apply(PutTopic(config=TopicConfig(name=topic, read_queues=2, write_queues=2), timestamp_ms=1))
    kept = {"T": [], "U": [("G", "U", 0), ("H", "U", 1)]}
    for key in [("G", "T", 0), ("G", "T", 1), *kept["U"]]:
        metadata.apply(popped(1, key, invisible_ms=1000))
    metadata.apply(AckMessages(rows=[("G", "T", 1, FIRST_OFFSET, 1, 3)]))
    metadata.pops.restore(metadata.pops.capture()())
    metadata.pops.queues = NotGoneThrough(metadata.pops.queues)
    metadata.pops.topic_deleted("T")
    metadata.pops.topic_deleted("V")
    assert sorted(dict.__iter__(metadata.pops.queues)) == kept["U"]
    assert metadata.pops.count == 2
