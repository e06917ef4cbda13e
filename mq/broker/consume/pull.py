"""PULL_MESSAGE (codes 11 and 361): returns committed records from the log, or holds the pull until there are some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, islice
from typing import Final, NamedTuple

from mq.broker.base.archived_reads import ArchivedNotLoaded
from mq.broker.base.periodic_task import Periodic
from mq.broker.consume.cold_reads import ColdReads
from mq.broker.consume.follower_reads import FollowerReads
from mq.broker.consume.long_polling import ANSWERED_AT_ONCE, LongPolling
from mq.broker.consume.offsets import Offsets
from mq.broker.consume.record_reader import RecordReader, RecordSpan, Selection
from mq.broker.consume.subscriptions import Subscriptions, scanned_max
from mq.broker.context import BrokerContext
from mq.broker.limits import ConsumeLimits
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import TopicConfig
from mq.filter.programs import CLASS_FILTER
from mq.filter.subscription import Subscription
from mq.protocol.broker_ids import LEADER_ID
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.protocol.requests.pull import LitePullMessage, PullExt, PullMessage
from mq.protocol.wire.encoding import pull_response_header
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, entry_sizes
from mq.store.errors import QueueFileDamaged
from raftlog.segment import EntryGone, StorageCorrupt

COMMIT_OFFSET, SUSPEND, LITE_PULL = 1, 2, 16
FILTERED_MESSAGES_MAX: Final = 512
FILTERED_BYTES_MAX: Final = 512 * 1024
"""Messages and their bytes per pull of a filter server, if the settings do not allow more."""
_READABLE = 4
_SUSPEND_SECONDS_MAX = 60.0
_DRAIN_SECONDS = 0.05
_ELSEWHERE_SECONDS = 0.1
"""A pull of messages that only another replica has waits this long before its client is sent there."""
_ARCHIVED_BYTES_MAX = 8 * 1024 * 1024
"""Messages for one pull are loaded from a part of the archive of about this size."""

PullRequest = PullMessage | LitePullMessage


class HeldPull(NamedTuple):
    """A waiting pull. It continues when a message arrives or its deadline passes.

    ``offset`` is the requested one, or further on if no message up to there matched. ``deadline`` is the monotonic time
    in seconds until which it may be held, 0 if it was not held yet. ``is_loaded`` says that old messages were loaded
    for it, ``has_waited`` that it waited for a damaged queue file to be restored.
    """

    call: Call[PullRequest]
    subscription: Subscription
    offset: QueueOffset
    deadline: float = 0.0
    is_loaded: bool = False
    has_waited: bool = False

    def matches(self, code: int) -> bool:
        """Return whether a message with this tag code may match."""
        return self.subscription.matches_code(code)

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of memory for the request's long texts and their parsed form."""
        ext = self.call.request.ext
        nbytes = len(ext.consumer_group) + len(ext.subscription or "") + len(ext.expression_type or "")
        return nbytes + self.subscription.parsed_bytes


