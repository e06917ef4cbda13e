"""Takes messages from a queue for pops, on the leader.

Several pops of one queue may be in flight: each begins where the previous one ends, although the group's offset moves
there only when that one is committed. If one fails, or the offset was set otherwise in the meantime, no pop gets
messages of this queue until all in flight have completed; then the stored offset applies again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mq.broker.consume.record_reader import SCAN_BYTES_MAX, RecordReader, RecordSpan
from mq.broker.consume.subscriptions import scanned_max
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.net.refusals import RequestRefused
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import SPAN_MAX, PopMessages, QueueOfGroup, lowest_bit, offsets_of
from mq.broker.write_path.outcome import Outcome, Stored
from mq.filter.subscription import Subscription, parse_subscription
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.records import RecordError, decode_record, encode_message
from mq.protocol.numbers import FIRST_OFFSET, NO_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.receipts import RETRY, Receipt
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, entry_sizes
from mq.store.errors import QueueFileDamaged
from mq.store.queue_store import QueueStore
from raftlog.segment import EntryGone

INIT_AT_END = 1
EVERYTHING = parse_subscription("", "*", None)
_NO_OFFSETS: Mapping[int, QueueOffset] = {}


class PopRequest(NamedTuple):
    """The parameters of a pop that decide which messages it gets, and how they are marked.

    ``attempt`` is None unless the group consumes in order. Messages of ``topic`` are redelivered to the group through
    ``retry_topic``, which may be the topic itself. Messages that were loaded for the pop begin at the topic, queue and
    queue offset of ``load_start``.
    """

    group: str
    topic: str
    retry_topic: str
    subscription: Subscription
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    at_end: bool
    attempt: str | None
    load_start: tuple[str, int, QueueOffset] | None = None


class PopBatch(NamedTuple):
    """The messages that a pop takes from one queue; empty if no examined message matched."""

    key: QueueOfGroup
    command: PopMessages
    records: list[bytes]
    nbytes: int
    messages: int
    rest: int
    """Messages of the queue behind the examined ones."""
    unread: tuple[RecordSpan, ...] = ()
    """Physical offsets and sizes of the records, if they are to be read when the pop is committed."""

    @property
    def offsets(self) -> Iterator[QueueOffset]:
        """The queue offsets of these messages."""
        return offsets_of(self.command.start, self.command.taken)


class RecordsOnDisk(Exception):
    """Raised if the next messages of a queue are on disk: the caller loads them into memory, and takes them then.

    Attributes:
        key: the queue.
        begin: queue offset of the first one that was to be examined.
        places: physical offset and size of their records, ascending, not empty.
    """

    def __init__(self, key: QueueOfGroup, begin: QueueOffset, places: list[RecordSpan]) -> None:
        super().__init__(key, begin, places)
        self.key = key
        self.begin = begin
        self.places = places


class _QueueWork:
    """A queue with pops in flight."""

    __slots__ = ("in_flight", "in_order", "next_offset", "stale")

    def __init__(self) -> None:
        self.next_offset = FIRST_OFFSET
        self.in_flight = 0
        self.in_order = False
        self.stale = False


class PopQueues:
    """Takes the next messages from a queue for a pop.

    Args:
        records: reads records that may come in one piece.
        read_each: reads records of ascending places one by one.
        is_in_memory: whether a range of physical offsets is read without a wait for the disk.
        is_young: whether a new group begins at the first message of a queue, although configured for the end.
        has_acks_in_flight: whether acknowledgements of a queue are in flight.
        ordered_clock: says how long ordered queues stay blocked.
        broker_name: the name in receipts.
    """

    def __init__(
        self,
        *,
        metadata: Metadata,
        store: QueueStore,
        records: RecordReader,
        read_each: Callable[[list[RecordSpan]], Sequence[bytes | memoryview]],
        is_in_memory: Callable[[PhysicalOffset, PhysicalOffset], bool],
        is_young: Callable[[ConsumeQueue], bool],
        is_hidden: Callable[[QueueOffset, QueueOffset], bool],
        has_acks_in_flight: Callable[[QueueOfGroup], bool],
        ordered_clock: OrderedClock,
        broker_name: str,
        limits: BrokerLimits = DEFAULT,
    ) -> None:
        self._checkpoints_max = limits.pop.checkpoints_per_queue_max
        self._scan_limits = limits.consume
        self._metadata = metadata
        self._store = store
        self._records = records
        self._read_each = read_each
        self._is_in_memory = is_in_memory
        self._is_young = is_young
        self._is_hidden = is_hidden
        self._has_acks_in_flight = has_acks_in_flight
        self._ordered_clock = ordered_clock
        self._broker_name = broker_name
        self._works: dict[QueueOfGroup, _QueueWork] = {}

    def resign(self) -> None:
        """Forget the pops in flight, since this replica stops leading."""
        self._works.clear()

    def check_invariants(self) -> None:
        """Assert that each queue with a position in memory has pops in flight, which will remove it; for tests."""
        for key, work in self._works.items():
            assert work.in_flight > 0, f"{key} is read from {work.next_offset} on, and {work.in_flight} pops in flight"

    @property
    def in_flight(self) -> int:
        """The number of queues that have pops in flight."""
        return len(self._works)

    def has_message(self, key: QueueOfGroup, *, at_end: bool, attempt: str | None, now_ms: int) -> bool:
        """Whether a group can pop a message from a queue now, whatever its tags."""
        place = self._begin(key, at_end=at_end, attempt=attempt, now_ms=now_ms)
        queue = self._store.get(key[1], key[2])
        if place is None or queue is None or self._is_hidden(queue.min_offset, place[1]):
            return False
        return max(place[1], queue.min_offset) < queue.max_offset

    def unread(self, group: str, topic: str, queue_ids: Iterable[int], *, at_end: bool) -> Iterator[int]:
        """Yield those of ``queue_ids`` in which `take` or `has_message` may find a message.

        With thousands of queues, nearly all are empty: this costs a sixth of examining each.
        """
        offset_of = self._metadata.consumer_offsets.get((group, topic), _NO_OFFSETS).get
        queue_of = self._store.get
        for queue_id in queue_ids:
            offset = offset_of(queue_id)
            if offset is None:
                if at_end:  # the group's first pop determines that position
                    yield queue_id
                    continue
                offset = FIRST_OFFSET
            queue = queue_of(topic, queue_id)
            if queue is not None and queue.max_offset > offset:
                yield queue_id

    def take(
        self,
        pop_request: PopRequest,
        topic: str,
        queue_id: int,
        count_max: int,
        bytes_max: int,
        *,
        may_wait_for_disk: bool = True,
    ) -> PopBatch | None:
        """Return the next messages of a queue, None without any. The first one may be larger than ``bytes_max``.

        Changes nothing: see `begin`. Raises RecordsOnDisk unless it may wait for the disk or they were loaded,
        SegmentError, StoreError, OSError, and RequestRefused for a damaged record that has to be parsed here.
        """
        key = pop_request.group, topic, queue_id
        of_retry = topic == pop_request.retry_topic
        place = self._begin(
            key, at_end=pop_request.at_end and not of_retry, attempt=pop_request.attempt, now_ms=pop_request.pop_time_ms
        )
        if place is None:
            return None
        before, begin = place
        queue = self._store.get(topic, queue_id)
        while queue is not None and begin < queue.max_offset:
            if begin < queue.min_offset:
                if self._is_hidden(queue.min_offset, begin):
                    return None  # until the replica that has these messages leads
                begin = queue.min_offset
            if begin == queue.max_offset:
                break
            try:
                is_retried = of_retry and topic != pop_request.topic
                subscription = EVERYTHING if is_retried else pop_request.subscription
                takes_all = subscription.all_tags and subscription.sql is None
                entries = queue.read(begin, count_max if takes_all else scanned_max(subscription, self._scan_limits))
                may_read = may_wait_for_disk or (topic, queue_id, begin) == pop_request.load_start
                if not may_read and (places := self._on_disk(entries, subscription, count_max, bytes_max)):
                    raise RecordsOnDisk(key, begin, places)
                if is_retried:
                    picks = self._pick_retried(entries, pop_request, bytes_max)
                else:
                    picks = self._pick(entries, subscription, count_max, bytes_max)
            except EntryGone as error:
                queue.expire(PhysicalOffset(error.first))  # the log was truncated, but this queue is not updated yet
                continue
            except QueueFileDamaged:
                return None  # until it is restored from the log; other queues do not wait for it
            return self._batch(pop_request, key, before, begin, picks, queue.max_offset)
        if before < 0 and pop_request.at_end and not of_retry:
            # From now on the group gets all new messages, however many there are at its next pop.
            nothing = PopMessages(
                group=pop_request.group, topic=topic, queue_id=queue_id, before=NO_OFFSET, next_offset=begin
            )
            return PopBatch(key, nothing, [], 0, 0, 0)
        return None

    def take_queued(
        self,
        pop_request: PopRequest,
        topic: str,
        queue_id: int,
        count_max: int,
        bytes_max: int,
        first_offset: QueueOffset,
        entries: bytes,
    ) -> PopBatch | None:
        """Return matching messages that were just framed. None if none matches, or if the group has not popped all
        earlier messages of the queue.

        ``entries`` are their consume queue entries, from ``first_offset`` on; the subscription decides by tags alone.
        Their records can be read when they are committed: see `with_records`. Changes nothing: see `begin`.
        """
        key = pop_request.group, topic, queue_id
        place = self._begin(key, at_end=False, attempt=None, now_ms=pop_request.pop_time_ms)
        if place is None or place[1] < first_offset:
            return None
        examined_max = min(scanned_max(pop_request.subscription, self._scan_limits), SPAN_MAX)
        begin = (place[1] - first_offset) * QUEUE_ENTRY_BYTES
        some = entries[begin : begin + examined_max * QUEUE_ENTRY_BYTES]
        places, nbytes, bits, scan_count = _choose(some, pop_request.subscription, count_max, bytes_max)
        if not bits:
            return None
        end = QueueOffset(first_offset + len(entries) // QUEUE_ENTRY_BYTES)
        batch = self._batch(pop_request, key, *place, ([], nbytes, bits, scan_count), end)
        return batch._replace(unread=tuple(places))

    def with_records(self, batch: PopBatch) -> PopBatch:
        """Return the batch with the records of its messages, which are read now. Raises SegmentError, OSError."""
        if not batch.unread:
            return batch
        return batch._replace(records=[self._records.read([*batch.unread], batch.nbytes)], unread=())

    def count_unpopped(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many messages of a queue a group has not popped yet. Pops in flight count as popped."""
        queue = self._store.get(topic, queue_id)
        if queue is None:
            return 0
        work = self._works.get((group, topic, queue_id))
        next_offset = self._metadata.consumer_offset(group, topic, queue_id) if work is None else work.next_offset
        return max(queue.max_offset - (FIRST_OFFSET if next_offset is None else next_offset), 0)

    def begin(self, batches: Iterable[PopBatch]) -> None:
        """Record pops that are about to be appended to the log: the next `take` continues after them."""
        for each in batches:
            work = self._works.get(each.key)
            if work is None:
                work = self._works[each.key] = _QueueWork()
            next_offset = each.command.next_offset
            before = each.command.before
            assert before <= next_offset, f"{each.key}: popped from {before} to {next_offset}"
            assert next_offset >= work.next_offset, f"{each.key}: popped up to {next_offset} after {work.next_offset}"
            work.in_flight += 1
            work.in_order |= _is_in_order(each)
            work.next_offset = each.command.next_offset

    def has_work(self, topic: str) -> bool:
        """Whether a pop of any group from a queue of this topic is in flight."""
        return any(key[1] == topic for key in self._works)

    def is_popped_again(self, key: QueueOfGroup) -> bool:
        """Whether a pop in flight takes the open messages of an ordered queue again."""
        work = self._works.get(key)
        return work is not None and work.in_order

    def end(self, batches: Iterable[PopBatch], outcome: Outcome) -> bool:
        """Record the outcome of pops in flight; return whether a queue that they blocked can be popped again."""
        freed = False
        for each in batches:
            work = self._works[each.key]
            work.in_flight -= 1
            assert work.in_flight >= 0, f"{each.key}: {work.in_flight} pops are in flight"
            offset = self._metadata.consumer_offset(*each.key)
            next_offset = each.command.start if _is_in_order(each) else each.command.next_offset
            if _is_in_order(each):
                self._ordered_clock.on_pop(each.key)
            if not isinstance(outcome, Stored) or offset is None or not next_offset <= offset <= work.next_offset:
                work.stale = True
            if not work.in_flight:
                freed |= work.stale
                del self._works[each.key]
        return freed

    def _begin(
        self, key: QueueOfGroup, *, at_end: bool, attempt: str | None, now_ms: int
    ) -> tuple[QueueOffset, QueueOffset] | None:
        """Return the group's offset, -1 for none, and where the pop begins. None if the group gets nothing now."""
        work = self._works.get(key)
        if work is not None:
            if work.stale or attempt is not None:
                return None
            return work.next_offset, work.next_offset
        open_of = self._metadata.pops.get(key)
        if attempt is not None:
            open_pop = open_of.ordered
            if open_pop is not None:
                wait_ms = self._ordered_clock.wait_ms(key, open_pop, now_ms)
                again = attempt != "" and attempt == open_pop.attempt
                if wait_ms > 0 and not again:
                    return None
                if self._has_acks_in_flight(key):
                    return None
        elif len(open_of.open) >= self._checkpoints_max:
            return None
        offset = self._metadata.consumer_offset(*key)
        if offset is not None:
            return offset, offset
        queue = self._store.get(key[1], key[2])
        if queue is None:
            return NO_OFFSET, FIRST_OFFSET
        has_messages = queue.max_offset > queue.min_offset
        if at_end and has_messages and not self._is_young(queue) and not self._metadata.younger_queues.has(*key):
            return NO_OFFSET, queue.max_offset - 1
        if self._is_hidden(queue.min_offset, FIRST_OFFSET):
            return None
        return NO_OFFSET, queue.min_offset

    def _on_disk(self, entries: bytes, subscription: Subscription, count_max: int, bytes_max: int) -> list[RecordSpan]:
        """Return the places of the records that `_pick` would read, if it would wait for the disk; else nothing."""
        first, _, _ = QUEUE_ENTRY.unpack_from(entries)
        last, size, _ = QUEUE_ENTRY.unpack_from(entries, -QUEUE_ENTRY_BYTES)
        if self._is_in_memory(first, last + size):
            return []
        if subscription.sql is not None:
            count_max, bytes_max = len(entries), SCAN_BYTES_MAX
        places, *_ = _choose(entries, subscription, count_max, bytes_max)
        return places

    def _pick(
        self, entries: bytes, subscription: Subscription, count_max: int, bytes_max: int
    ) -> tuple[list[bytes], int, int, int]:
        """Pick matching messages; returns records, bytes, a bitmap of the picked ones, and the number examined."""
        if subscription.sql is not None:
            spans = ((position, size) for position, size, _ in QUEUE_ENTRY.iter_unpack(entries))
            selection = self._records.select(spans, subscription.sql, count_max, bytes_max)
            return selection.records, selection.nbytes, selection.bits, selection.scan_count
        if subscription.all_tags:
            sizes = entry_sizes(entries)
            if (nbytes := sum(sizes)) <= bytes_max:
                return [self._records.read_entries(entries, nbytes)], nbytes, (1 << len(sizes)) - 1, len(sizes)
        places, nbytes, bits, scan_count = _choose(entries, subscription, count_max, bytes_max)
        return [self._records.read(places, nbytes)] if places else [], nbytes, bits, scan_count

    def _pick_retried(
        self, entries: bytes, pop_request: PopRequest, bytes_max: int
    ) -> tuple[list[bytes], int, int, int]:
        """Works like `_pick`; the records are unchanged ones of the retry topic."""
        places, *_ = _choose(entries, EVERYTHING, len(entries), bytes_max)
        records: list[bytes] = []
        bits = 0
        for number, record in enumerate(self._read_each(places)):
            try:
                message = decode_record(memoryview(record))
            except RecordError as error:
                if number:
                    del places[number:]  # return the messages before it without waiting
                    break
                remark = f"the message at byte {places[number][0]} of the log cannot be read here: {error}"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark) from error
            # Different names of groups and topics can result in one name of a retry topic.
            if message.properties.get(props.ORIGIN_GROUP, pop_request.group) == pop_request.group:
                records.append(bytes(record))
                bits |= 1 << number
        assert bits.bit_count() == len(records), f"{len(records)} of {len(places)} messages are taken, bits {bits:#x}"
        return records, sum(map(len, records)), bits, len(places)

    def _batch(
        self,
        pop_request: PopRequest,
        key: QueueOfGroup,
        before: QueueOffset,
        begin: QueueOffset,
        picks: tuple[list[bytes], int, int, int],
        end: QueueOffset,
    ) -> PopBatch:
        records, nbytes, bits, scan_count = picks
        group, topic, queue_id = key
        next_offset = begin + scan_count
        assert begin <= next_offset <= end, f"{key}: {scan_count} messages from {begin} on, and the queue ends at {end}"
        assert bits.bit_length() <= scan_count, f"{key}: {bits:#x} are popped of {scan_count} messages"
        rest = end - next_offset
        if not bits:
            command = PopMessages(group=group, topic=topic, queue_id=queue_id, before=before, next_offset=next_offset)
            return PopBatch(key, command, [], 0, 0, rest)
        shift = lowest_bit(bits)
        command = PopMessages(
            group=group,
            topic=topic,
            queue_id=queue_id,
            before=before,
            next_offset=next_offset,
            start=begin + shift,
            pop_time_ms=pop_request.pop_time_ms,
            invisible_ms=pop_request.invisible_ms,
            taken=bits >> shift,
            attempt=pop_request.attempt,
        )
        if topic != pop_request.topic:
            records = [self._rename(record, pop_request, command) for record in records]
            nbytes = sum(map(len, records))
        return PopBatch(key, command, records, nbytes, bits.bit_count(), rest)

    def _rename(self, record: bytes, pop_request: PopRequest, command: PopMessages) -> bytes:
        """Return a record of the retry topic as the client gets it: with the topic of the pop, and a receipt.

        Unchanged if its properties leave no room for a receipt. Then the name of its topic tells the client which part
        of the answer's header to build the receipt from.
        """
        message = decode_record(memoryview(record))
        receipt = Receipt(
            command.start,
            command.pop_time_ms,
            command.invisible_ms,
            pop_request.revive_queue,
            RETRY,
            self._broker_name,
            message.queue_id,
            message.queue_offset,
        )
        properties = props.encode(message.properties | {props.POP_CK: receipt.encode()})
        if len(properties.encode()) > props.PROPERTIES_BYTES_MAX:
            return record
        return encode_message(message, pop_request.topic, message.queue_id, properties)


def _choose(
    entries: bytes, subscription: Subscription, count_max: int, bytes_max: int
) -> tuple[list[RecordSpan], int, int, int]:
    """Choose messages by tag code; returns their places, their bytes, a bitmap, and the number examined."""
    places: list[RecordSpan] = []
    nbytes = bits = scan_count = 0
    for position, size, code in QUEUE_ENTRY.iter_unpack(entries):
        if subscription.matches_code(code):
            if len(places) == count_max or (places and nbytes + size > bytes_max):
                break
            places.append((position, size))
            nbytes += size
            bits |= 1 << scan_count
        scan_count += 1
    assert bits.bit_count() == len(places), f"{len(places)} of {scan_count} messages match, by bits {bits:#x}"
    return places, nbytes, bits, scan_count


def _is_in_order(batch: PopBatch) -> bool:
    return batch.command.attempt is not None and batch.messages > 0
