"""Chooses the queues that this member of the group consumes, and starts and stops pulling them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import anyio
import anyio.abc

from mq.client.application_code import failure_in
from mq.client.consume.allocation import Strategy
from mq.client.consume.local_offsets import LocalOffsets
from mq.client.consume.offsets import GroupOffsets
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import Puller
from mq.client.consume.queue_lock import VALID_SECONDS, QueueLocker
from mq.client.consume.removal import OwnRemoval
from mq.client.errors import BrokerError, ClientError, NameServersUnavailable, NoRoute, TopicNotFound
from mq.client.events import ClientEvent
from mq.client.logs import log
from mq.client.long_wait import LongWait
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import fields_of, read_body
from mq.client.net.routes import TopicRoute
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import retry_topic
from mq.protocol.requests.clients import ConsumerGroupExt, ConsumerList, ConsumerListReply

COMMIT_SECONDS = 1.0
DRAIN_POLL_SECONDS = 0.02
UNLOCK_RETRY_SECONDS = 0.1

WARN_SECONDS = 30.0
"""Between two warnings that a member cannot begin."""

HANDOVER_SECONDS = 0.1
"""Time for the former owners to store their offsets. If it is too short, messages are repeated; none is lost."""


class Assignment:
    """The assigned queues of one member, and the task that pulls each of them.

    `make_puller` builds one for a queue; `tasks` runs it. Without `allocate` all queues are assigned; with `locker`
    only those that can be locked. All changes happen in `rebalance` and `drop`; the owner does not call them
    concurrently.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        core: ClientCore,
        offsets: GroupOffsets | LocalOffsets,
        *,
        group: str,
        client_id: str,
        allocate: Strategy | None,
        locker: QueueLocker | None,
        make_puller: Callable[[ProcessQueue], Puller],
    ) -> None:
        self._tasks = tasks
        self._core = core
        self._limits = core.settings.limits
        self._offsets = offsets
        self._group = group
        self._client_id = client_id
        self._allocate = allocate
        self._locker = locker
        self._make_puller = make_puller
        self._pullers: dict[MessageQueue, Puller] = {}
        self._lost_queues: set[MessageQueue] = set()
        self._drains: dict[MessageQueue, ProcessQueue] = {}
        self._queues_to_unlock: set[MessageQueue] = set()
        self._doubtful_routes: set[str] = set()
        self._warn_at: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}
        self._waits: dict[str, LongWait] = {}
        self._spare: dict[str, LongWait] = {}
        self._reasons: dict[str, str] = {}
        self._removal = OwnRemoval(group, core.emit)
        self._differ = LongWait("subscriptions_differ", self._limits)
        self.change_event = anyio.Event()

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The assigned queues."""
        return frozenset(self._pullers)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """The process queues of the assigned queues."""
        return [puller.process_queue for puller in self._pullers.values()]

    def puller(self, queue: MessageQueue) -> Puller | None:
        """Return the puller of a queue; None if the queue is not assigned."""
        return self._pullers.get(queue)

    def on_route(self, route: TopicRoute) -> None:
        """Tell the pullers of the topic the new addresses of its brokers."""
        for queue, puller in self._pullers.items():
            if queue.topic == route.topic:
                puller.on_route(route)

    def commit_offsets(self) -> Mapping[MessageQueue, int]:
        """Map each queue to the offset before which all messages are finished."""
        return {queue: puller.process_queue.commit_offset for queue, puller in self._pullers.items()}

    async def rebalance(self, topic: str) -> bool:
        """Rebalance the queues of `topic`. Returns False if that failed and should be retried soon.

        Lost queues are stopped and their offsets stored before new ones begin. After any failure, the next attempt
        refreshes the route: the leader may have changed.
        """
        try:
            route = await self._route(topic)
            await self._core.connect_all(route.addresses())
            members = [self._client_id] if self._allocate is None else await self._members(route)
        except ClientError as error:
            if self._removal.is_removed:
                # Brokers know no member of the group: this one may be let in again, and has to say that it is there.
                self._core.heartbeat_soon()
            self._tell_postponed(topic, error)
            self._doubtful_routes.add(topic)
            return False
        self._missing_since.pop(topic, None)
        if self._removal.is_removed:
            await self.drop(self.queues_of(topic))
            self._reasons[topic] = self._removal.reason
            return True  # brokers tell it when the time is over
        if self._client_id not in members:
            # A broker that has just started or been elected may not know this member yet. Giving up all queues, as Java
            # clients do, would only disturb the group; send a heartbeat and try again.
            self._core.heartbeat_soon()
            self._warn_if_long(topic, "the brokers do not know this member")
            return False
        ours = {queue for queue in self._pullers if queue.topic == topic}
        share = set(route.read_queues)
        if self._allocate is not None:
            share = set(self._choose(self._allocate, sorted(share), sorted(members)))
        self._warn_if_spare(topic, len(share), queues=len(route.read_queues), members=len(members))
        await self.drop(ours - share)
        if share - ours and len(members) > 1:
            await anyio.sleep(HANDOVER_SECONDS)
        complete = await self._add(await self._lock(share - ours))
        if self.queues_of(topic) != ours:
            log.info("assignment_changed", group=self._group, topic=topic, queues=sorted(q[1:] for q in self.queues))
            self.change_event.set()
        if not complete or self.queues_of(topic) != share:
            reason = "another member has locked its queues" if complete else "a leader of its queues does not answer"
            self._warn_if_long(topic, reason)
            return False
        self._wait_for(topic).end()
        return True

    def _warn_if_spare(self, topic: str, share: int, *, queues: int, members: int) -> None:
        """Log that this member gets no queue of a topic, once, if that lasts; it may be meant as a spare one."""
        wait = self._spare.setdefault(topic, LongWait("cannot_consume", self._limits, once=True))
        if share or topic == retry_topic(self._group):
            wait.end()
            return
        reason = f"the group has {members} members for {queues} queues; add queues, or stop members"
        if members <= queues:
            reason = "the allocation strategy gives this member no queue; it must be the same on all members"
        if not queues:
            reason = "it has no readable queue; set its permission and its number of queues"
        self._reasons[topic] = reason
        if wait.warn_if_long(reason, group=self._group, topic=topic):
            self._core.emit(ClientEvent("stuck", topic, reason))

    def unassigned_reason(self, topics: Collection[str]) -> str:
        """Say why no queue of these topics is assigned."""
        if not topics:
            return "nothing is subscribed: call subscribe"
        return "; ".join(f"{each}: {self._reasons.get(each, 'no broker has answered yet')}" for each in sorted(topics))

    def _choose(self, allocate: Strategy, queues: list[MessageQueue], members: list[str]) -> Sequence[MessageQueue]:
        """Return the queues that the application's strategy chooses. Raises its exceptions; they end the client."""
        own_queues: list[MessageQueue] = []
        error = failure_in(lambda _: own_queues.extend(allocate(queues, members, self._client_id)), None)
        if error is None:
            return own_queues
        if isinstance(error, Exception):
            raise error
        # A CancelledError would look like the end of the client's task.
        raise RuntimeError(f"the allocation strategy {allocate!r} raised {error!r}") from error

    def _tell_postponed(self, topic: str, error: ClientError) -> None:
        """Log now and then that a member cannot start to consume a queue, unless that lasts only moments."""
        self._reasons[topic] = str(error)
        now = anyio.current_time()
        is_denied = isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION
        is_missing = False
        if isinstance(error, TopicNotFound) and topic != retry_topic(self._group):
            is_missing = now - self._missing_since.setdefault(topic, now) >= self._limits.missing_seconds
        if is_missing and isinstance(self._offsets, LocalOffsets):
            self._offsets.add_missing(topic)
        is_told = is_denied or is_missing or isinstance(error, NameServersUnavailable)
        about = topic if is_missing else ""  # the others concern all topics
        if is_told and now >= self._warn_at.get(about, now):
            self._warn_at[about] = now + WARN_SECONDS
            log.warning("cannot_consume", group=self._group, topic=topic, reason=str(error))
            self._core.emit(ClientEvent("stuck", topic, str(error)))
        else:
            log.info("rebalance_postponed", topic=topic, reason=str(error))
            if not is_told and not isinstance(error, TopicNotFound):
                self._warn_if_long(topic, str(error))

    def _warn_if_long(self, topic: str, reason: str) -> None:
        self._reasons[topic] = reason
        if self._wait_for(topic).warn_if_long(reason, group=self._group, topic=topic):
            self._core.emit(ClientEvent("stuck", topic, reason))

    def _wait_for(self, topic: str) -> LongWait:
        return self._waits.setdefault(topic, LongWait("cannot_consume", self._limits))

    def queues_of(self, topic: str) -> frozenset[MessageQueue]:
        """Return the assigned queues of one topic."""
        return frozenset(queue for queue in self._pullers if queue.topic == topic)

    async def _lock(self, queues: frozenset[MessageQueue] | set[MessageQueue]) -> dict[MessageQueue, float]:
        """Lock queues; returns those that may be consumed in order, and until when."""
        if self._locker is None or not queues:
            return dict.fromkeys(sorted(queues), float("inf"))
        # A handler may still be busy with a message of a queue that was just released.
        to_lock = {queue for queue in queues if queue not in self._drains}
        self._queues_to_unlock -= to_lock
        own_queues, _, held_until = await self._locker.lock(to_lock)
        return dict.fromkeys(sorted(own_queues), held_until)

    async def renew_locks(self) -> tuple[list[ProcessQueue], bool]:
        """Renew the locks of the assigned queues. Returns the queues that may continue, and whether any was lost.

        The next `drop_lost` gives the lost ones up.
        """
        assert self._locker is not None, "nothing to renew without locks"
        queues = self.queues
        if not queues:
            return [], False
        own_queues, lost_queues, held_until = await self._locker.lock(queues)
        process_queues: list[ProcessQueue] = []
        for queue in own_queues & self.queues:
            process_queue = self._pullers[queue].process_queue
            process_queue.held_until = held_until
            process_queues.append(process_queue)
        self._lost_queues |= lost_queues
        return process_queues, bool(lost_queues)

    async def drop_lost(self) -> None:
        """Stop consuming the queues that another member has locked."""
        lost_queues, self._lost_queues = self._lost_queues & self.queues, set()
        await self.drop(lost_queues)

    async def _route(self, topic: str) -> TopicRoute:
        """Return the cached route, or after a failure a new one; the cached one if no name server answers."""
        cached_route = self._core.known_route(topic)
        try:
            route = await self._core.route(topic, refresh=topic in self._doubtful_routes)
        except ClientError as error:
            if cached_route is None:
                raise
            log.info("route_unavailable", topic=topic, reason=str(error))
            return cached_route
        self._doubtful_routes.discard(topic)
        return route

    async def _members(self, route: TopicRoute) -> list[str]:
        """Return the client ids of the group, from the first broker that answers, leaders first.

        All members ask in the same order, so that they get the same answer if they reach the same broker.
        """
        last_error: ClientError = NoRoute(route.topic, "found no broker to ask for the members of the group")
        by_rank = sorted((rank, name, a) for name, group in route.brokers.items() for rank, a in group.items())
        for _, _, address in by_rank:
            try:
                response, body = await self._core.call(
                    address,
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    ConsumerGroupExt(consumer_group=self._group).fields(),
                )
                self._removal.check_response(response)
                self._warn_if_different(fields_of(ConsumerListReply, response))
                return list(read_body(ConsumerList.decode, body).consumer_ids)
            except ClientError as error:
                self._doubtful_routes.add(route.topic)
                last_error = error
        raise last_error

    def _warn_if_different(self, reply: ConsumerListReply) -> None:
        if not reply.raftmq_subscriptions_differ:
            self._differ.end()
            return
        reason = (
            "members of the group subscribe to different topics or tags: messages that only some of them want are "
            f"passed over in the queues of the others; `raftmq consumer-group describe {self._group}` shows who wants "
            "what"
        )
        if self._differ.warn_if_long(reason, group=self._group):
            self._core.emit(ClientEvent("stuck", self._group, reason))

    async def _add(self, held_until: Mapping[MessageQueue, float]) -> bool:
        """Start to consume these queues. Returns whether all of them have started.

        All begin at once: a new group that ends meanwhile has no stored offset in any of them, rather than in some.
        """
        begins: dict[MessageQueue, int] = {}

        async def ask(queue: MessageQueue) -> None:
            try:
                begins[queue] = await self._offsets.begin(queue)
            except ClientError as error:
                log.info("queue_postponed", queue=queue, reason=str(error))
                self._doubtful_routes.add(queue.topic)

        async with anyio.create_task_group() as tasks:
            for queue in held_until:
                tasks.start_soon(ask, queue)
        self._emit_queues("assigned", begins)
        for queue, offset in sorted(begins.items()):
            process_queue = ProcessQueue(queue, offset)
            process_queue.held_until = held_until[queue]
            self._start(process_queue)
        return len(begins) == len(held_until)

    def _start(self, process_queue: ProcessQueue) -> None:
        puller = self._pullers[process_queue.queue] = self._make_puller(process_queue)
        self._tasks.start_soon(puller.run)

    def restart_at(self, process_queue: ProcessQueue, offset: int) -> None:
        """Drop the cached messages of a queue, and pull it again from `offset`, to which the broker moved the group."""
        puller = self._pullers.get(process_queue.queue)
        if puller is not None and puller.process_queue is process_queue:
            puller.stop()
            anew = ProcessQueue(process_queue.queue, offset)
            anew.held_until = process_queue.held_until
            self._start(anew)

    async def drop(self, queues: frozenset[MessageQueue] | set[MessageQueue], *, is_leave: bool = False) -> None:
        """Stop consuming these queues and store their offsets. Waits for the answers for a second, or five if
        `is_leave`.

        Their locks are released when no handler is busy with their messages, or at once when `is_leave`.
        """
        if not queues:
            return
        offsets = {}
        idle: set[MessageQueue] = set()
        for queue in queues:
            puller = self._pullers.pop(queue)
            puller.stop()
            offsets[queue] = puller.process_queue.commit_offset
            if not is_leave and self._locker is not None and puller.process_queue.leased:
                self._drains[queue] = puller.process_queue
                self._tasks.start_soon(self._drain, queue, puller.process_queue)
            else:
                idle.add(queue)
        seconds = self._limits.leave_commit_seconds if is_leave else COMMIT_SECONDS
        await self._offsets.commit(offsets, seconds=seconds)
        self._emit_queues("revoked", queues)
        if self._locker is not None:
            locked_queues = await self._locker.unlock(idle)
            if locked_queues and is_leave:
                with anyio.move_on_after(COMMIT_SECONDS):
                    await self._unlock_stubbornly(self._locker, locked_queues)
            elif locked_queues:
                self._tasks.start_soon(self._unlock_stubbornly, self._locker, locked_queues)
        self.change_event.set()

    def _emit_queues(self, kind: Literal["assigned", "revoked"], queues: Collection[MessageQueue]) -> None:
        for topic in sorted({queue.topic for queue in queues}):
            self._core.emit(ClientEvent(kind, topic, queues=frozenset(q for q in queues if q.topic == topic)))

    @property
    def troubles(self) -> list[str]:
        """The reasons that queues are not pulled now."""
        return [trouble for puller in self._pullers.values() if (trouble := puller.trouble) is not None]

    async def _drain(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Release the lock when the last handler is done, or when it has expired."""
        assert self._locker is not None, "nothing to give back without locks"
        with anyio.move_on_after(VALID_SECONDS):
            while process_queue.leased:  # noqa: ASYNC110 - rare, and the board has no event
                await anyio.sleep(DRAIN_POLL_SECONDS)
        del self._drains[queue]
        await self._unlock_stubbornly(self._locker, {queue})

    async def _unlock_stubbornly(self, locker: QueueLocker, locked_queues: set[MessageQueue]) -> None:
        """Release locks, and retry until a leader is elected or the queue is assigned again."""
        self._queues_to_unlock |= locked_queues
        with anyio.move_on_after(VALID_SECONDS):
            while locked_queues := await locker.unlock(locked_queues & self._queues_to_unlock):
                await anyio.sleep(UNLOCK_RETRY_SECONDS)
                await locker.find_leaders(locked_queues)