class Pulls(Service):
    """Answers pulls, and holds those for which there is no message yet.

    Args:
        cold_reads: loads old messages before they are read.
        offsets: takes the commit in a pull, is notified of each served pull, and knows resets that move a consumer.

    Attributes:
        polling: pulls that wait for a message.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        subscriptions: Subscriptions,
        follower_reads: FollowerReads,
        cold_reads: ColdReads,
        offsets: Offsets,
    ) -> None:
        self._settings = context.settings
        self._limits = context.limits.consume
        self._unread_bytes_max = context.limits.consume.unread_bytes_max
        self._metadata = context.metadata
        self._store = context.store
        self._subscriptions = subscriptions
        self._follower_reads = follower_reads
        self.polling: LongPolling[HeldPull] = LongPolling(
            held_max=context.settings.long_polls_max, held_bytes_max=context.settings.long_poll_bytes_max
        )
        self._records = RecordReader(
            partial(context.records.pread, trusts_page_cache=True),
            context.records.pread_each,
            context.settings.segment_bytes,
        )
        self._cold_reads = cold_reads
        self._segment_log = context.replica.log
        self._has_archive = context.archived_reads is not None
        self._store_offset = offsets.commit
        self._reset_to = offsets.reset_to
        self._record_pull = offsets.record_pull
        self._confirm = context.reads.read_once
        self._appender = context.appender
        self._beginning = context.beginning
        self._count_got = context.traffic.count_got
        self._quotas = context.quotas
        self._misses = context.traffic.misses
        self._clock = context.clock
        context.store.watched = self.polling.queue_keys
        self._reactor = context.reactor
        self._woken: deque[Iterator[HeldPull]] = deque()
        """A message has come for them, which they get in the next turns."""
        self._is_turn_planned = False

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use changed settings, among them the number of messages in a response."""
        self._settings = settings

    def routes(self) -> Iterator[Route]:
        yield Route(PullMessage, self.handle)
        yield Route(LitePullMessage, self.handle)

    def connection_closed(self, connection: ClientConnection) -> None:
        """Drop the held pulls of a closed connection."""
        self.polling.drop_connection(connection)

    def member_removed(self, group: str, client_id: str, connections: Iterable[ClientConnection]) -> None:
        """Answer the waiting pulls of a removed member."""
        for connection in connections:
            for pull in self.polling.take_connection(
                connection, lambda pull: pull.call.request.ext.consumer_group == group
            ):
                self.resume(pull)

    def topic_deleted(self, topic: str) -> None:
        """Refuse the waiting pulls of a deleted topic, so that their clients look up the topic again."""
        for pull in self.polling.take_topic(topic):
            self.resume(pull)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._limits.expire_seconds, self.expire, self.polling.next_deadline)

    def check_invariants(self) -> None:
        self.polling.check_invariants()
        assert not self._woken or self._is_turn_planned, (
            f"{len(self._woken)} queues have grown, and no turn is planned that answers their pulls"
        )
        self._cold_reads.check_invariants()

    def counters(self) -> dict[str, int]:
        """Return the number of waiting pulls, and the bytes of their memory."""
        return {"held_pulls": len(self.polling), "held_bytes": self.polling.nbytes}

    def on_new_messages(self, topic: str, queue_id: int, entries: bytes | bytearray) -> None:
        """Answer the pulls that wait for a queue's new messages. Does so over several turns if there are many."""
        key = topic, queue_id
        if self.polling.count_at(key) <= ANSWERED_AT_ONCE and not self._woken:
            for pull in self.polling.wake(key, entries):
                self.resume(pull)
            return
        self._woken.append(self.polling.take_satisfied(key, entries))
        if not self._is_turn_planned:
            until = self._clock() + self._limits.expire_seconds_max
            self._answer_woken(lambda: self._clock() >= until)

    def _answer_woken(self, is_enough: Callable[[], bool]) -> None:
        self._is_turn_planned = False
        while self._woken:
            some = list(islice(self._woken[0], ANSWERED_AT_ONCE))
            for pull in some:
                self.resume(pull)
            if len(some) < ANSWERED_AT_ONCE:
                self._woken.popleft()
            if self._woken and is_enough():
                self._is_turn_planned = True
                self._reactor.go_on_later(partial(self._answer_woken, self._reactor.share_used))
                return

    def expire(self) -> None:
        """Answer pulls whose deadline has passed. A timer calls this."""
        # Clients that do not read answers may send tens of thousands of them again and again.
        for pull in self.polling.take_expired_for(self._limits.expire_seconds_max, self._clock):
            self.resume(pull)

    def handle(self, call: Call[PullRequest]) -> bytes | None:
        """Request codes 11 and 361: answer a pull, or hold it. Raises RequestRefused."""
        ext = call.request.ext
        subscription = self._check_pull(call.connection, ext)
        call.drop_body()
        pull = HeldPull(call, subscription, ext.queue_offset)
        place = ext.consumer_group, ext.topic, ext.queue_id
        if ext.sys_flag & COMMIT_OFFSET and ext.commit_offset >= 0:
            self._store_offset(call.connection, *place, ext.commit_offset)
        if self._metadata.offset_resets and (target := self._reset_to(*place, ext.queue_offset)) is not None:
            return self._moved_response(pull, target)
        self._record_pull(call.connection, *place, ext.queue_offset, ext.forward_only)
        queue = self._store.get(ext.topic, ext.queue_id)
        if ext.queue_offset <= (0 if queue is None else queue.max_offset):
            return self._serve(pull, queue, may_hold=True)

        def on_confirm(end_confirmed: bool) -> None:
            if not call.connection.closed:
                self._answer(pull, may_hold=True, end_confirmed=end_confirmed)

        # The message may still arrive here; a consumer that is sent back would get everything again.
        self._confirm(on_confirm)
        return None

    def resume(self, pull: HeldPull) -> None:
        """Answer a held pull with the messages that have arrived, if any."""
        connection = pull.call.connection
        connection.held_pulls -= 1
        assert connection.held_pulls >= 0, f"{connection.held_pulls} requests of a client are held"
        if not connection.closed:
            self._answer(pull, may_hold=False)

    def _moved_response(self, pull: HeldPull, next_offset: QueueOffset) -> bytes:
        queue = self._store.get(pull.call.request.ext.topic, pull.call.request.ext.queue_id)
        low, high = (FIRST_OFFSET, FIRST_OFFSET) if queue is None else (queue.min_offset, queue.max_offset)
        return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, next_offset, low, high, "OFFSET_RESET")

    def _answer(self, pull: HeldPull, *, may_hold: bool, end_confirmed: bool = False) -> None:
        try:
            ext = pull.call.request.ext
            self._check_topic(ext.topic)
            queue = self._store.get(ext.topic, ext.queue_id)
            response = self._serve(pull, queue, may_hold=may_hold, end_confirmed=end_confirmed)
        except Exception as error:
            # Called while entries are applied: a disk error must fail only this pull.
            pull.call.refuse(error)
            return
        if response is not None:
            pull.call.connection.send(response)

    def _check_topic(self, topic: str) -> TopicConfig:
        config = self._metadata.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic} does not exist")
        return config

    def _check_pull(self, connection: ClientConnection, ext: PullExt) -> Subscription:
        config = self._check_topic(ext.topic)
        if not config.perm & _READABLE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {ext.topic} is not readable")
        if self._metadata.forbidden and (ext.consumer_group, ext.topic) in self._metadata.forbidden:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{ext.consumer_group}] is forbidden for topic[{ext.topic}]",
            )
        if not 0 <= ext.queue_id < config.read_queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {ext.queue_id} is illegal, {ext.topic} has {config.read_queues} read queues",
            )
        return self._subscriptions.of_pull(connection, ext)

    def _serve(
        self, pull: HeldPull, queue: ConsumeQueue | None, *, may_hold: bool, end_confirmed: bool = False
    ) -> bytes | None:
        ext, offset = pull.call.request.ext, pull.offset
        low = FIRST_OFFSET if queue is None else queue.min_offset
        high = FIRST_OFFSET if queue is None else queue.max_offset
        if offset > high and not end_confirmed:
            pass
        elif queue is None or high == 0:
            if offset != 0:
                return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, FIRST_OFFSET, low, high, "NO_MESSAGE_IN_QUEUE")
        elif offset < low:
            return self._before_the_log(pull, offset, low, high)
        elif offset > high:
            return self._sent_back(pull, low, high)
        elif offset < high:
            if pull.call.connection.waiting_bytes < self._unread_bytes_max:
                try:
                    return self._found_response(pull, queue, offset, low, high)
                except QueueFileDamaged:
                    return self._while_restored(pull, offset, low, high)
            if self._hold(pull, self._clock() + _DRAIN_SECONDS):
                return None
            return self._empty(pull, ResponseCode.PULL_NOT_FOUND, offset, low, high, "CLIENT_READS_TOO_SLOWLY")
        if may_hold and ext.sys_flag & SUSPEND:
            seconds = min(max(ext.suspend_timeout_ms, 0) / 1000, _SUSPEND_SECONDS_MAX)
            deadline = self._clock() + seconds
            if self._hold(pull._replace(deadline=deadline), deadline):
                return None
        return self._empty(pull, ResponseCode.PULL_NOT_FOUND, offset, low, high, "OFFSET_OVERFLOW_ONE")

    def _sent_back(self, pull: HeldPull, low: QueueOffset, high: QueueOffset) -> bytes:
        """Answer a pull beyond the end: its client read another history of the queue, such as before a restore.

        A reader that wants its group's position continues at the group's offset, or at the first message: at the end it
        would skip messages that were written since. Others continue at the end. The leader decides, since pulls of
        other replicas do not say which of both a stock client is.
        """
        ext = pull.call.request.ext
        if not self._appender.is_open:
            offset = pull.offset
            return self._empty(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "OFFSET_OVERFLOW_BADLY")
        own_offset = self._metadata.consumer_offset(ext.consumer_group, ext.topic, ext.queue_id)
        target = high
        if ext.sys_flag & COMMIT_OFFSET or ext.forward_only:
            target = low if own_offset is None else own_offset
        elif own_offset is not None and (ext.sys_flag & LITE_PULL or isinstance(pull.call.request, LitePullMessage)):
            target = own_offset
        if target <= low and self._beginning.may_be_elsewhere(low, FIRST_OFFSET if own_offset is None else own_offset):
            other = self._follower_reads.older_replica()
            broker_id = LEADER_ID if other is None else other
            offset = pull.offset
            return self._empty(pull, ResponseCode.PULL_NOT_FOUND, offset, low, high, "LOG_BEGINS_LATER_HERE", broker_id)
        target = min(max(target, low), high)
        return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, target, low, high, "OFFSET_OVERFLOW_BADLY")

    def _before_the_log(self, pull: HeldPull, offset: QueueOffset, low: QueueOffset, high: QueueOffset) -> bytes | None:
        """Answer a pull of messages that this replica has deleted: they are gone, or another replica has them.

        In the latter case the client is sent there, after a moment, in case that it cannot follow and comes back.
        """
        if self._beginning.is_first:
            return self._empty(pull, ResponseCode.PULL_OFFSET_MOVED, low, low, high, "OFFSET_TOO_SMALL")
        if not pull.has_waited and self._hold(pull._replace(has_waited=True), self._clock() + _ELSEWHERE_SECONDS):
            return None
        self._beginning.refused_count += 1
        other = self._follower_reads.older_replica()
        if other is None and self._has_archive:  # another one may have the entries of the archived messages
            other = self._follower_reads.other_replica()
        if other is None:
            return self._empty(pull, ResponseCode.PULL_NOT_FOUND, offset, low, high, "LOG_BEGINS_LATER_HERE")
        return self._empty(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "LOG_BEGINS_LATER_HERE", other)

    def _while_restored(self, pull: HeldPull, offset: QueueOffset, low: QueueOffset, high: QueueOffset) -> bytes | None:
        """Answer a pull of a damaged queue block: hold it for a moment, then let the client try another replica."""
        if not pull.has_waited and self._hold(
            pull._replace(has_waited=True), self._clock() + self._limits.repair_seconds
        ):
            return None
        other = self._follower_reads.other_replica()
        broker_id = LEADER_ID if other is None else other
        return self._empty(
            pull, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "QUEUE_FILE_DAMAGED", broker_id
        )

    def _while_loaded(self, pull: HeldPull, offset: QueueOffset, low: QueueOffset, high: QueueOffset) -> bytes | None:
        """Answer a pull of archived messages that were not loaded in time: the client tries again in a moment."""
        if not pull.has_waited and self._hold(pull._replace(has_waited=True), self._clock() + _ELSEWHERE_SECONDS):
            return None
        return self._empty(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "BEING_LOADED_FROM_ARCHIVE")

    def _hold(self, pull: HeldPull, until: float) -> bool:
        if pull.call.connection.closed:
            return False
        ext = pull.call.request.ext
        key = ext.topic, ext.queue_id
        is_held = self.polling.hold(key, pull.offset, until, pull, pull.call.connection, pull.text_bytes)
        if is_held:
            pull.call.connection.held_pulls += 1
        return is_held

    def _found_response(
        self, pull: HeldPull, queue: ConsumeQueue, offset: QueueOffset, low: QueueOffset, high: QueueOffset
    ) -> bytes | None:
        ext = pull.call.request.ext
        subscription = pull.subscription
        takes_all = subscription.all_tags and subscription.sql is None
        # A filter server drops most of them, and each answer costs it more than their bytes.
        messages_max, bytes_max = self._settings.pull_messages_max, self._settings.pull_bytes_max
        if ext.sys_flag & CLASS_FILTER:
            messages_max = max(messages_max, FILTERED_MESSAGES_MAX)
            bytes_max = max(bytes_max, FILTERED_BYTES_MAX)
        most = max(1, min(ext.max_messages, messages_max))
        entries = queue.read(offset, most if takes_all else scanned_max(subscription, self._limits))
        first = QUEUE_ENTRY.unpack_from(entries)[0]
        lag = self._segment_log.end_pos - first
        lag_max = self._follower_reads.lag_max
        is_old = first < self._cold_reads.start_pos
        if lag <= lag_max:
            count_max, budget = most, bytes_max
        else:
            count_max, budget = self._follower_reads.slow_pull(most)
            is_old = True
        if self._has_archive and first < self._segment_log.base_pos:
            entries, is_old = _near(entries), True
            count_max, budget = most, bytes_max  # from memory, once they are loaded
        if ext.max_bytes is not None and 0 < ext.max_bytes < budget:
            budget = ext.max_bytes
        if is_old:
            if subscription.sql is not None:
                entries = _few(entries, self._limits)
            position, size, _ = QUEUE_ENTRY.unpack_from(entries, -QUEUE_ENTRY_BYTES)
            are_loaded = pull.is_loaded or self._cold_reads.are_loaded(first, position + size)
            if not are_loaded and self._load(pull, entries, count_max, budget):
                return None
        try:
            if subscription.sql is None:
                selection = self._pick(entries, subscription, count_max, budget)
            else:
                places = ((position, size) for position, size, _ in QUEUE_ENTRY.iter_unpack(entries))
                selection = self._records.select(places, subscription.sql, count_max, budget)
        except EntryGone as error:
            # The log was truncated, but this queue is not updated yet.
            low = queue.expire(PhysicalOffset(error.first))
            return self._before_the_log(pull, offset, low, high)
        except ArchivedNotLoaded:
            return self._while_loaded(pull, offset, low, high)
        except StorageCorrupt:
            # This replica is about to repair its log; another one has the message.
            position, size, _ = QUEUE_ENTRY.unpack_from(entries, -QUEUE_ENTRY_BYTES)
            other = self._follower_reads.other_replica(position + size)
            if other is None:
                raise
            return self._empty(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "DAMAGED_HERE", other)
        records, nbytes, scan_count, end, count, _ = selection
        next_offset = offset + scan_count
        assert next_offset <= high, f"{scan_count} messages from {offset} on, and the queue ends at {high}"
        if not records and pull.deadline and self._may_wait_on(pull, next_offset, high):
            return None
        broker_id = LEADER_ID
        if self._follower_reads.is_only_here(end):
            broker_id = self._follower_reads.own_id
        elif 2 * lag > lag_max:
            broker_id = self._follower_reads.suggest(ext.consumer_group, ext.topic, ext.queue_id, end, lag)
        code, status = ResponseCode.SUCCESS, "FOUND"
        if not records:
            code, status = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
            self._misses.nums += 1
        else:
            self._count_got(ext.topic, ext.consumer_group, count, nbytes)
            if self._quotas.on_consume is not None:
                self._quotas.on_consume(pull.call, count, nbytes)
        header = pull_response_header(
            pull.call.request.opaque, code, next_offset, low, high, broker_id, status, nbytes, pull.call.serialization
        )
        pull.call.connection.send_all([header, *records], len(header) + nbytes)
        return None

    def _load(self, pull: HeldPull, entries: bytes, count_max: int, budget: int) -> bool:
        """Load the messages of a pull, then resume it. Returns False if they can be read at once."""
        if pull.text_bytes > self._limits.old_text_bytes_max:
            return False
        subscription = pull.subscription
        if subscription.sql is None:
            places, *_ = _choose(entries, subscription, count_max, budget)
            if not places:
                return False
        else:
            places = [(position, size) for position, size, _ in QUEUE_ENTRY.iter_unpack(entries)]
        connection = pull.call.connection
        connection.held_pulls += 1
        if self._cold_reads.load(places, partial(self.resume, pull._replace(is_loaded=True))):
            return True
        connection.held_pulls -= 1
        return False

    def _may_wait_on(self, pull: HeldPull, next_offset: QueueOffset, high: QueueOffset) -> bool:
        """Hold a pull again if the new messages did not match. Returns whether it is held."""
        assert next_offset >= pull.offset, f"a held pull goes back from {pull.offset} to {next_offset}"
        is_due = pull.deadline <= self._clock()
        return next_offset == high and not is_due and self._hold(pull._replace(offset=next_offset), pull.deadline)

    def _pick(self, entries: bytes, subscription: Subscription, count_max: int, budget: int) -> Selection:
        """Select messages by tag code, and read their records in one piece."""
        if subscription.all_tags:
            sizes = entry_sizes(entries)
            count, nbytes = len(sizes), sum(sizes)
            if count <= count_max and nbytes <= budget:
                records = self._records.read_entries(entries, nbytes)
                position, size, _ = QUEUE_ENTRY.unpack_from(entries, -QUEUE_ENTRY_BYTES)
                return Selection([records], nbytes, count, position + size, count)
        places, nbytes, scan_count, end = _choose(entries, subscription, count_max, budget)
        return Selection([self._records.read(places, nbytes)] if places else [], nbytes, scan_count, end, len(places))

    def _empty(
        self,
        pull: HeldPull,
        code: ResponseCode,
        offset: QueueOffset,
        low: QueueOffset,
        high: QueueOffset,
        remark: str,
        broker_id: int = LEADER_ID,
    ) -> bytes:
        assert FIRST_OFFSET <= low <= high, f"{pull.call.request.ext.topic} has messages from {low} to {high}"
        self._misses.nums += 1
        return pull_response_header(
            pull.call.request.opaque, code, offset, low, high, broker_id, remark, 0, pull.call.serialization
        )


