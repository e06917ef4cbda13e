"""Popped messages that are not acknowledged, as open checkpoints of each group and queue.

A *checkpoint* records what one pop took from one queue: the first offset, the pop time, the invisible time, and a bit
for each message that is still open. An acknowledgement clears a bit; clearing the last one removes the checkpoint. The
same command moves the group's ordinary consumer offset past the popped messages.

For a group that consumes in order, a queue has at most one checkpoint, and acknowledgements move the consumer offset:
to the first open message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from mq.broker.state.nested_tables import in_order
from mq.broker.state.table import CommandInvalid, SnapshotDamaged, StateTable, TableCommand, check_range
from mq.protocol.names import check_group, check_queue_name, lite_queue
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset, offset_range
from mq.protocol.wire.fields import INT32_MAX

FORMER_MAX = 8
"""Earlier receipts of a message that still lead to its checkpoint."""
SPAN_MAX = 1024
"""Distance from the first message of a checkpoint to its last."""
NUMBER_BYTES_MAX = SPAN_MAX // 8
"""The largest number in a command or a snapshot is a bitmap of these offsets."""
ATTEMPT_LENGTH_MAX = 256
"""Characters of a client's attempt id."""
INVISIBLE_MS_MAX = 12 * 3600 * 1000

_INT64_MAX = 2**63 - 1

QueueOfGroup = tuple[str, str, int]
"""Group, topic and queue id."""


class CheckpointId(NamedTuple):
    """Identifies a checkpoint: its queue, its first offset, and the time of its pop in epoch milliseconds."""

    queue: QueueOfGroup
    start: QueueOffset
    pop_time_ms: int


Move = Callable[[str, str, int, QueueOffset, QueueOffset], bool]
"""``move(group, topic, queue id, before, after)``: sets the consumer offset to ``after`` if it was ``before``, -1 for
none.

Returns False without effect if the topic does not exist.
"""


class PopMessages(TableCommand, frozen=True, omit_defaults=True, tag="pop_messages"):
    """Give messages of a queue to a consumer, and move the group's offset past the examined ones.

    Bit ``i`` of ``taken`` stands for offset ``start + i``; without bits only the offset moves. ``attempt`` is None
    unless the group consumes in order: then the offset moves to ``start`` only.
    """

    group: str
    topic: str
    queue_id: int
    before: QueueOffset
    """The group's offset before, -1 for none. If it has changed since, it does not move."""
    next_offset: QueueOffset
    start: QueueOffset = FIRST_OFFSET
    pop_time_ms: int = 0
    invisible_ms: int = 0
    taken: int = 0
    attempt: str | None = None

    def check(self) -> None:
        _check_queue(self.group, self.topic, self.queue_id)
        check_range("before", self.before, -1, _INT64_MAX)
        check_range("next_offset", self.next_offset, 0, _INT64_MAX)
        check_range("start", self.start, 0, _INT64_MAX)
        check_range("pop_time_ms", self.pop_time_ms, 0, _INT64_MAX)
        check_range("invisible_ms", self.invisible_ms, 0, INVISIBLE_MS_MAX)
        _check_bits(self.taken)
        if self.taken:
            check_range("end of taken", self.start + self.taken.bit_length(), 0, self.next_offset)
        check_range("length of attempt", len(self.attempt or ""), 0, ATTEMPT_LENGTH_MAX)


class AckMessages(TableCommand, frozen=True, tag="ack_messages"):
    """Close messages that were acknowledged, or copied to a retry topic.

    Each row is group, topic, queue id, start and pop time of a checkpoint, and a bitmap as in `PopMessages`. Bits of
    messages that are not open have no effect.
    """

    rows: list[tuple[str, str, int, QueueOffset, int, int]]

    def check(self) -> None:
        for group in {row[0] for row in self.rows}:
            check_group(group)
        for topic in {row[1] for row in self.rows}:
            check_queue_name(topic)
        for _, _, queue_id, start, pop_time_ms, bits in self.rows:
            check_range("queue_id", queue_id, 0, INT32_MAX)
            check_range("start", start, 0, _INT64_MAX)
            check_range("pop_time_ms", pop_time_ms, 0, _INT64_MAX)
            _check_bits(bits)


