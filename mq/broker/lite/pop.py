"""Pops of lite topics (request code 200070): one request of a client waits for all lite topics that it subscribes to.

Each lite topic is popped in order, with the same checkpoints as other queues of groups that consume in order
(`mq.broker.state.pop_checkpoints`): the messages of one pop block their lite topic for the group until all of them are
acknowledged or their invisible time is over. Then messages that are not acknowledged come again, in place: there is no
retry topic. All of that is in the log; only who subscribes to what is not, and clients say it again.

A request is served from `LiteClient.ready`. Besides, each request may look at all subscriptions of its client, at most
once in a while: so no message waits for longer than one request, even if news of it was lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from mq.broker.base.periodic_task import Periodic
from mq.broker.consume.cold_reads import ColdReads
from mq.broker.consume.long_polling import LongPolling
from mq.broker.context import BrokerContext
from mq.broker.lite.subscriptions import LiteClient, LiteSubscriptions
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.pop.pop import Pops
from mq.broker.pop.queue_cursor import EVERYTHING, PopBatch, PopRequest, RecordsOnDisk
from mq.broker.pop.selection import LOADS_MAX, MESSAGES_MAX
from mq.broker.state.commands import encode_command
from mq.broker.state.pop_checkpoints import ATTEMPT_LENGTH_MAX, INVISIBLE_MS_MAX, CheckpointId, QueueOfGroup
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, Outcome, Stored, Unknown
from mq.broker.write_path.pending import PendingCommand, PendingGroup
from mq.protocol.codes import PERM_READ, RequestCode, ResponseCode
from mq.protocol.frames import encode_prefix
from mq.protocol.names import is_lite_queue, split_lite_queue
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.lite import NotifyUnsubscribeLiteExt, PopLiteMessage
from mq.protocol.requests.lite_attributes import LiteGroup, is_lite, lite_group
from mq.protocol.requests.pop import PopReply
from mq.protocol.requests.receipts import ORDERED_REVIVE_QUEUE
from mq.protocol.wire.encoding import RESPONSE_FLAG, encode_header, encode_request

_EXPIRE_SECONDS = 0.02
_CHECK_SECONDS = 15.0
"""A request looks at all subscriptions of its client if the last look was this long ago: less than a long poll."""
_SWEEP_SECONDS = 0.05
_SWEPT_AT_ONCE = 1000
"""Lite topics that are looked at in one step for clients that read all of them."""
_QUEUES_MAX = 32
SILENT_SECONDS = 180.0
"""A client that was not heard for this time is forgotten, as by RocketMQ's brokers."""
_LOOK_SECONDS = 5.0

Subscriptions = LiteSubscriptions[ClientConnection]
Client = LiteClient[ClientConnection]


class HeldLitePop(NamedTuple):
    """A pop that waits until ``deadline``, in monotonic seconds. For ``loads`` and ``load_start``, see `HeldPop`."""

    call: Call[PopLiteMessage]
    deadline: float
    loads: int = 0
    load_start: tuple[str, int, QueueOffset] | None = None

    def matches(self, code: int) -> bool:
        """Return True for any tag code: pops of lite topics have no filter."""
        return True


