"""POP consumption: consumers get messages that are invisible to others for a while (request codes 200050 to 200055).

Theory of operation. A pop takes messages from some queues. Commands that enter the log together record which: each adds
an open checkpoint and moves the group's offset (`mq.broker.state.pop_checkpoints`). The answer is sent when they are
committed; so every later leader knows which messages are popped, and until when. Acknowledgements remove messages from
their checkpoints (`mq.broker.pop.ack`). What is left when the invisible time ends is redelivered through the retry
topic (`mq.broker.pop.revive`), and delivered as if it came from the topic itself.

A pop that finds nothing waits like a pull, for any queue of its topic. It takes new messages as soon as they have their
place in the log, in the round that stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial

from mq.broker.base.periodic_task import Periodic
from mq.broker.consume.cold_reads import ColdReads
from mq.broker.consume.long_polling import QueueKey
from mq.broker.consume.record_reader import RecordReader
from mq.broker.consume.subscriptions import Subscriptions
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.pop.ack import PopAcks
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.pop.peek import Peeks
from mq.broker.pop.queue_cursor import EVERYTHING, INIT_AT_END, PopBatch, PopQueues, PopRequest, RecordsOnDisk
from mq.broker.pop.removed_members import take_pops_of
from mq.broker.pop.reply import HeldPop, nothing_found, notification, send_messages
from mq.broker.pop.revive import PopRevival
from mq.broker.pop.selection import LOADS_MAX, PopSelection
from mq.broker.pop.waiting_pops import ANY_QUEUE, WaitingPops, WatchedLite
from mq.broker.state.commands import encode_command
from mq.broker.state.pop_checkpoints import ATTEMPT_LENGTH_MAX, INVISIBLE_MS_MAX, CheckpointId, QueueOfGroup
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, Outcome, Stored, Unknown
from mq.broker.write_path.pending import PendingCommand, PendingGroup
from mq.protocol.codes import ResponseCode
from mq.protocol.names import is_lite_queue, pop_retry_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pop import Notification, PollingInfo, PollingInfoReply, PopExt, PopMessage
from mq.protocol.requests.receipts import ORDERED_REVIVE_QUEUE, REVIVE_QUEUE
from mq.store.built_runs import BuiltRun
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment import SegmentError

_PATIENCE_SECONDS = 3.0
"""A filtered pop continues its search for this long after its deadline."""
_EXPIRE_SECONDS = 0.02


class Pops(Service):
    """Handles pops and notifications; its parts handle peeks, acknowledgements and redelivery.

    Args:
        cold_reads: loads old messages before they are read.
        pulls_waiting: the queues that pulls wait for.
        is_young: whether a queue's first message exists and is fast to read.

    Attributes:
        polling: waiting pops.
        acks, revival: see their modules.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        subscriptions: Subscriptions,
        cold_reads: ColdReads,
        pulls_waiting: Container[QueueKey],
        is_young: Callable[[ConsumeQueue], bool],
    ) -> None:
        read = partial(context.records.pread, trusts_page_cache=True)
        read_each = context.records.pread_each
        self._limits = context.limits
        self._metadata, self._store, self._appender = context.metadata, context.store, context.appender
        self._subscriptions = subscriptions
        self._cold_reads = cold_reads
        self._count_got, self._quotas = context.traffic.count_got, context.quotas
        self._clock, self._wall_clock_ms = context.clock, context.wall_clock_ms
        self._on_lite_free: Callable[[QueueOfGroup], None] = lambda key: None
        self._leadership = object()
        self._read_bytes = 0
        self._ordered_clock = OrderedClock(context.clock)
        self.acks = PopAcks(
            metadata=context.metadata,
            store=context.store,
            appender=context.appender,
            schedule=lambda checkpoint_id: self.revival.schedule(checkpoint_id),
            on_free=self._on_free,
            is_popped_again=lambda key: self._queues.is_popped_again(key),
            ordered_clock=self._ordered_clock,
            is_hidden=context.beginning.may_be_elsewhere,
            wall_clock_ms=context.wall_clock_ms,
            limits=context.limits.pop,
        )
        self.revival = PopRevival(
            context,
            in_flight=lambda: self.acks.in_flight,
            woken=self.wake,
            on_free=self._on_free,
            ordered_clock=self._ordered_clock,
        )
        self._queues = PopQueues(
            metadata=context.metadata,
            store=context.store,
            records=RecordReader(read, read_each, context.settings.segment_bytes),
            read_each=read_each,
            is_in_memory=cold_reads.is_in_memory,
            is_young=is_young,
            is_hidden=context.beginning.may_be_elsewhere,
            has_acks_in_flight=lambda key: key in self.acks.in_flight.queues,
            ordered_clock=self._ordered_clock,
            broker_name=context.settings.group,
            limits=context.limits,
        )
        self._waiting_pops = WaitingPops(context, queues=self._queues, pulls_waiting=pulls_waiting)
        self.polling = self._waiting_pops.polling
        self._selection = PopSelection(context, queues=self._queues)
        self._peeks = Peeks(context, selection=self._selection, cold_reads=cold_reads)

    @property
    def queues(self) -> PopQueues:
        """The object that takes messages from queues."""
        return self._queues

    def attach_lite(self, on_free: Callable[[QueueOfGroup], None], lite_queues: WatchedLite) -> None:
        """Call ``on_free`` with each queue that its group may pop again, and watch ``lite_queues`` for new messages."""
        self._on_lite_free = on_free
        self._waiting_pops.watch_lite(lite_queues)

    def routes(self) -> Iterator[Route]:
        yield Route(PopMessage, self.handle_pop, leader_only=True, repeatable=True)
        yield Route(Notification, self.handle_notification, leader_only=True, repeatable=True)
        yield Route(PollingInfo, self.handle_polling_info, leader_only=True, repeatable=True)
        yield from self._peeks.routes()
        yield from self.acks.routes()

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.expire, self.polling.next_deadline)
        yield Periodic(self._limits.pop.revive_seconds, self.revival.run, self.revival.rests_until)

    def lead(self) -> None:
        """Start serving pops and redelivering messages, since this replica leads."""
        self._leadership = object()
        self._read_bytes = 0
        self._appender.on_queued, self._appender.awaited_queues = self._take_queued, self.polling.queue_keys
        self.revival.lead()

    def end_turn(self) -> None:
        """Append the acknowledgements of this turn to the log."""
        if self.acks.waiters or self.acks.in_flight.ready:
            self.acks.flush()

    def connection_closed(self, connection: ClientConnection) -> None:
        """Drop the held pops of a closed connection."""
        self.polling.drop_connection(connection)

    def member_removed(self, group: str, client_id: str, connections: Iterable[ClientConnection]) -> None:
        """Answer the waiting pops of a removed member without messages."""
        for pop in take_pops_of(self.polling, group, client_id, connections):
            self._answer_nothing(pop)

    def topic_deleted(self, topic: str) -> None:
        """Refuse the requests that wait for messages of a deleted topic. Their clients look up the topic again."""
        refusal = RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic} does not exist")
        for pop in self.polling.take_topic(topic):
            pop.call.connection.held_pulls -= 1
            pulls = pop.call.connection.held_pulls
            assert pulls >= 0, f"{pulls} requests of a client are held, {topic} was deleted"
            if not pop.call.connection.closed:
                pop.call.refuse(refusal)

    def resign(self) -> None:
        """Answer the waiting pops without messages, so that their clients look for the new leader."""
        self._leadership = object()
        self._queues.resign()
        self._selection.priorities.resign()
        self.acks.resign()
        self.revival.resign()
        self._ordered_clock.resign()
        for pop in self.polling.take_expired(float("inf")):
            pop.call.connection.held_pulls -= 1
            pulls = pop.call.connection.held_pulls
            assert pulls >= 0, f"{pulls} requests of a client are held, this replica stopped leading"
            self._answer_nothing(pop)
        self.watch()

    def check_invariants(self) -> None:
        self.polling.check_invariants()
        self.acks.check_invariants()
        self.revival.check_invariants()
        self._queues.check_invariants()
        assert self._read_bytes >= 0, f"messages of {self._read_bytes} bytes are being popped"
        if not self._appender.is_open:
            assert not len(self.polling), f"{len(self.polling)} pops wait, and this replica does not lead"
        if self._appender.is_open and self._appender.is_idle:
            in_flight = self._read_bytes, self._queues.in_flight
            assert in_flight == (0, 0), f"bytes and queues of pops are in flight: {in_flight}, and nothing is pending"

    def counters(self) -> dict[str, int]:
        """Return the numbers of waiting pops and open checkpoints, and of redelivered, lost and urgent messages."""
        return {
            "held_pops": len(self.polling),
            "held_bytes": self.polling.nbytes,
            "pop_checkpoints": self._metadata.pops.count,
            "pop_revived": self.revival.revive_count,
            "pop_lost": self.revival.loss_count,
            **self._selection.priorities.counters(),
        }

    # -- deadlines and new messages ------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Serve the waiting pops whose deadline has passed; called by a timer."""
        for pop in self.polling.take_expired_for(self._limits.consume.expire_seconds_max, self._clock):
            self._resume(pop)
        self.watch()

    def on_new_messages(self, topic: str, queue_id: int, entries: bytes | bytearray) -> None:
        """Serve pops that wait for messages of a queue; ``entries`` are its new consume queue entries of 20 bytes."""
        for pop in self._waiting_pops.wake(topic, queue_id, entries):
            self._resume(pop)

    def _take_queued(self, runs: list[BuiltRun]) -> None:
        """Serve waiting pops with messages of an entry that was just framed.

        Their commands are in the next entry, of the same round: both are written, synced and committed together. So a
        consumer that waits gets a message in the turn in which its producer is answered. If only the first one of both
        entries is committed, the messages are in their queues, and no group has taken them.
        """
        for end, first_offset, _, entries in runs:
            queue = end.topic, end.queue_id
            keys = [key for key in (queue, (end.topic, ANY_QUEUE)) if key in self.polling.queue_keys]
            codes = {code for _, _, code in QUEUE_ENTRY.iter_unpack(entries)} if keys else set()
            takes = partial(self._takes_queued, set(), codes, queue, first_offset, entries)
            for key in keys:
                self.polling.take_matching(key, takes)

    def _takes_queued(
        self,
        served_names: set[str],
        codes: set[int],
        queue: QueueKey,
        first_offset: QueueOffset,
        entries: bytes,
        pop: HeldPop,
    ) -> bool | None:
        """Whether a waiting pop takes some of these messages; then its commands are appended.

        None says that no later pop of its group takes any. What needs more than a tag to decide is served when they
        are committed, see `on_new_messages`. ``codes`` are their tag codes, ``served_names`` the served groups.
        """
        request = pop.call.request
        if not isinstance(request, PopMessage) or (group := request.ext.consumer_group) in served_names:
            return None
        ext = request.ext
        if ext.order or pop.subscription.sql is not None or not any(map(pop.matches, codes)):
            return False
        if pop.call.connection.closed or self._is_too_much(pop, group):
            return False
        pop_request = self._request_of(pop, ext)
        if ext.queue_id < 0 and self._selection.priorities.applies(pop_request):
            return False
        batch = self._queues.take_queued(
            pop_request, *queue, ext.max_messages, self._selection.bytes_max, first_offset, entries
        )
        if batch is None or not batch.rest:
            served_names.add(group)
            if batch is None:
                return None
        if ext.queue_id < 0:
            self._selection.priorities.count_unplanned(pop_request)
        pop.call.connection.held_pulls -= 1
        assert pop.call.connection.held_pulls >= 0, f"{pop.call.connection.held_pulls} requests of a client are held"
        self._replicate(pop, pop_request, [batch])
        return True

    def wake(self, group: str, topic: str, count: int) -> None:
        """Serve waiting pops of a group, because ``count`` messages of the topic are visible to it again."""
        for pop in self._waiting_pops.take_for_group(group, topic, count):
            self._resume(pop)

    def _on_free(self, key: QueueOfGroup) -> None:
        if is_lite_queue(key[1]):
            self._on_lite_free(key)
            return
        self.wake(key[0], key[1], 1)

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle_pop(self, call: Call[PopMessage]) -> bytes | None:
        """Request code 200050: pop messages, or wait for messages. Raises RequestRefused."""
        ext = call.request.ext
        self._selection.check(ext.consumer_group, ext.topic, ext.queue_id)
        self._selection.check_count(ext.max_messages)
        if ext.invisible_ms < 1:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"invisibleTime is {ext.invisible_ms}; allowed: 1 ms or more"
            )
        if ext.order and len(ext.attempt_id or "") > ATTEMPT_LENGTH_MAX:
            length = len(ext.attempt_id or "")
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"attemptId has {length} characters; maximum: {ATTEMPT_LENGTH_MAX}"
            )
        subscription = self._subscriptions.of_pop(call.connection, ext)
        seconds = _hold_seconds(call)
        call.drop_body()
        self._serve(HeldPop(call, subscription, self._clock() + seconds))
        return None

    def handle_notification(self, call: Call[Notification]) -> None:
        """Request code 200054: wait until a group has messages to pop. Raises RequestRefused."""
        ext = call.request.ext
        self._selection.check(ext.consumer_group, ext.topic, ext.queue_id)
        seconds = _hold_seconds(call)
        call.drop_body()
        self._serve_notification(HeldPop(call, EVERYTHING, self._clock() + seconds))

    def handle_polling_info(self, call: Call[PollingInfo]) -> bytes:
        """Request code 200055: return the number of waiting pops. Raises RequestRefused."""
        ext = call.request.ext
        self._selection.check(ext.consumer_group, ext.topic, ext.queue_id)
        count = self._waiting_pops.count(ext.consumer_group, ext.topic, ext.queue_id)
        return call.response(ext=PollingInfoReply(polling_num=count).fields())

    def _hand_on(self, pop: HeldPop) -> None:
        """Serve a pop again, so that the new leader gets it, with the rest of its waiting time."""
        ext = pop.call.request.ext
        ext.poll_ms = max(round((pop.deadline - self._clock()) * 1000), 0)
        pop.call.dispatch()

    # -- serving -----------------------------------------------------------------------------------------------------

    def _resume(self, pop: HeldPop) -> None:
        """Serve a held pop with the messages that have arrived, or without any."""
        pop.call.connection.held_pulls -= 1
        assert pop.call.connection.held_pulls >= 0, f"{pop.call.connection.held_pulls} requests of a client are held"
        self._serve_again(pop)

    def _serve_again(self, pop: HeldPop) -> None:
        if pop.call.connection.closed:
            return
        try:
            if isinstance(pop.call.request, Notification):
                self._serve_notification(pop)
            else:
                self._serve(pop)
        except Exception as error:
            # Called while entries are applied: a disk error must fail only this pop.
            pop.call.refuse(error)

    def _serve(self, pop: HeldPop) -> None:
        """Answer a pop, hold it, or append it to the log. Raises RequestRefused and disk errors."""
        request = pop.call.request
        assert isinstance(request, PopMessage), type(request).__name__
        ext = request.ext
        if ext.topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {ext.topic} does not exist")
        if self._is_too_much(pop, ext.consumer_group):
            self._answer_nothing(pop, ResponseCode.POLLING_FULL)
            return
        pop_request = self._request_of(pop, ext)
        try:
            batches = self._selection.take(
                pop_request, ext.queue_id, ext.max_messages, may_wait_for_disk=pop.loads >= LOADS_MAX
            )
        except RecordsOnDisk as error:
            self._load(pop, error)
            return
        if pop.loads:
            pop = pop._replace(loads=0, load_start=None)
        if batches:
            self._replicate(pop, pop_request, batches)
        else:
            self._hold(pop)

    def _request_of(self, pop: HeldPop, ext: PopExt) -> PopRequest:
        return PopRequest(
            group=ext.consumer_group,
            topic=ext.topic,
            retry_topic=pop_retry_topic(ext.consumer_group, ext.topic),
            subscription=pop.subscription,
            pop_time_ms=self._wall_clock_ms(),
            invisible_ms=min(ext.invisible_ms, INVISIBLE_MS_MAX),
            revive_queue=ORDERED_REVIVE_QUEUE if ext.order else REVIVE_QUEUE,
            at_end=ext.init_mode == INIT_AT_END,
            attempt=(ext.attempt_id or "") if ext.order else None,
            load_start=pop.load_start,
        )

    def _is_too_much(self, pop: HeldPop, group: str) -> bool:
        """Whether a pop gets no messages now: too many are open or pending, or its client reads too slowly."""
        limits = self._limits
        pops_full = self._has_too_many_open(group) or self._read_bytes >= limits.pop.read_bytes_max
        reads_too_slowly = pop.call.connection.waiting_bytes >= limits.consume.unread_bytes_max
        return pops_full or not self._appender.has_room or reads_too_slowly

    def _has_too_many_open(self, group: str) -> bool:
        """Whether a group has at least the number of open checkpoints that is left for all groups.

        So a group that acknowledges nothing takes at most half of them, and the others share the rest.
        """
        checkpoints = self._metadata.pops
        return checkpoints.of_groups.get(group, 0) >= self._limits.pop.checkpoints_max - checkpoints.count

    def _load(self, pop: HeldPop, old: RecordsOnDisk) -> None:
        """Serve a pop after its old records were loaded into memory."""
        _, topic, queue_id = old.key
        pop = pop._replace(loads=pop.loads + 1, load_start=(topic, queue_id, old.begin))
        leadership = self._leadership
        pop.call.connection.held_pulls += 1

        def on_end() -> None:
            if leadership is self._leadership:
                self._resume(pop)
                if pop.call.connection.closed:
                    # The pop may have been the only one that was woken for these messages: another one gets them.
                    ext = pop.call.request.ext
                    self.wake(ext.consumer_group, ext.topic, 1)
                return
            pop.call.connection.held_pulls -= 1
            if not pop.call.connection.closed:
                self._hand_on(pop)

        if pop.text_bytes > self._limits.consume.old_text_bytes_max or not self._cold_reads.load(old.places, on_end):
            pop.call.connection.held_pulls -= 1
            self._serve(pop)

    def _replicate(self, pop: HeldPop, pop_request: PopRequest, batches: list[PopBatch]) -> None:
        """Append the pop to the log. The client gets the messages when it is committed."""
        assert batches, f"a pop of {pop_request.topic} takes nothing"
        leadership = self._leadership
        nbytes = sum(each.nbytes for each in batches)
        group: PendingGroup = [PendingCommand(encode_command(each.command)) for each in batches]
        self._queues.begin(batches)
        self._read_bytes += nbytes

        def finish(outcome: Outcome) -> None:
            if leadership is not self._leadership:
                return
            self._read_bytes -= nbytes
            assert self._read_bytes >= 0, f"messages of {self._read_bytes} bytes are being popped"
            if isinstance(outcome, Stored):
                for each in batches:
                    if each.messages:
                        self.revival.schedule(CheckpointId(each.key, each.command.start, each.command.pop_time_ms))
            if self._queues.end(batches, outcome):
                self.wake(pop_request.group, pop_request.topic, 1)

        def on_outcome(outcome: Outcome) -> None:
            finish(outcome)
            if pop.call.connection.closed:
                if isinstance(outcome, Stored) and leadership is self._leadership:
                    for each in batches:
                        self.acks.give_back(each.command)  # no client got them
                return
            if isinstance(outcome, LeadershipLost):
                self._hand_on(pop)
            elif isinstance(outcome, DiskFull):
                pop.call.answer(pop.call.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=outcome.remark))
            elif isinstance(outcome, Unknown):
                # If the pop is committed after all, the messages are redelivered after the invisible time.
                self._answer_nothing(pop)
            elif any(each.messages for each in batches):
                self._send(pop, pop_request, batches)
            elif self._appender.is_open and self._clock() < pop.deadline + _PATIENCE_SECONDS:
                self._serve_again(pop)  # those messages did not match
            else:
                self._answer_nothing(pop)

        last = group[-1]
        assert isinstance(last, PendingCommand), type(last).__name__
        last.on_outcome = on_outcome
        self._appender.add_atomically(group)

    def _send(self, pop: HeldPop, pop_request: PopRequest, batches: list[PopBatch]) -> None:
        """Send the messages of a committed pop to its client."""
        try:
            full_batches = [self._queues.with_records(each) for each in batches]
        except (SegmentError, OSError) as error:
            # Called while entries are applied: a disk error must fail only this pop.
            for each in batches:
                self.acks.give_back(each.command)
            pop.call.refuse(error)
            return
        for each in full_batches:
            if each.messages:
                self._count_got(pop_request.topic, pop_request.group, each.messages, each.nbytes)
                if self._quotas.on_consume is not None:
                    self._quotas.on_consume(pop.call, each.messages, each.nbytes)
        send_messages(pop.call, ResponseCode.SUCCESS, pop_request, full_batches, self._metadata.pops)

    def _hold(self, pop: HeldPop) -> None:
        """Hold a pop that found no messages, or answer it without messages."""
        ext = pop.call.request.ext
        if pop.deadline <= self._clock():
            self._answer_nothing(pop, ResponseCode.POLLING_TIMEOUT if ext.poll_ms > 0 else ResponseCode.PULL_NOT_FOUND)
            return
        if not self._waiting_pops.hold(pop):
            self._answer_nothing(pop, ResponseCode.POLLING_FULL)

    def watch(self) -> None:
        """Tell the store which queues to watch for new messages: those that pops wait for."""
        self._waiting_pops.watch()

    def _serve_notification(self, pop: HeldPop) -> None:
        request = pop.call.request
        assert isinstance(request, Notification), type(request).__name__
        ext, now_ms = request.ext, self._wall_clock_ms()
        group, attempt = ext.consumer_group, (ext.attempt_id or "") if ext.order else None
        topics = [(ext.topic, ext.queue_id)]
        retry_topic = pop_retry_topic(group, ext.topic)
        if attempt is None and retry_topic != ext.topic:
            topics.append((retry_topic, ANY_QUEUE))
        for topic, requested_id in topics:
            config = self._metadata.topics.get(topic)
            queues = [requested_id] if requested_id >= 0 else range(0 if config is None else config.read_queues)
            for queue_id in self._queues.unread(group, topic, queues, at_end=False):
                key = group, topic, queue_id
                if self._queues.has_message(key, at_end=False, attempt=attempt, now_ms=now_ms):
                    pop.call.answer(notification(pop, has_message=True))
                    return
        self._hold(pop)

    def _answer_nothing(self, pop: HeldPop, code: ResponseCode = ResponseCode.POLLING_TIMEOUT) -> None:
        if not pop.call.connection.closed:
            pop.call.answer(nothing_found(pop, code, self._wall_clock_ms()))


def _hold_seconds(call: Call[PopMessage] | Call[Notification]) -> float:
    """Return for how many seconds a request may be held, from its arrival: the client's clock may be wrong."""
    return min(max(call.request.ext.poll_ms, 0) / 1000, call.connection.hold_seconds_max)