class DeferMessage(TableCommand, frozen=True, omit_defaults=True, tag="defer_message"):
    """Restart the invisible time of one message, at ``new_pop_time_ms`` for ``invisible_ms``.

    It moves to a checkpoint of its own, (``offset``, ``new_pop_time_ms``). In ordered consumption it stays in its
    checkpoint. If it is ``suspended``, the attempt that ends here is not counted.
    """

    group: str
    topic: str
    queue_id: int
    start: QueueOffset
    pop_time_ms: int
    offset: QueueOffset
    new_pop_time_ms: int
    invisible_ms: int
    suspended: bool = False
    """Whether the attempt is not counted; from format level 7 on."""

    def check(self) -> None:
        _check_queue(self.group, self.topic, self.queue_id)
        check_range("start", self.start, 0, _INT64_MAX)
        check_range("pop_time_ms", self.pop_time_ms, 0, _INT64_MAX)
        check_range("offset", self.offset, self.start, self.start + SPAN_MAX - 1)
        check_range("new_pop_time_ms", self.new_pop_time_ms, 0, _INT64_MAX)
        check_range("invisible_ms", self.invisible_ms, 0, INVISIBLE_MS_MAX)


class Checkpoint(NamedTuple):
    """The open messages of a pop. Bit ``i`` of ``bits`` stands for the message at its start offset plus ``i``."""

    invisible_ms: int
    bits: int
    suspended: bool = False
    """Whether its message, the only one then, comes again without a higher count."""

    def row(self) -> tuple[int, ...]:
        """Return the row for a snapshot. It has two numbers unless ``suspended``, which needs format level 7."""
        return self if self.suspended else self[:2]


class OpenPop(NamedTuple):
    """The open pop of an ordered queue. Its tables are replaced, not changed."""

    start: QueueOffset
    pop_time_ms: int
    invisible_ms: int
    bits: int
    next_offset: QueueOffset
    """The group's offset once all messages are acknowledged."""
    attempt: str
    counts: dict[QueueOffset, int]
    """The number of earlier pops, for messages with any."""
    later: dict[QueueOffset, int]
    """The end of a changed invisible time, in epoch milliseconds, for messages with one."""
    suspended: tuple[QueueOffset, ...] = ()
    """Messages that come again without a higher count, ascending."""

    @property
    def first_open(self) -> QueueOffset:
        """The offset of the first open message."""
        return self.start + lowest_bit(self.bits)

    def blocked_until_ms(self) -> int:
        """Return when all open messages may be popped again, in epoch milliseconds."""
        usual = self.pop_time_ms + self.invisible_ms
        if not self.later:
            return usual
        return max(self.later.get(offset, usual) for offset in offsets_of(self.start, self.bits))


