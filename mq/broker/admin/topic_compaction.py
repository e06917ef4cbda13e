"""Compacts topics: the leader copies the newest message of each key to the queue's end, and lets old messages expire.

Theory of operation. A queue is compacted from its beginning. When its oldest messages are old enough to be deleted, the
leader looks at each: if its queue has a newer one with the same key, or it is a tombstone that was kept for long
enough, it is left to expire. Otherwise it is *carried*: the leader appends a copy at the end of the queue, as an
ordinary message. Some time later, `_LINGER_SECONDS`, the queue begins behind the messages that were looked at, by the
same command as for topics that keep their messages for less time (`mq.broker.state.expired_messages`).

So everything is in the log: replicas, snapshots, backups, archives and readers need to know nothing of it. What a copy
must never do is to follow a newer message with its key. The leader knows the keys of all messages that are applied; for
those on their way it *holds* sends to the queue (`mq.broker.produce.compacted_topics`) and appends a command, the
*barrier*: when that is applied, so is everything before it. If nothing else has come into the queue meanwhile, it
appends the copies, and serves the held sends behind them.

Messages are old after the hours of their topic. If the log is too large, or the disk too full, messages that keep files
from being deleted expire earlier, but none before `_PRESSED_HOURS`: if the newest messages alone are too many, carrying
them again and again frees nothing.

The files of the log stay, on each replica, from the first message of each compacted queue on; see
`mq.broker.retention_floor.KeptMessages`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mq.broker.admin.newest_keys import NewestKeys, compaction_facts, hash_of
from mq.broker.admin.topic_expiry import without_hidden
from mq.broker.base.message_times import old_until
from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.produce.compacted_topics import CompactedTopics
from mq.broker.schedule.due_records import DueRecords
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import encode_command
from mq.broker.state.expired_messages import ExpireMessages
from mq.broker.state.format_level import LEVEL_OF_COMPACTION
from mq.broker.write_path.outcome import Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingGroup
from mq.broker.write_path.queue_tails import QueueTail
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.messages.records import RawRecord, RecordError, split_record
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.protocol.properties import PROPERTIES_BYTES_MAX
from mq.protocol.requests.compaction_attributes import delete_retention_ms, is_compacted
from mq.protocol.requests.retention_attributes import reserve_hours
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from mq.store.queue_store import QueueKey
from raftlog.segment import SegmentError

_STEP_SECONDS = 0.02
_STEP_MESSAGES = 200
"""Messages that one step reads: some milliseconds."""
_BARRIER_MESSAGES_MAX = 2000
"""Messages that may be learned at once when the barrier is applied."""
_CARRIED_AT_ONCE = 64
_GROUP_BYTES_MAX = 256 * 1024
_LOOK_SECONDS = 10.0
_AGAIN_SECONDS = 5.0
"""After something could not be read or stored."""
_LINGER_SECONDS = 600.0
"""The time for which a message stays readable after its copy is stored: a reader that comes to it finds the value in
its place. If brokers keep messages for less time, that time is used.
"""
_PRESSED_HOURS: Final = 1
_HOUR_MS = 3_600_000
_NOT_COPIED: Final = tuple(
    f"{name}{props.NAME_END}".encode()
    for name in (props.SEQUENCE, props.PRODUCER_ID, props.OMITTED, props.POP_CK, props.CARRIED)
)
"""Properties that are about another record, or written anew."""
_CARRIED: Final = f"{props.CARRIED}{props.NAME_END}".encode()


@dataclass(slots=True, eq=False)
class _CompactedQueue:
    """The compaction state of one queue, on the leader.

    Attributes:
        learned_end: messages before this offset are in ``keys``.
        checked_end: messages before this offset are carried, or need not be.
        look_times: times, and the messages looked at up to then.
        due: messages before this offset have lingered, and are deleted next.
        expires_at: none goes before this time.
        again_at: nothing is done before this time.
    """

    key: QueueKey
    queue: ConsumeQueue
    learned_end: QueueOffset
    checked_end: QueueOffset
    keys: NewestKeys = field(default_factory=NewestKeys)
    look_times: deque[tuple[float, QueueOffset]] = field(default_factory=deque)
    due: QueueOffset = FIRST_OFFSET
    expires_at: float = float("-inf")
    again_at: float = float("-inf")


_Old = list[tuple[QueueOffset, bytes, RawRecord]]
"""Messages that may have to be carried: offset, hash of the key, and the record."""


class TopicCompaction(Service):
    """Compacts topics while this replica leads, as described above.

    Args:
        sends: holds sends to compacted topics.
        leased_pos: physical offset from which on readers have leases.
        now_ms: the time by which messages are old; see `mq.broker.base.retention.Retention.plausible_ms`.
        wished_pos: the log would be deleted up to here, if there were no compacted topics.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        sends: CompactedTopics,
        leased_pos: Callable[[], PhysicalOffset],
        now_ms: Callable[[], int],
        wished_pos: Callable[[], PhysicalOffset],
    ) -> None:
        self._metadata, self._store, self._appender = context.metadata, context.store, context.appender
        self._segment_log, self._tails = context.replica.log, context.queue_tails
        self._sends = sends
        self._leased_pos, self._now_ms, self._wished_pos = leased_pos, now_ms, wished_pos
        self._wall_clock_ms, self._clock = context.wall_clock_ms, context.clock
        self._records = DueRecords(context.replica.log, context.environment.in_background)
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._has_tiers = context.settings.has_tiers
        self._group_bytes_max = min(_GROUP_BYTES_MAX, context.appender.entry_bytes_max)
        self._queues: dict[QueueKey, _CompactedQueue] = {}
        self._topics: dict[str, int | None] | None = None
        """Compacted topics, and the hours after which their messages are old; None if that has to be found out."""
        self._places: dict[int | None, PhysicalOffset] = {}
        self._look_at = float("-inf")
        self._in_flight = self._is_busy = False
        self._leadership = object()
        self.settings_changed(context.settings)
        self.carried_count = self.expired_count = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_STEP_SECONDS, self.run, self._rests_until)

    def counters(self) -> dict[str, int]:
        """Return the numbers of keys, and of messages carried and expired since this replica leads."""
        return {
            "compacted_keys": sum(len(each.keys) for each in self._queues.values()),
            "compacted_messages_carried": self.carried_count,
            "compacted_messages_expired": self.expired_count,
            "compacted_messages_unread": sum(
                max(each.queue.max_offset - each.learned_end, 0) for each in self._queues.values()
            ),
        }

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._retention_hours = settings.retention_hours
        self._sends.keys_max = settings.compacted_keys_max

    def topic_changed(self, topic: str) -> None:
        self._topics = None
        self._look_at = float("-inf")
        for key in [key for key in self._queues if key[0] == topic and not self._is_kept(topic)]:
            del self._queues[key]

    def topic_deleted(self, topic: str) -> None:
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]

    def resign(self) -> None:
        self._leadership = object()
        self._in_flight = self._is_busy = False
        self._queues, self._topics, self._places = {}, None, {}
        self._look_at = float("-inf")
        self._sends.is_full = False

    def check_invariants(self) -> None:
        if self._appender.is_idle:
            assert not self._in_flight, "messages are carried, and nothing is pending"
        for each in self._queues.values():
            assert each.checked_end <= each.queue.max_offset, f"{each.key}: {each.checked_end} of {each.queue}"

    def _rests_until(self) -> float:
        return now_if(self._is_busy and self._appender.is_open)

    def run(self) -> None:
        """Do the next compaction step of one queue. A timer calls this."""
        if not self._appender.is_open or self._waits():
            return
        if self._metadata.format_level.level < LEVEL_OF_COMPACTION:
            return  # topics may have the attribute already
        if self._topics is None:
            configs = self._metadata.topics.items()
            self._topics = {name: reserve_hours(config.attributes) for name, config in configs if self._is_kept(name)}
        self._is_busy = False
        if not self._topics or not self._appender.has_room:
            return
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + _LOOK_SECONDS
            self._find_work()
        for each in list(self._queues.values()):
            self._is_busy |= self._step(each)
            if self._waits():
                break

    def _waits(self) -> bool:
        return self._in_flight or self._records.is_loading

    def _is_kept(self, topic: str) -> bool:
        config = self._metadata.topics.get(topic)
        return (
            config is not None
            and is_compacted(config.attributes)
            and not self._has_tiers
            and self._metadata.format_level.level >= LEVEL_OF_COMPACTION
        )

    def _find_work(self) -> None:
        """Find new queues, and messages that are old enough to be deleted."""
        topics = self._topics or {}
        for topic in topics:
            for queue_id in self._store.ends(topic):
                self._current((topic, queue_id))
        now_ms = self._now_ms()
        for hours in {*topics.values(), _PRESSED_HOURS}:
            with suppress(SegmentError, OSError):
                age_ms = self._retention_hours if hours is None else min(hours, self._retention_hours)
                place = old_until(self._segment_log, now_ms - round(age_ms * _HOUR_MS))
                self._places[hours] = LOG_BEGIN if place is None else place
        self._sends.is_full = sum(len(each.keys) for each in self._queues.values()) >= self._sends.keys_max

    def _current(self, key: QueueKey) -> _CompactedQueue | None:
        """Return the compaction state of a queue; a new one if the topic was created again."""
        queue, entry = self._store.get(*key), self._queues.get(key)
        if queue is None:
            self._queues.pop(key, None)
            return None
        if entry is None or entry.queue is not queue:
            entry = self._queues[key] = _CompactedQueue(key, queue, queue.min_offset, queue.min_offset)
        entry.checked_end = max(entry.checked_end, queue.min_offset)
        entry.learned_end = max(entry.learned_end, queue.min_offset)
        return entry

    def _step(self, entry: _CompactedQueue) -> bool:
        """Do one step for a queue, and return whether there is more to do soon."""
        if self._clock() < entry.again_at or self._current(entry.key) is not entry:
            return False
        try:
            if entry.learned_end < entry.queue.max_offset:
                return self._learn(entry, _STEP_MESSAGES)
            return self._expire(entry) or self._look_at_old(entry)
        except (SegmentError, StoreError, RecordError, OSError) as error:
            entry.again_at = self._clock() + _AGAIN_SECONDS
            topic, queue_id = entry.key
            self._log.warning("compaction_paused", topic=topic, queue_id=queue_id, error=str(error))
            return False

    def _read(self, queue: ConsumeQueue, offset: QueueOffset) -> bytes | None:
        """Return a record; None if it is being loaded. Raises SegmentError, StoreError, OSError."""
        position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        if self._records.is_loading:
            return None
        if not self._records.may_read(queue, offset, position, size):
            self._records.load(queue, offset, self._on_load)
            return None
        return self._segment_log.pread(position, size)

    def _on_load(self) -> None:
        if self._appender.is_open:
            self.run()

    def _learn(self, entry: _CompactedQueue, count_max: int) -> bool:
        """Read the keys of the next messages, and return whether there may be more. Raises as `_read`; RecordError."""
        end = min(entry.learned_end + count_max, entry.queue.max_offset)
        while entry.learned_end < end:
            record = self._read(entry.queue, entry.learned_end)
            if record is None:
                return True
            key = hash_of(record)
            if key is not None:
                entry.keys.learn(key, entry.learned_end)
            entry.learned_end = QueueOffset(entry.learned_end + 1)
        return True

    # -- carrying ------------------------------------------------------------------------------------------------------

    def _look_at_old(self, entry: _CompactedQueue) -> bool:
        """Examine the next old messages, and return whether there are any. Raises as `_learn`."""
        own = self._places.get((self._topics or {}).get(entry.key[0]), LOG_BEGIN)
        place = max(own, min(self._wished_pos(), self._places.get(_PRESSED_HOURS, LOG_BEGIN)))
        end = entry.queue.first_from(place)
        if entry.checked_end >= end:
            return False
        config = self._metadata.topics.get(entry.key[0])
        tombstones_until_ms = self._now_ms() - delete_retention_ms({} if config is None else config.attributes)
        old: _Old = []
        offset, nbytes = entry.checked_end, 0
        for _ in range(_STEP_MESSAGES):
            if offset >= end or len(old) == _CARRIED_AT_ONCE:
                break
            data = self._read(entry.queue, offset)
            if data is None:
                break
            key = hash_of(data)
            if key is not None and entry.keys.is_newest(key, offset):
                record = split_record(data)
                is_tombstone, stored_ms = compaction_facts(record)
                if is_tombstone and stored_ms < tombstones_until_ms:
                    entry.keys.forget(key, offset)
                else:
                    nbytes += len(data) + len(_CARRIED) + 64
                    if old and nbytes > self._group_bytes_max:
                        break
                    old.append((offset, key, record))
            offset = QueueOffset(offset + 1)
        if old:
            self._await_barrier(entry, old, offset)
        else:
            self._looked_at(entry, offset)
        return True

    def _looked_at(self, entry: _CompactedQueue, end: QueueOffset) -> None:
        """Record that messages before ``end`` are no longer needed, so that they expire after a while."""
        assert entry.checked_end <= end, f"{entry.key}: looked at {entry.checked_end} messages before, at {end} now"
        entry.checked_end = end
        now = self._clock()
        if entry.look_times and now - entry.look_times[-1][0] < _LINGER_SECONDS / 10 and len(entry.look_times) > 1:
            entry.look_times[-1] = now, end
        else:
            entry.look_times.append((now, end))

    def _await_barrier(self, entry: _CompactedQueue, old: _Old, end: QueueOffset) -> None:
        assert old, f"{entry.key}: nothing is to be carried before {end}"
        assert not self._in_flight, f"{entry.key}: something else is carried"
        leadership, (topic, queue_id) = self._leadership, entry.key
        deletions = self._tails.deletions_asked[topic]
        self._sends.hold(entry.key)
        self._in_flight = True

        def on_apply(outcome: Outcome) -> None:
            if leadership is not self._leadership:
                return
            self._in_flight = False
            try:
                if isinstance(outcome, Stored) and deletions == self._tails.deletions_asked[topic]:
                    self._carry(entry, old, end)
                else:
                    entry.again_at = self._clock() + _AGAIN_SECONDS
            finally:
                self._sends.release(entry.key)

        # This changes nothing.
        nothing = ExpireMessages(rows=[(topic, queue_id, entry.queue.min_offset)])
        self._appender.add_command(encode_command(nothing), on_apply)

    def _carry(self, entry: _CompactedQueue, old: _Old, end: QueueOffset) -> None:
        """Append copies of those old messages that are still the newest of their keys."""
        assert old[-1][0] < end, f"{entry.key}: the message at {old[-1][0]} is not before {end}"
        if self._current(entry.key) is not entry or not self._is_kept(entry.key[0]) or not self._has_caught_up(entry):
            return
        tail = self._tails.get(*entry.key)
        if tail.next_offset != entry.queue.max_offset or self._appender.adds_to(tail):
            return  # a delayed message or the like is on its way
        newest = [(offset, record) for offset, key, record in old if entry.keys.is_newest(key, offset)]
        if not newest:
            self._looked_at(entry, end)
            return
        leadership = self._leadership

        def finish(outcome: Outcome) -> None:
            if leadership is not self._leadership:
                return
            self._in_flight = False
            if isinstance(outcome, Stored):
                self.carried_count += len(newest)
                if self._queues.get(entry.key) is entry:
                    self._looked_at(entry, end)
            else:
                entry.again_at = self._clock() + _AGAIN_SECONDS

        group: PendingGroup = [_copy(record, offset, tail) for offset, record in newest]
        last = group[-1]
        assert isinstance(last, InternalRecord), f"{last} is the copy of a message"
        last.on_outcome = finish
        self._in_flight = True
        self._appender.add_atomically(group)

    def _has_caught_up(self, entry: _CompactedQueue) -> bool:
        """Read the keys of newly applied messages. Returns False if that would take too long."""
        assert entry.learned_end <= entry.queue.max_offset, (
            f"{entry.key}: {entry.learned_end} messages are learned of {entry.queue}"
        )
        if entry.queue.max_offset - entry.learned_end > _BARRIER_MESSAGES_MAX:
            return False
        with suppress(SegmentError, StoreError, RecordError, OSError):
            self._learn(entry, _BARRIER_MESSAGES_MAX)
        return entry.learned_end == entry.queue.max_offset

    # -- expiry --------------------------------------------------------------------------------------------------------

    def _expire(self, entry: _CompactedQueue) -> bool:
        """Append the expiry of messages that are no longer needed. Returns whether one was appended."""
        assert not self._in_flight, f"{entry.key}: something else is carried"
        now = self._clock()
        linger_seconds = min(_LINGER_SECONDS, self._retention_hours * _HOUR_MS / 1000)
        while entry.look_times and entry.look_times[0][0] + linger_seconds <= now:
            entry.due = max(entry.due, entry.look_times.popleft()[1])
        if entry.due <= entry.queue.min_offset or now < entry.expires_at:
            return False
        end = min(entry.due, entry.queue.first_from(self._leased_pos()))
        rows = without_hidden([(*entry.key, end)], self._metadata, self._store, self._wall_clock_ms())
        if not rows or rows[0][2] < entry.due:  # the rest has to wait for readers
            entry.expires_at = now + _AGAIN_SECONDS
        if not rows:
            return False
        leadership, count = self._leadership, rows[0][2] - entry.queue.min_offset

        def finish(outcome: Outcome) -> None:
            if leadership is self._leadership:
                self._in_flight = False
                if isinstance(outcome, Stored):
                    self.expired_count += count
                else:
                    entry.expires_at = self._clock() + _AGAIN_SECONDS

        self._in_flight = True
        self._appender.add_command(encode_command(ExpireMessages(rows=rows)), finish)
        return True


def _copy(record: RawRecord, offset: QueueOffset, tail: QueueTail) -> InternalRecord:
    """Copy a message to the end of its queue. The copy has its properties, and names its offset and store time."""
    # Clients may have sent anything as the place and the time: the time is never later than the store time.
    text = props.find(record.properties.decode("utf-8", "replace"), props.CARRIED) or ""
    original = text.partition(" ")[0]
    if not (original.isascii() and original.isdigit() and len(original) <= 18):
        original = str(offset)
    each = [part for part in record.properties.split(b"\x02") if part and not part.startswith(_NOT_COPIED)]
    each.append(_CARRIED + f"{original} {compaction_facts(record).stored_ms}".encode())
    properties = b"".join(part + b"\x02" for part in each)
    if len(properties) > PROPERTIES_BYTES_MAX:
        properties = record.properties
    return copy_record(record, tail, properties, transaction=0)
