"""Which queues this member of the group consumes, and the change from one set to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import anyio.abc

from mq.client.consume.allocation import Strategy
from mq.client.consume.local_offsets import LocalOffsets
from mq.client.consume.offsets import GroupOffsets
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import Puller
from mq.client.consume.queue_lock import VALID_SECONDS, QueueLocker
from mq.client.errors import ClientError, NameServersUnavailable, NoRoute
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import read_body
from mq.client.net.routes import TopicRoute
from mq.protocol.admin_requests import ConsumerGroupExt
from mq.protocol.bodies import ConsumerList
from mq.protocol.codes import RequestCode

__all__ = ["Assignment"]

COMMIT_SECONDS = 1.0
DRAIN_POLL_SECONDS = 0.02
UNLOCK_RETRY_SECONDS = 0.1

WARN_SECONDS = 30.0
"""Between two warnings that no name server answers."""

HANDOVER_SECONDS = 0.1
"""Time for the former owners to store their offsets. Too little repeats messages; nothing is lost either way."""


class Assignment:
    """The pullers of the queues that are ours at present.

    `make_puller` builds one for a queue; `tasks` runs it. Without `allocate` all queues are ours; with `locker` only
    those that it gets the locks of. All changes happen in `rebalance` and `drop`, which the
    owner calls one at a time.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        remoting: ClientCore,
        offsets: GroupOffsets | LocalOffsets,
        *,
        group: str,
        client_id: str,
        allocate: Strategy | None,
        locker: QueueLocker | None,
        make_puller: Callable[[ProcessQueue], Puller],
    ) -> None:
        self._tasks = tasks
        self._remoting = remoting
        self._offsets = offsets
        self._group = group
        self._client_id = client_id
        self._allocate = allocate
        self._locker = locker
        self._make_puller = make_puller
        self._pullers: dict[MessageQueue, Puller] = {}
        self._lost: set[MessageQueue] = set()
        self._draining: dict[MessageQueue, ProcessQueue] = {}
        self._owed: set[MessageQueue] = set()
        self._doubtful_routes: set[str] = set()
        self._warn_at = float("-inf")
        self.changed = anyio.Event()

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues we consume."""
        return frozenset(self._pullers)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """What we have of the queues that we consume."""
        return [puller.process_queue for puller in self._pullers.values()]

    def puller(self, queue: MessageQueue) -> Puller | None:
        """The puller of one of our queues."""
        return self._pullers.get(queue)

    def note_route(self, route: TopicRoute) -> None:
        """Tell the pullers of the topic where its brokers are now."""
        for queue, puller in self._pullers.items():
            if queue.topic == route.topic:
                puller.note_route(route)

    def commit_offsets(self) -> Mapping[MessageQueue, int]:
        """For every queue the offset up to which all is done."""
        return {queue: puller.process_queue.commit_offset for queue, puller in self._pullers.items()}

    async def rebalance(self, topic: str) -> bool:
        """Take our share of the queues of `topic`. False if something stood in the way and a retry is due soon.

        Queues lost are stopped and their offsets stored before any new one begins. Whatever goes wrong, the next
        attempt asks for the route again: the leader may be another one by now.
        """
        try:
            route = await self._route(topic)
            await self._remoting.connect_all(route.addresses())
            members = [self._client_id] if self._allocate is None else await self._members(route)
        except ClientError as error:
            self._tell_postponed(topic, error)
            self._doubtful_routes.add(topic)
            return False
        if self._client_id not in members:
            # A broker that has just started or been elected may not have heard of us. Giving up all queues, as Java
            # clients do, would only make the group stumble; we introduce ourselves and look again.
            self._remoting.heartbeat_soon()
            return False
        ours = {queue for queue in self._pullers if queue.topic == topic}
        share = set(route.read_queues)
        if self._allocate is not None:
            share = set(self._allocate(sorted(share), sorted(members), self._client_id))
        await self.drop(ours - share)
        if share - ours and len(members) > 1:
            await anyio.sleep(HANDOVER_SECONDS)
        complete = True
        for queue, held_until in (await self._lock(share - ours)).items():
            complete = await self._add(queue, held_until) and complete
        if self.queues_of(topic) != ours:
            log.info("assignment_changed", group=self._group, topic=topic, queues=sorted(q[1:] for q in self.queues))
            self.changed.set()
        return complete and self.queues_of(topic) == share

    def _tell_postponed(self, topic: str, error: ClientError) -> None:
        """A member that cannot begin would only be silent: say so, now and then, if that is not a matter of moments."""
        now = anyio.current_time()
        if isinstance(error, NameServersUnavailable) and now >= self._warn_at:
            self._warn_at = now + WARN_SECONDS
            log.warning("cannot_consume", group=self._group, topic=topic, reason=str(error))
        else:
            log.info("rebalance_postponed", topic=topic, reason=str(error))

    def queues_of(self, topic: str) -> frozenset[MessageQueue]:
        """The queues of one topic that we consume."""
        return frozenset(queue for queue in self._pullers if queue.topic == topic)

    async def _lock(self, queues: frozenset[MessageQueue] | set[MessageQueue]) -> dict[MessageQueue, float]:
        """Those of the queues that we may consume, in order, and until when."""
        if self._locker is None or not queues:
            return dict.fromkeys(sorted(queues), float("inf"))
        # What we gave up a moment ago may be in the hands of a handler still.
        wanted = {queue for queue in queues if queue not in self._draining}
        self._owed -= wanted
        locked, _, held_until = await self._locker.lock(wanted)
        return dict.fromkeys(sorted(locked), held_until)

    async def renew_locks(self) -> tuple[list[ProcessQueue], bool]:
        """Hold our queues for longer; returns those that go on, and whether another member has got one of them.

        The latter are given up by the next `drop_lost`.
        """
        assert self._locker is not None, "nothing to renew without locks"
        queues = self.queues
        if not queues:
            return [], False
        locked, refused, held_until = await self._locker.lock(queues)
        renewed: list[ProcessQueue] = []
        for queue in locked & self.queues:
            process_queue = self._pullers[queue].process_queue
            process_queue.held_until = held_until
            renewed.append(process_queue)
        self._lost |= refused
        return renewed, bool(refused)

    async def drop_lost(self) -> None:
        """Stop consuming what another member has locked."""
        lost, self._lost = self._lost & self.queues, set()
        await self.drop(lost)

    async def _route(self, topic: str) -> TopicRoute:
        """The known route, or after a failure a new one; the known one still, if nobody can tell."""
        known = self._remoting.known_route(topic)
        try:
            route = await self._remoting.route(topic, refresh=topic in self._doubtful_routes)
        except ClientError as error:
            if known is None:
                raise
            log.info("route_unavailable", topic=topic, reason=str(error))
            return known
        self._doubtful_routes.discard(topic)
        return route

    async def _members(self, route: TopicRoute) -> list[str]:
        """The client ids of the group, from the first broker that can tell, leaders first.

        All members ask in the same order, so that they share one view as long as they reach the same broker.
        """
        last_error: ClientError = NoRoute(route.topic, "found no broker to ask for the members of the group")
        by_rank = sorted((rank, name, a) for name, group in route.brokers.items() for rank, a in group.items())
        for _, _, address in by_rank:
            try:
                _, body = await self._remoting.call(
                    address,
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    ConsumerGroupExt(consumer_group=self._group).fields(),
                )
                return list(read_body(ConsumerList.decode, body).consumer_ids)
            except ClientError as error:
                self._doubtful_routes.add(route.topic)
                last_error = error
        raise last_error

    async def _add(self, queue: MessageQueue, held_until: float) -> bool:
        try:
            offset = await self._offsets.begin(queue)
        except ClientError as error:
            log.info("queue_postponed", queue=queue, reason=str(error))
            self._doubtful_routes.add(queue.topic)
            return False
        process_queue = ProcessQueue(queue, offset)
        process_queue.held_until = held_until
        self._start(process_queue)
        return True

    def _start(self, process_queue: ProcessQueue) -> None:
        puller = self._pullers[process_queue.queue] = self._make_puller(process_queue)
        self._tasks.start_soon(puller.run)

    def restart_at(self, process_queue: ProcessQueue, offset: int) -> None:
        """The broker wants another offset: begin the queue anew there, forgetting what was cached."""
        puller = self._pullers.get(process_queue.queue)
        if puller is not None and puller.process_queue is process_queue:
            puller.stop()
            anew = ProcessQueue(process_queue.queue, offset)
            anew.held_until = process_queue.held_until
            self._start(anew)

    async def drop(self, queues: frozenset[MessageQueue] | set[MessageQueue], *, leaving: bool = False) -> None:
        """Stop consuming these queues, then store their offsets and wait until that is done, or for a second.

        Their locks are given back when no handler is at work on a message of them, or at once when `leaving`.
        """
        if not queues:
            return
        offsets = {}
        idle: set[MessageQueue] = set()
        for queue in queues:
            puller = self._pullers.pop(queue)
            puller.stop()
            offsets[queue] = puller.process_queue.commit_offset
            if not leaving and self._locker is not None and puller.process_queue.leased:
                self._draining[queue] = puller.process_queue
                self._tasks.start_soon(self._drain, queue, puller.process_queue)
            else:
                idle.add(queue)
        await self._offsets.commit(offsets, seconds=COMMIT_SECONDS)
        if self._locker is not None:
            owed = await self._locker.unlock(idle)
            if owed and leaving:
                with anyio.move_on_after(COMMIT_SECONDS):
                    await self._unlock_stubbornly(self._locker, owed)
            elif owed:
                self._tasks.start_soon(self._unlock_stubbornly, self._locker, owed)
        self.changed.set()

    async def _drain(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Give the lock back when the last handler is done, or when it is over anyway."""
        assert self._locker is not None, "nothing to give back without locks"
        with anyio.move_on_after(VALID_SECONDS):
            while process_queue.leased:  # noqa: ASYNC110 - rare, and the board tells nobody
                await anyio.sleep(DRAIN_POLL_SECONDS)
        del self._draining[queue]
        await self._unlock_stubbornly(self._locker, {queue})

    async def _unlock_stubbornly(self, locker: QueueLocker, owed: set[MessageQueue]) -> None:
        """Give locks back, also to a leader that has still to be elected, unless we want the queues again."""
        self._owed |= owed
        with anyio.move_on_after(VALID_SECONDS):
            while owed := await locker.unlock(owed & self._owed):
                await anyio.sleep(UNLOCK_RETRY_SECONDS)
                await locker.find_leaders(owed)