class PopQueue:
    """The open messages of a group in one queue.

    Attributes:
        open: checkpoints by start offset and pop time.
        ordered: the checkpoint of ordered consumption.
        moves: by start and pop time of a former checkpoint and offset of a message: the pop time of its present
            checkpoint, whose start is the offset. Not part of the replicated state: a replica that was restored from a
            snapshot lacks earlier moves. It only tells which checkpoint a repeated request means, and no command
            depends on it.
    """

    __slots__ = ("_former", "epoch", "moves", "open", "ordered")

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.moves: dict[tuple[QueueOffset, int, QueueOffset], int] = {}
        self._former: dict[tuple[QueueOffset, int], list[tuple[QueueOffset, int]]] = {}
        self.open: dict[tuple[QueueOffset, int], Checkpoint] = {}
        self.ordered: OpenPop | None = None

    def copy(self, epoch: int) -> PopQueue:
        """Return a copy, which may be changed."""
        queue = PopQueue(epoch)
        queue.open = dict(self.open)
        queue.ordered = self.ordered
        queue.moves = dict(self.moves)
        queue._former = {place: list(names) for place, names in self._former.items()}
        return queue

    def record_move(self, start: QueueOffset, pop_time_ms: int, offset: QueueOffset, new_pop_time_ms: int) -> None:
        """Record that a message moved to another checkpoint: its client may not have got the new receipt."""
        former = self._former.setdefault((offset, new_pop_time_ms), [])
        if start == offset:
            former += self._former.get((start, pop_time_ms), ())
        former.append((start, pop_time_ms))
        del former[:-FORMER_MAX]
        for name in former:
            self.moves[*name, offset] = new_pop_time_ms

    def forget_moves(self, start: QueueOffset, pop_time_ms: int) -> None:
        """Forget the moves to a checkpoint without open messages."""
        for name in self._former.pop((start, pop_time_ms), ()):
            if self.moves.get((*name, start)) == pop_time_ms:
                del self.moves[*name, start]

    def message_count(self) -> int:
        """Return the number of open messages."""
        return (0 if self.ordered is None else self.ordered.bits.bit_count()) + self.unordered_count()

    def unordered_count(self) -> int:
        """Return the number of open messages that were not popped in order."""
        return sum(checkpoint.bits.bit_count() for checkpoint in self.open.values())

    def first_open(self) -> QueueOffset | None:
        """Return the offset of the first open message, popped in order or not; None without one."""
        starts = [start + lowest_bit(each.bits) for (start, _), each in self.open.items()]
        starts += [] if self.ordered is None else [self.ordered.first_open]
        return min(starts, default=None)

    def popped_at(self, offset: QueueOffset) -> int | None:
        """Return the pop time of an open message in epoch milliseconds; None if not open, or popped in order."""
        times = (
            pop_time_ms
            for (start, pop_time_ms), checkpoint in self.open.items()
            if start <= offset < start + SPAN_MAX and checkpoint.bits >> (offset - start) & 1
        )
        return next(times, None)

    def first_hidden(self, low: QueueOffset, now_ms: int) -> QueueOffset | None:
        """Return the offset of the first invisible message from ``low`` on; None without one.

        It may be up to `SPAN_MAX` too low. Ordered messages are visible again when their invisible time ends.
        """
        offset = min(self.open)[0] if self.open else None
        if offset is not None and offset < low:  # the log has deleted some of them
            ends = ((start, start + checkpoint.bits.bit_length()) for (start, _), checkpoint in self.open.items())
            offset = min((max(start, low) for start, end in ends if end > low), default=None)
        open_pop = self.ordered
        if open_pop is None or not 0 < open_pop.blocked_until_ms() - now_ms <= INVISIBLE_MS_MAX:
            return offset
        if open_pop.start + open_pop.bits.bit_length() > low:
            first = max(open_pop.first_open, low)
            offset = first if offset is None else min(offset, first)
        return offset


_NOTHING = PopQueue()


class _OpenRow(NamedTuple):
    start: QueueOffset
    pop_time_ms: int
    invisible_ms: int
    bits: int
    suspended: bool = False


_Row = tuple[str, str, int, list[_OpenRow], OpenPop | None]