def _near(entries: bytes) -> bytes:
    """Return the first entries, at least one, whose messages lie within some megabytes of the archive."""
    stop = QUEUE_ENTRY.unpack_from(entries)[0] + _ARCHIVED_BYTES_MAX
    count = sum(position < stop for position, _, _ in QUEUE_ENTRY.iter_unpack(entries))
    return entries[: count * QUEUE_ENTRY_BYTES]


def _few(entries: bytes, limits: ConsumeLimits) -> bytes:
    """Return the first entries, at least one, whose messages are small enough to load."""
    entries = entries[: limits.old_scan_entries_max * QUEUE_ENTRY_BYTES]
    count = sum(nbytes <= limits.old_scan_bytes_max for nbytes in accumulate(entry_sizes(entries)))
    few = entries[: max(1, count) * QUEUE_ENTRY_BYTES]
    assert few, f"none of {len(entries)} bytes of consume queue entries are left"
    return few


def _choose(
    entries: bytes, subscription: Subscription, count_max: int, budget: int
) -> tuple[list[RecordSpan], int, int, PhysicalOffset]:
    """Select messages by tag code. Returns places, bytes, the number examined, and the end of the last message."""
    codes = subscription.codes
    places: list[RecordSpan] = []
    nbytes = scan_count = 0
    end = LOG_BEGIN
    for position, size, code in QUEUE_ENTRY.iter_unpack(entries):
        if not codes or code in codes:
            if len(places) == count_max or (places and nbytes + size > budget):
                break
            nbytes += size
            places.append((position, size))
        scan_count += 1
        end = position + size
    assert len(places) <= scan_count, f"{len(places)} of {scan_count} messages match"
    assert nbytes <= budget or len(places) == 1, f"{len(places)} messages have {nbytes} bytes; maximum: {budget}"
    return places, nbytes, scan_count, end