class LitePops(Service):
    """Answers pops of lite topics, and holds those that find no messages.

    Args:
        pops: the other pops, with which it shares checkpoints and what ends invisible times.
        is_ending: whether the end of a lite topic is on its way into the log: nothing is popped from it then.

    Attributes:
        subscriptions: which clients read what.
    """

    def __init__(
        self, context: BrokerContext, *, pops: Pops, cold_reads: ColdReads, is_ending: Callable[[str], bool]
    ) -> None:
        self._limits = context.limits
        self._bytes_max = context.settings.pull_bytes_max
        self._metadata, self._store, self._appender = context.metadata, context.store, context.appender
        self._clock, self._wall_clock_ms = context.clock, context.wall_clock_ms
        self._removed_members = context.clients.removed_members
        self._count_got = context.traffic.count_got
        self._quotas = context.quotas
        self._pops, self._queues = pops, pops.queues
        self._cold_reads = cold_reads
        self._is_ending = is_ending
        self.subscriptions: Subscriptions = LiteSubscriptions()
        self._held_pops: LongPolling[HeldLitePop] = LongPolling(
            held_max=context.settings.long_polls_max, held_bytes_max=context.settings.long_poll_bytes_max
        )
        self._leadership = object()
        self._opaque = itertools.count(1)
        self._read_bytes = 0
        self._sweep: Iterator[str] | None = None
        self._swept = float("-inf")
        pops.attach_lite(self._on_free, self.subscriptions)

    def routes(self) -> Iterator[Route]:
        yield Route(PopLiteMessage, self.handle, leader_only=True, repeatable=True)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.expire, self._held_pops.next_deadline)
        yield Periodic(_SWEEP_SECONDS, self.sweep, self._sweeps_at)
        yield Periodic(_LOOK_SECONDS, self.forget_silent)

    def counters(self) -> dict[str, int]:
        """Return the number and the bytes of waiting pops, and the numbers of lite topics and subscriptions."""
        return {
            "held_lite_pops": len(self._held_pops),
            "held_bytes": self._held_pops.nbytes,
            "lite_topics": self._store.lite_count,
            "lite_subscriptions": self.subscriptions.count,
        }

    def check_invariants(self) -> None:
        self._held_pops.check_invariants()
        self.subscriptions.check_invariants()
        assert self._read_bytes >= 0, f"messages of {self._read_bytes} bytes are being popped"
        if not self._appender.is_open:
            assert not len(self._held_pops), f"{len(self._held_pops)} pops wait, and this replica does not lead"
        if self._appender.is_idle:
            assert not self._read_bytes, f"messages of {self._read_bytes} bytes are popped, and nothing is pending"

    def connection_closed(self, connection: ClientConnection) -> None:
        """Drop the waiting pops of a closed connection. The client keeps its subscriptions: it may reconnect."""
        self._held_pops.drop_connection(connection)

    def member_removed(self, group: str, client_id: str, connections: Iterable[ClientConnection]) -> None:
        """Answer the waiting pops of a removed member without messages, and forget its subscriptions."""
        for pop in self._held_pops.take_matching(_polling_key((group, client_id)), lambda _: True):
            pop.call.connection.held_pulls -= 1
            pulls = pop.call.connection.held_pulls
            assert pulls >= 0, f"{pulls} requests of a client are held, it was removed from {group}"
            self._answer_nothing(pop)
        if (client := self.subscriptions.clients.get((group, client_id))) is not None:
            self.subscriptions.drop(client)
        self._pops.watch()

    def resign(self) -> None:
        """Answer all waiting pops without messages and forget all subscriptions, since this replica stops leading."""
        self._leadership = object()
        self._read_bytes = 0
        self.subscriptions.clear()
        self.restart_sweep()
        for pop in self._held_pops.take_expired(float("inf")):
            pop.call.connection.held_pulls -= 1
            pulls = pop.call.connection.held_pulls
            assert pulls >= 0, f"{pulls} requests of a client are held, this replica stopped leading"
            self._answer_nothing(pop)
        self._pops.watch()

    # -- news ----------------------------------------------------------------------------------------------------------

    def on_new_messages(self, topic: str, queue_id: int, entries: bytes | bytearray) -> None:
        """Serve the waiting pops for a lite topic that has new messages."""
        if is_lite_queue(topic):
            self._serve_clients_of(topic, None)

    def topic_deleted(self, topic: str) -> None:
        """Drop the clients that read a deleted topic, and answer their waiting pops."""
        if is_lite_queue(topic):
            self.subscriptions.forget_news(topic)
            return
        for client in [client for client in self.subscriptions.clients.values() if client.parent == topic]:
            self.subscriptions.drop(client)
            self._resume_all(client.key)
        self._pops.watch()

    def on_subscribe(self, client: Client, queues: list[str]) -> None:
        """Serve the waiting pops of a client that has just subscribed to ``queues``, if any has unread messages."""
        ready = [queue for queue in queues if self._has_unread(client.key[0], queue)]
        client.ready.update(dict.fromkeys(ready))
        if ready:
            self._resume_all(client.key)

    def group_changed(self, group: str, queue: str) -> None:
        """Serve the waiting pops of a group whose offset in a lite topic was set: it may get messages again."""
        self._serve_clients_of(queue, group)

    def on_keep(self, queue: str) -> None:
        """Serve the waiting pops for a lite topic that was to be deleted, and is kept."""
        self._serve_clients_of(queue, None)

    def notify(self, client: Client, queues: Sequence[str]) -> None:
        """Tell a client that other clients took its subscriptions to ``queues`` (request code 200073).

        One that is not connected hears of it when it is back.
        """
        connection = client.connection
        if connection is None or not is_connected(client):
            client.lost_queues.update(queues)
            return
        client.lost_queues.difference_update(queues)
        for queue in queues:
            ext = NotifyUnsubscribeLiteExt(
                lite_topic=split_lite_queue(queue)[1], consumer_group=client.key[0], client_id=client.key[1]
            )
            code = RequestCode.NOTIFY_UNSUBSCRIBE_LITE
            connection.send(encode_request(code, next(self._opaque), ext=ext.fields(), oneway=True))

    def subscriptions_changed(self) -> None:
        """Watch the queues of the subscriptions for new messages, after a change of subscriptions."""
        self._pops.watch()

    def _on_free(self, key: QueueOfGroup) -> None:
        if self._appender.is_open:
            self._serve_clients_of(key[1], key[0])

    def _serve_clients_of(self, queue: str, group: str | None) -> None:
        """Serve the waiting pops of clients that may get messages of a queue, in one group or in all."""
        for client in list(self.subscriptions.news(queue, group)):
            if client.queues is not None or client.ready:
                self._resume_all(client.key)

    def _has_unread(self, group: str, queue: str) -> bool:
        lite_queue = self._store.get(queue, 0)
        if lite_queue is None:
            return False
        offset = self._metadata.consumer_offset(group, queue, 0)
        return lite_queue.max_offset > (lite_queue.min_offset if offset is None else offset)

    # -- timers --------------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Serve the waiting pops whose deadline has passed; called by a timer."""
        for pop in self._held_pops.take_expired_for(self._limits.consume.expire_seconds_max, self._clock):
            self._resume(pop)

    def _sweeps_at(self) -> float:
        return self._swept + _CHECK_SECONDS if self.subscriptions.wild_groups() else float("inf")

    def sweep(self) -> None:
        """Check the next lite topics for unread messages, for clients that read all lite topics; called by a timer."""
        groups = self.subscriptions.wild_groups()
        if not groups or self._clock() < self._swept + _CHECK_SECONDS:
            return
        if self._sweep is None:
            self._sweep = iter([queue for queue, _ in self._store.all_keys() if is_lite_queue(queue)])
        some = list(islice(self._sweep, _SWEPT_AT_ONCE))
        for queue in some:
            for group in groups.get(split_lite_queue(queue)[0], {}):
                if self._has_unread(group, queue):
                    self._serve_clients_of(queue, group)
        if len(some) < _SWEPT_AT_ONCE:
            self._sweep, self._swept = None, self._clock()

    def restart_sweep(self) -> None:
        """Make `sweep` start again at the first lite topic, because a client that reads all lite topics has come."""
        self._sweep, self._swept = None, float("-inf")

    def forget_silent(self) -> None:
        """Forget clients that have sent no request for `SILENT_SECONDS`; called by a timer."""
        for client in self.subscriptions.silent(self._clock() - SILENT_SECONDS):
            self.subscriptions.drop(client)
        self._pops.watch()

    # -- requests ------------------------------------------------------------------------------------------------------

    def handle(self, call: Call[PopLiteMessage]) -> None:
        """Request code 200070: pop messages of lite topics, or wait for messages. Raises RequestRefused."""
        ext = call.request.ext
        if self._removed_members.table:
            self._removed_members.check(call.connection, ext.consumer_group, ext.client_id, self._clock())
        group = self.group(ext.consumer_group, ext.topic)
        if not 1 <= ext.max_messages <= MESSAGES_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNum is {ext.max_messages}; allowed: 1 to {MESSAGES_MAX}"
            )
        if ext.invisible_ms < 1:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"invisibleTime is {ext.invisible_ms}; allowed: 1 ms or more"
            )
        if len(ext.attempt_id or "") > ATTEMPT_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"attemptId has {len(ext.attempt_id or '')} characters; maximum: {ATTEMPT_LENGTH_MAX}",
            )
        key = ext.consumer_group, ext.client_id
        client = self.subscriptions.clients.get(key)
        if client is None or client.parent != ext.topic or (client.queues is None) is not group.wildcard:
            if ext.says_subscriptions:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST, f"client {ext.client_id[:80]} has not sent its subscriptions"
                )
            client = None
        now = self._clock()
        if client is not None:
            client.heard_at = now
            client.connection = call.connection
            if client.lost_queues:
                self.notify(client, sorted(client.lost_queues))
            self._add_ready_queues(client, ext.attempt_id or "", now)
        seconds = min(max(ext.poll_ms, 0) / 1000, call.connection.hold_seconds_max)
        call.drop_body()
        self._serve(HeldLitePop(call, now + seconds))

    def group(self, name: str, parent: str) -> LiteGroup:
        """Return the lite topic settings of a group. Raises RequestRefused if it may not read from ``parent``."""
        config = self._metadata.topics.get(parent)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {parent} does not exist")
        if not config.perm & PERM_READ or (name, parent) in self._metadata.forbidden:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group {name} may not read the topic {parent}")
        if not is_lite(config.attributes):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the topic {parent} has no lite topics")
        group_config = self._metadata.groups.get(name)
        if group_config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group {name} does not exist")
        if not group_config.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group {name} may not consume")
        group = lite_group(group_config.attributes)
        if group.parent != parent:
            text = f"is bound to {group.parent}" if group.parent else "is bound to no topic"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the group {name} {text}, not to {parent}")
        return group

    def _add_ready_queues(self, client: Client, attempt: str, now: float) -> None:
        """Add queues to `LiteClient.ready` that may have messages, although no news of them came."""
        if attempt and attempt == client.attempt[0]:
            client.ready.update(dict.fromkeys(client.attempt[1]))
        if client.queues is not None and now >= client.checked_at + _CHECK_SECONDS:
            client.checked_at = now
            unread = [queue for queue in sorted(client.queues) if self._has_unread(client.key[0], queue)]
            client.ready.update(dict.fromkeys(unread))

    # -- serving -------------------------------------------------------------------------------------------------------

    def _resume_all(self, key: tuple[str, str]) -> None:
        """Serve the waiting pops of a client."""
        for pop in self._held_pops.take_matching(_polling_key(key), lambda _: True):
            self._resume(pop)

    def _resume(self, pop: HeldLitePop) -> None:
        pop.call.connection.held_pulls -= 1
        assert pop.call.connection.held_pulls >= 0, f"{pop.call.connection.held_pulls} requests of a client are held"
        if pop.call.connection.closed:
            return
        try:
            ext = pop.call.request.ext
            self.group(ext.consumer_group, ext.topic)
            self._serve(pop)
        except Exception as error:
            # Called while entries are applied: a disk error must fail only this request.
            pop.call.refuse(error)

    def _serve(self, pop: HeldLitePop) -> None:
        """Answer a pop, hold it, or append it to the log. Raises RequestRefused and disk errors."""
        ext, limits = pop.call.request.ext, self._limits
        if (
            self._read_bytes >= limits.pop.read_bytes_max
            or not self._appender.has_room
            or (pop.call.connection.waiting_bytes >= limits.consume.unread_bytes_max)
        ):
            self._answer_nothing(pop, ResponseCode.POLLING_FULL)
            return
        client = self.subscriptions.clients.get((ext.consumer_group, ext.client_id))
        pop_time_ms = self._wall_clock_ms()
        batches: list[PopBatch] = []
        if client is not None:
            try:
                batches = self._take(client, pop, pop_time_ms)
            except RecordsOnDisk as error:
                self._load(client, pop, error)
                return
        if client is not None and batches:
            self._replicate(client, pop, batches, pop_time_ms)
        elif client is not None and client.ready and self._is_full():
            self._answer_nothing(pop, ResponseCode.POLLING_FULL)
        else:
            self._hold(pop)

    def _is_full(self) -> bool:
        """Whether the table of open pops is full, so that only queues with an open pop may be popped."""
        return len(self._metadata.pops.queues) >= self._limits.pop.checkpoints_max

    def _take(self, client: Client, pop: HeldLitePop, pop_time_ms: int) -> list[PopBatch]:
        """Take messages of queues that may have some; removes the queues that it looks at from `LiteClient.ready`."""
        ext = pop.call.request.ext
        group, attempt = client.key[0], ext.attempt_id or ""
        batches: list[PopBatch] = []
        count, nbytes = ext.max_messages, self._bytes_max
        is_full, looked_at = self._is_full(), 0
        while client.ready and count > 0 and nbytes > 0 and len(batches) < _QUEUES_MAX:
            queue = next(iter(client.ready))
            del client.ready[queue]
            if not client.reads(queue) or self._is_ending(queue):
                continue
            if is_full and (group, queue, 0) not in self._metadata.pops.queues:
                client.ready[queue] = None  # behind all others
                looked_at += 1
                if looked_at >= min(len(client.ready), _SWEPT_AT_ONCE):
                    break
                continue
            pop_request = PopRequest(
                group=group,
                topic=queue,
                retry_topic="",
                subscription=EVERYTHING,
                pop_time_ms=pop_time_ms,
                invisible_ms=min(ext.invisible_ms, INVISIBLE_MS_MAX),
                revive_queue=ORDERED_REVIVE_QUEUE,
                at_end=False,
                attempt=attempt,
                load_start=pop.load_start,
            )
            may_wait = not batches and pop.loads >= LOADS_MAX
            try:
                one = self._queues.take(pop_request, queue, 0, count, nbytes, may_wait_for_disk=may_wait)
            except RecordsOnDisk:
                client.ready[queue] = None
                if batches:
                    break
                raise
            if one is not None and one.messages:
                batches.append(one)
                count -= one.messages
                assert count >= 0, f"{queue}: {-count} messages more than were wanted are popped"
                nbytes -= one.nbytes
        return batches

    def _load(self, client: Client, pop: HeldLitePop, old: RecordsOnDisk) -> None:
        """Serve a pop after its old records were loaded into memory."""
        _, topic, queue_id = old.key
        # The queue comes first again, since its records are what is loaded.
        ready = dict(client.ready)
        client.ready.clear()
        client.ready.update({topic: None} | ready)
        pop = pop._replace(loads=pop.loads + 1, load_start=(topic, queue_id, old.begin))
        pop.call.connection.held_pulls += 1

        leadership = self._leadership

        def on_end() -> None:
            if leadership is self._leadership:
                self._resume(pop)
                return
            pop.call.connection.held_pulls -= 1
            if not pop.call.connection.closed:
                self._hand_on(pop)

        if not self._cold_reads.load(old.places, on_end):
            pop.call.connection.held_pulls -= 1
            self._serve(pop._replace(loads=LOADS_MAX))

    def _replicate(self, client: Client, pop: HeldLitePop, batches: list[PopBatch], pop_time_ms: int) -> None:
        """Append the pop to the log. The client gets the messages when it is committed."""
        assert batches, f"a pop of {client.key} takes nothing"
        leadership, ext = self._leadership, pop.call.request.ext
        nbytes = sum(each.nbytes for each in batches)
        group: PendingGroup = [PendingCommand(encode_command(each.command)) for each in batches]
        self._queues.begin(batches)
        self._read_bytes += nbytes
        client.attempt = ext.attempt_id or "", [each.key[1] for each in batches]

        def finish(outcome: Outcome) -> None:
            if leadership is not self._leadership:
                return
            self._read_bytes -= nbytes
            assert self._read_bytes >= 0, f"messages of {self._read_bytes} bytes are being popped"
            is_freed = self._queues.end(batches, outcome)
            for each in batches:
                if isinstance(outcome, Stored) and not is_freed:
                    self._pops.revival.schedule(CheckpointId(each.key, each.command.start, pop_time_ms))
                else:
                    self._on_free(each.key)

        def on_outcome(outcome: Outcome) -> None:
            finish(outcome)
            if pop.call.connection.closed:
                return
            match outcome:
                case Stored():
                    messages = sum(each.messages for each in batches)
                    self._count_got(ext.topic, ext.consumer_group, messages, nbytes)
                    if self._quotas.on_consume is not None:
                        self._quotas.on_consume(pop.call, messages, nbytes)
                    self._send(pop, batches, pop_time_ms)
                case LeadershipLost():
                    self._hand_on(pop)
                case DiskFull(remark):
                    pop.call.answer(pop.call.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark))
                case Unknown():
                    # If the pop is committed after all, the messages come again after the invisible time.
                    self._answer_nothing(pop)

        last = group[-1]
        assert isinstance(last, PendingCommand), type(last).__name__
        last.on_outcome = on_outcome
        self._appender.add_atomically(group)

    def _hand_on(self, pop: HeldLitePop) -> None:
        """Serve a pop again, so that the new leader gets it, with the rest of its waiting time."""
        pop.call.request.ext.poll_ms = max(round((pop.deadline - self._clock()) * 1000), 0)
        pop.call.dispatch()

    def _send(self, pop: HeldLitePop, batches: list[PopBatch], pop_time_ms: int) -> None:
        """Send the messages to the client. Their properties name their lite topics and their offsets there."""
        call = pop.call
        counts = [str(count) for each in batches for count in self._counts(each)]
        reply = self._reply(pop, pop_time_ms)
        reply.rest_num = sum(each.rest for each in batches)
        reply.order_counts = ";".join(counts)
        records = [record for each in batches for record in each.records]
        nbytes = sum(map(len, records))
        expected = sum(each.nbytes for each in batches)
        assert nbytes == expected, f"popped records have {nbytes} bytes, and {expected} by their queues"
        header = encode_header(
            ResponseCode.SUCCESS,
            call.request.opaque,
            RESPONSE_FLAG,
            ext=reply.fields(),
            serialization=call.serialization,
        )
        head = encode_prefix(call.serialization, len(header), nbytes) + header
        call.connection.send_all([head, *records], len(head) + nbytes)

    def _counts(self, batch: PopBatch) -> Iterator[int]:
        """Yield for each message the number of times that it was popped before."""
        open_pop = self._metadata.pops.get(batch.key).ordered
        is_it = open_pop is not None and open_pop.pop_time_ms == batch.command.pop_time_ms
        for offset in batch.offsets:
            yield open_pop.counts.get(offset, 0) if open_pop is not None and is_it else 0

    def _reply(self, pop: HeldLitePop, pop_time_ms: int) -> PopReply:
        invisible_ms = min(pop.call.request.ext.invisible_ms, INVISIBLE_MS_MAX)
        return PopReply(pop_time_ms=pop_time_ms, invisible_ms=invisible_ms, revive_queue=ORDERED_REVIVE_QUEUE)

    def _hold(self, pop: HeldLitePop) -> None:
        """Hold a pop that found no messages, or answer it without messages."""
        ext = pop.call.request.ext
        if pop.deadline <= self._clock():
            self._answer_nothing(pop)
            return
        key = _polling_key((ext.consumer_group, ext.client_id))
        nbytes = len(ext.client_id) + len(ext.attempt_id or "")
        if not self._held_pops.hold(key, FIRST_OFFSET, pop.deadline, pop, pop.call.connection, nbytes):
            self._answer_nothing(pop, ResponseCode.POLLING_FULL)
            return
        pop.call.connection.held_pulls += 1

    def _answer_nothing(self, pop: HeldLitePop, code: ResponseCode = ResponseCode.POLLING_TIMEOUT) -> None:
        if not pop.call.connection.closed:
            fields = self._reply(pop, self._wall_clock_ms()).fields()
            pop.call.answer(pop.call.response(code, ext=fields))


def is_connected(client: Client) -> bool:
    """Whether the connection of a client's last request is open."""
    return client.connection is not None and not client.connection.closed


def _polling_key(key: tuple[str, str]) -> tuple[str, int]:
    """Return the key of a client in the table of waiting pops: its group and its id in one text."""
    return f"{len(key[0])} {key[0]} {key[1]}", 0