class PopCheckpoints(StateTable):
    """The open checkpoints of all groups.

    Args:
        move: moves a consumer offset.

    Attributes:
        queues: by group, topic and queue id; only queues with open messages.
        count: total open checkpoints without ordered ones, of which each queue has at most one.
        of_groups: the same per group.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (PopMessages, AckMessages, DeferMessage)

    def __init__(self, move: Move) -> None:
        self._move = move
        self.queues: dict[QueueOfGroup, PopQueue] = {}
        self._of_topics: dict[str, set[QueueOfGroup]] = {}
        """The keys of ``queues`` by topic."""
        self.count = 0
        self.of_groups: dict[str, int] = {}
        self._epoch = 0
        """Queues of an older epoch may be read by a capture: they are copied before a change."""

    def get(self, key: QueueOfGroup) -> PopQueue:
        """Return the open messages of a queue, read only."""
        return self.queues.get(key, _NOTHING)

    def apply(self, command: TableCommand) -> None:
        match command:
            case PopMessages():
                self._pop(command)
            case AckMessages(rows=rows):
                for group, topic, queue_id, start, pop_time_ms, bits in rows:
                    self._ack((group, topic, queue_id), start, pop_time_ms, bits)
            case DeferMessage():
                self._defer(command)
            case _:
                raise AssertionError(f"{type(command).__name__} is not a command of this table")

    def _pop(self, command: PopMessages) -> None:
        key = command.group, command.topic, command.queue_id
        in_order = command.attempt is not None and command.taken != 0
        if not self._move(*key, command.before, command.start if in_order else command.next_offset):
            return  # the topic and its messages were deleted
        if not command.taken:
            return
        queue = self._to_change(key)
        if command.attempt is not None:
            queue.ordered = _ordered_pop(command, queue.ordered)
        else:
            self._add(key, queue, command.start, command.pop_time_ms, command.invisible_ms, command.taken)

    def _count(self, group: str, more: int) -> None:
        """Adjust a group's number of open checkpoints."""
        self.count += more
        self.of_groups[group] = count = self.of_groups.get(group, 0) + more
        assert 0 <= count <= self.count, f"{group} has {count} open checkpoints, all have {self.count}"
        if not count:
            del self.of_groups[group]

    def _add(
        self,
        key: QueueOfGroup,
        queue: PopQueue,
        start: QueueOffset,
        pop_time_ms: int,
        invisible_ms: int,
        bits: int,
        suspended: bool = False,
    ) -> None:
        assert bits > 0, f"{key[0]} popped {bits} from {start} on in {key[1]}/{key[2]}"
        there = queue.open.get((start, pop_time_ms))
        if there is None:
            self._count(key[0], 1)
        else:
            bits |= there.bits  # the same messages, popped twice within a millisecond
        queue.open[start, pop_time_ms] = Checkpoint(invisible_ms, bits, suspended)

    def _to_change(self, key: QueueOfGroup) -> PopQueue:
        """Return the open messages of a queue for changes; create them if missing. The next capture may read them."""
        queue = self.queues.get(key)
        if queue is None:
            queue = PopQueue(self._epoch)
            self._put(key, queue)
        elif queue.epoch != self._epoch:
            queue = self.queues[key] = queue.copy(self._epoch)
        return queue

    def _ack(self, key: QueueOfGroup, start: QueueOffset, pop_time_ms: int, bits: int) -> None:
        if key not in self.queues:
            return
        queue = self._to_change(key)
        checkpoint = queue.open.get((start, pop_time_ms))
        if checkpoint is not None:
            open_bits = checkpoint.bits & ~bits
            if open_bits:
                queue.open[start, pop_time_ms] = checkpoint._replace(bits=open_bits)
                return
            del queue.open[start, pop_time_ms]
            queue.forget_moves(start, pop_time_ms)
            self._count(key[0], -1)
        elif (open_pop := queue.ordered) is not None and (open_pop.start, open_pop.pop_time_ms) == (start, pop_time_ms):
            open_bits = open_pop.bits & ~bits
            queue.ordered = open_pop._replace(bits=open_bits) if open_bits else None
            end = start + lowest_bit(open_bits) if open_bits else open_pop.next_offset
            self._move(*key, open_pop.first_open, end)
        if not queue.open and queue.ordered is None:
            self._remove(key)

    def _put(self, key: QueueOfGroup, queue: PopQueue) -> None:
        self.queues[key] = queue
        self._of_topics.setdefault(key[1], set()).add(key)

    def _remove(self, key: QueueOfGroup) -> PopQueue:
        of_topic = self._of_topics[key[1]]
        of_topic.discard(key)
        if not of_topic:
            del self._of_topics[key[1]]
        return self.queues.pop(key)

    def _defer(self, command: DeferMessage) -> None:
        key = command.group, command.topic, command.queue_id
        if key not in self.queues:
            return
        queue = self._to_change(key)
        start, pop_time_ms, offset = command.start, command.pop_time_ms, command.offset
        bit = 1 << (offset - start)
        checkpoint = queue.open.get((start, pop_time_ms))
        if checkpoint is not None and checkpoint.bits & bit:
            queue.record_move(start, pop_time_ms, offset, command.new_pop_time_ms)
            self._ack(key, start, pop_time_ms, bit)
            self._put(key, queue)  # its last message may be gone
            self._add(key, queue, offset, command.new_pop_time_ms, command.invisible_ms, 1, command.suspended)
            return
        open_pop = queue.ordered
        if (
            open_pop is not None
            and (open_pop.start, open_pop.pop_time_ms) == (start, pop_time_ms)
            and open_pop.bits & bit
        ):
            until_ms = command.new_pop_time_ms + command.invisible_ms
            offsets = {*open_pop.suspended} - {offset} | ({offset} if command.suspended else set())
            queue.ordered = open_pop._replace(
                later=open_pop.later | {offset: until_ms}, suspended=tuple(sorted(offsets))
            )

    def capture(self) -> Callable[[], object]:
        self._epoch += 1
        queues = self.queues.copy()

        def encode() -> object:
            return [
                (
                    *key,
                    [(*place, *queues[key].open[place].row()) for place in sorted(queues[key].open)],
                    (open_pop := queues[key].ordered) and _with_sorted_tables(open_pop),
                )
                for key in in_order(queues)
            ] or None

        return encode

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[_Row])
        queues: dict[QueueOfGroup, PopQueue] = {}
        for group, topic, queue_id, checkpoints, open_pop in rows:
            queue = queues[group, topic, queue_id] = PopQueue()
            for row in checkpoints:
                queue.open[row.start, row.pop_time_ms] = Checkpoint(row.invisible_ms, row.bits, row.suspended)
            queue.ordered = open_pop
            every = [*(row.bits for row in checkpoints), *([open_pop.bits] if open_pop else [])]
            if not every or min(every) <= 0:
                raise SnapshotDamaged(f"a checkpoint of {group} in {topic}/{queue_id} has no open message")
        self.queues, self._of_topics, self.of_groups, self.count = {}, {}, {}, 0
        for key, queue in queues.items():
            self._put(key, queue)
            self._count(key[0], len(queue.open))

    def check_invariants(self) -> None:
        """Assert that queues, checkpoints and their counts agree; for tests, since it reads every checkpoint.

        - A queue is listed as long as something in it is open, and by its topic: what deletes a topic and what keeps
          the log for popped messages look at nothing else.
        - Every checkpoint has an open message and spans at most `SPAN_MAX`: its bits fit into one command.
        - The counts equal the numbers of checkpoints: they decide whether a group may pop at all.
        - An ordered checkpoint ends at the group's offset, and has only counts of messages before that.
        """
        counts: Counter[str] = Counter()
        for key, queue in self.queues.items():
            what = f"{key[0]} in {key[1]}/{key[2]}"
            assert queue.open or queue.ordered is not None, f"{what} is listed with nothing open"
            assert key in self._of_topics.get(key[1], ()), f"{what} is not listed by its topic"
            assert queue.epoch <= self._epoch, f"{what} is of epoch {queue.epoch}, the latest is {self._epoch}"
            counts[key[0]] += len(queue.open)
            for (start, pop_time_ms), checkpoint in queue.open.items():
                at = f"{what} from {start} on, popped at {pop_time_ms}"
                assert checkpoint.bits > 0, f"{at}: the open messages are {checkpoint.bits}"
                assert checkpoint.bits.bit_length() <= SPAN_MAX, f"{at}: a span of {checkpoint.bits.bit_length()}"
                assert start >= 0, f"{at}: a negative offset"
            for (_, _, offset), moved_to in queue.moves.items():
                assert (offset, moved_to) in queue.open, f"{what}: a receipt of {offset} leads to nothing"
            if (pop := queue.ordered) is not None:
                end = pop.start + pop.bits.bit_length()
                assert pop.start < end <= pop.next_offset, (
                    f"{what}, in order from {pop.start} on: open up to {end}, examined up to {pop.next_offset}"
                )
                for offset in (*pop.counts, *pop.later, *pop.suspended):
                    assert pop.start <= offset < pop.next_offset, (
                        f"{what}, in order from {pop.start} to {pop.next_offset}: {offset} is noted"
                    )
        list_count = sum(map(len, self._of_topics.values()))
        assert list_count == len(self.queues), f"{list_count} queues are listed by topic, there are {len(self.queues)}"
        assert all(self._of_topics.values()), f"topics without a queue are listed: {sorted(self._of_topics)}"
        assert self.count == counts.total(), f"{self.count} checkpoints were counted, there are {counts.total()}"
        assert self.of_groups == +counts, f"{self.of_groups} checkpoints were counted by group, there are {+counts}"

    def reset_ordered(self, key: QueueOfGroup) -> None:
        """Forget the open pop of an ordered queue, because the group's offset in it is set."""
        if self.get(key).ordered is not None:
            self._to_change(key).ordered = None
            if not self.queues[key].open:
                self._remove(key)

    def topic_deleted(self, topic: str) -> None:
        self._drop(list(self._of_topics.get(topic, ())))

    def lite_parent_deleted(self, topic: str) -> None:
        """Drop the open pops in lite topics of a deleted topic."""
        begin = lite_queue(topic, "")
        for name in [name for name in self._of_topics if name.startswith(begin)]:
            self.topic_deleted(name)

    def group_deleted(self, group: str) -> None:
        self._drop([key for key in self.queues if key[0] == group])

    def _drop(self, keys: list[QueueOfGroup]) -> None:
        for key in keys:
            self._count(key[0], -len(self._remove(key).open))


