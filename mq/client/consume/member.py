"""A member of a consumer group: rebalances when the group changes, and stores its progress.

Theory of operation. Three loops. Rebalancing runs every 20 s, and at once when brokers or the route report a change.
Offsets of acknowledged messages are sent to the leaders every 5 s, and before queues change hands. Locks of an
exclusive member are renewed while they are still valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import anyio.abc

from mq.client.consume.allocation import Strategy
from mq.client.consume.delivery import DeliveryBoard
from mq.client.consume.filter_uploads import FilterUploads
from mq.client.consume.filter_watch import FilterWatch
from mq.client.consume.local_offsets import LocalOffsets
from mq.client.consume.offsets import GroupOffsets
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import Puller, PullSettings
from mq.client.consume.queue_lock import RENEW_SECONDS, QueueLocker
from mq.client.consume.rebalance import Assignment
from mq.client.consume.subscription import TopicSubscription
from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.client.net.routes import TopicRoute

COMMIT_SECONDS = 5.0
REBALANCE_SECONDS = 20.0
REBALANCE_RETRY_SECONDS_MIN = 0.05
REBALANCE_RETRY_SECONDS_MAX = 0.5


class GroupMember:
    """The group membership of an open push consumer. `run` must run in `tasks`; call `leave` afterwards.

    `topics` are the subscriptions by topic; after a change call `rebalance_soon`. Without `allocate` this member
    gets all queues; with `exclusive` those that it can lock. Pulled messages are put on `board`.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        core: ClientCore,
        offsets: GroupOffsets | LocalOffsets,
        board: DeliveryBoard,
        topics: Mapping[str, TopicSubscription],
        *,
        group: str,
        client_id: str,
        allocate: Strategy | None,
        exclusive: bool,
        is_paused: Callable[[MessageQueue], bool],
        pull: PullSettings,
        commit_seconds: float,
        rebalance_seconds: float,
    ) -> None:
        self._core = core
        self._offsets = offsets
        self._board = board
        self._topics = topics
        self._group = group
        self._exclusive = exclusive
        self._is_paused = is_paused
        self._pull_settings = pull
        self._commit_seconds = commit_seconds
        self._rebalance_seconds = rebalance_seconds
        self._rebalance_wanted = anyio.Event()
        self._uploads = FilterUploads(group)
        self._watch = FilterWatch(group, core.emit, core.settings.limits)
        self.assignment = Assignment(
            tasks,
            core,
            offsets,
            group=group,
            client_id=client_id,
            allocate=allocate,
            locker=QueueLocker(core, group, client_id) if exclusive else None,
            make_puller=self._make_puller,
        )
        """The assigned queues and their pullers."""

    async def run(self) -> None:
        """Rebalance, store offsets and renew locks, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._rebalance_forever)
            tasks.start_soon(self._commit_forever)
            if self._exclusive:
                tasks.start_soon(self._renew_locks_forever)

    async def leave(self) -> None:
        """Store the last offsets and release all locks. After this, nothing may pull or rebalance.

        The next owner requests the offsets as soon as it hears that this member has left.
        """
        await self.assignment.drop(self.assignment.queues, is_leave=True)

    # Events.

    def rebalance_soon(self) -> None:
        """Rebalance now instead of within 20 s: subscriptions, members or brokers have changed."""
        self._rebalance_wanted.set()

    def members_changed(self) -> None:
        """Store offsets and rebalance. Other members may take over queues, and will then read the offsets."""
        self._offsets.commit_soon(self.assignment.commit_offsets())
        self.rebalance_soon()

    def on_route(self, route: TopicRoute) -> None:
        """Rebalance after the queues or leaders of a topic changed."""
        self.assignment.on_route(route)
        self.rebalance_soon()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at the offsets to which an operator reset the group."""
        for queue, offset in offsets.items():
            puller = self.assignment.puller(queue)
            if isinstance(self._offsets, GroupOffsets):
                self._offsets.forget(queue)
            if puller is not None:
                log.info("offset_reset", queue=queue, offset=offset)
                self.assignment.restart_at(puller.process_queue, offset)

    def pauses_changed(self) -> None:
        """Let pulling continue or stop, after queues were paused or resumed."""
        for process_queue in self.assignment.process_queues:
            process_queue.paused = self._is_paused(process_queue.queue)
            if not process_queue.paused:
                self.on_progress(process_queue)
                self._board.offer(process_queue)

    def on_progress(self, process_queue: ProcessQueue) -> None:
        """Let pulling of a queue continue, after some of its messages were finished."""
        puller = self.assignment.puller(process_queue.queue)
        if puller is not None:
            puller.on_progress()

    async def commit(self) -> None:
        """Store the offsets of all acknowledged messages now, and wait for the answers, for a second at most."""
        await self._offsets.commit(self.assignment.commit_offsets(), seconds=1.0)

    # The loops.

    async def _rebalance_forever(self) -> None:
        assignment = self.assignment
        retry_seconds = REBALANCE_RETRY_SECONDS_MIN
        while True:
            self._rebalance_wanted = anyio.Event()
            await assignment.drop_lost()
            await assignment.drop({q for q in assignment.queues if q.topic not in self._topics})
            complete = True
            for topic in list(self._topics):
                complete = await assignment.rebalance(topic) and complete
            with anyio.move_on_after(self._rebalance_seconds if complete else retry_seconds):
                await self._rebalance_wanted.wait()
            longer = min(retry_seconds * 2, REBALANCE_RETRY_SECONDS_MAX)
            retry_seconds = REBALANCE_RETRY_SECONDS_MIN if complete else longer

    async def _renew_locks_forever(self) -> None:
        while True:
            await anyio.sleep(RENEW_SECONDS)
            process_queues, is_any_lost = await self.assignment.renew_locks()
            for process_queue in process_queues:
                self._board.offer(process_queue)
            if is_any_lost:
                self.rebalance_soon()

    async def _commit_forever(self) -> None:
        while True:
            await anyio.sleep(self._commit_seconds)
            for topic in self._offsets.commit_soon(self.assignment.commit_offsets()):
                # Pulls may continue at a follower, so no other task notices a change of leader.
                await self._find_leader(topic)

    async def _find_leader(self, topic: str) -> None:
        try:
            route = await self._core.route(topic, refresh=True)
            await self._core.connect_all(route.addresses())
        except ClientError as error:
            log.debug("leader_not_found", topic=topic, reason=str(error))

    def _make_puller(self, process_queue: ProcessQueue) -> Puller:
        topic = self._topics[process_queue.queue.topic]
        process_queue.paused = self._is_paused(process_queue.queue)
        return Puller(
            self._core,
            self._group,
            topic.subscription,
            process_queue,
            self._offsets,
            self._pull_settings,
            sub_version=topic.sub_version,
            watch=self._watch,
            uploads=self._uploads,
            on_messages=self._board.offer,
            on_offset_moved=self.assignment.restart_at,
        )