def offsets_of(start: QueueOffset, bits: int) -> Iterator[QueueOffset]:
    """Yield the offsets of the set bits of a checkpoint, ascending."""
    if not bits & bits + 1:  # contiguous, as nearly always
        yield from offset_range(start, start + bits.bit_length())
        return
    while bits:
        low = bits & -bits
        yield start + low.bit_length() - 1
        bits ^= low


def lowest_bit(bits: int) -> int:
    """Return the index of the lowest set bit. There must be one."""
    assert bits > 0, f"no bit of {bits} is set"
    return (bits & -bits).bit_length() - 1


def _ordered_pop(command: PopMessages, before: OpenPop | None) -> OpenPop:
    counts: dict[QueueOffset, int] = {}
    attempt = command.attempt or ""
    if before is not None:
        is_repeated = attempt and attempt == before.attempt
        again = set() if is_repeated else {*offsets_of(before.start, before.bits)}.difference(before.suspended)
        for offset in offsets_of(command.start, command.taken):
            count = before.counts.get(offset, 0) + (offset in again)
            if count:
                counts[offset] = count
    return OpenPop(
        start=command.start,
        pop_time_ms=command.pop_time_ms,
        invisible_ms=command.invisible_ms,
        bits=command.taken,
        next_offset=command.next_offset,
        attempt=attempt,
        counts=counts,
        later={},
    )


def _with_sorted_tables(open_pop: OpenPop) -> tuple[object, ...]:
    row = open_pop._replace(counts=dict(sorted(open_pop.counts.items())), later=dict(sorted(open_pop.later.items())))
    return tuple(row if row.suspended else row[:-1])


def _check_queue(group: str, topic: str, queue_id: int) -> None:
    check_group(group)
    check_queue_name(topic)
    check_range("queue_id", queue_id, 0, INT32_MAX)


def _check_bits(bits: int) -> None:
    if bits < 0:
        raise CommandInvalid(f"the bits of messages are {bits}; allowed: 0 or more")
    check_range("span of messages", bits.bit_length(), 0, SPAN_MAX)
