"""Locks queues at the brokers, so that two members of a group never handle messages of one queue at once.

The leader of a queue grants a lock for 60 s from each request. The client relies on it for only 30 s from when it sent
the request, and renews it every 20 s; so clocks may differ and answers may be slow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import anyio

from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import MessageQueue
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import known_leader
from mq.client.net.replies import read_body
from mq.protocol.codes import RequestCode
from mq.protocol.requests.clients import LockedQueues, QueueLocks
from mq.protocol.wire.queue_tables import QueueRef

RENEW_SECONDS = 20.0
VALID_SECONDS = 30.0
UNLOCK_SECONDS = 1.0


class QueueLocker:
    """Acquires and releases the queue locks of one member."""

    def __init__(self, core: ClientCore, group: str, client_id: str) -> None:
        self._core = core
        self._group = group
        self._client_id = client_id

    async def lock(self, queues: Collection[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue], float]:
        """Acquire or renew locks.

        Returns the locked queues, those that another member holds, and until when the former are valid (in
        `anyio.current_time`). A queue whose leader did not answer is in neither set. Raises nothing.
        """
        valid_until = anyio.current_time() + VALID_SECONDS
        own_queues: set[MessageQueue] = set()
        refused_queues: set[MessageQueue] = set()
        for address, theirs in self._by_leader(queues).items():
            try:
                _, body = await self._core.call(
                    address, RequestCode.LOCK_BATCH_MQ, body=self._body(theirs), timeout=UNLOCK_SECONDS * 3
                )
                granted_queues = {
                    MessageQueue(ref.topic, ref.broker_name, ref.queue_id)
                    for ref in read_body(LockedQueues.decode, body).queues
                }
            except ClientError as error:
                log.info("lock_failed", address=address, queues=len(theirs), reason=str(error))
                continue
            own_queues |= granted_queues.intersection(theirs)
            refused_queues |= theirs - granted_queues
        return own_queues, refused_queues, valid_until

    async def unlock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Release locks, and wait for the answers, even if cancelled, for a second at most. Raises nothing.

        Returns the queues whose leader did not confirm it. The next owner has to wait for the rest of their 60 s.
        """
        locked_queues = set(queues)
        with anyio.move_on_after(UNLOCK_SECONDS, shield=True):
            for address, theirs in self._by_leader(queues).items():
                try:
                    await self._core.call(address, RequestCode.UNLOCK_BATCH_MQ, body=self._body(theirs))
                    locked_queues -= theirs
                except ClientError as error:
                    log.info("unlock_failed", address=address, queues=len(theirs), reason=str(error))
        return locked_queues

    async def find_leaders(self, queues: Iterable[MessageQueue]) -> None:
        """Ask the name servers for the current leaders. Raises nothing."""
        for topic in {queue.topic for queue in queues}:
            try:
                await self._core.route(topic, refresh=True)
            except ClientError as error:
                log.info("route_unavailable", topic=topic, reason=str(error))

    def _by_leader(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        leaders: dict[str, set[MessageQueue]] = {}
        for queue in queues:
            try:
                leader = known_leader(self._core, queue.topic, queue.broker_name)
                leaders.setdefault(leader, set()).add(queue)
            except ClientError as error:
                log.debug("lock_postponed", queue=queue, reason=str(error))
        return leaders

    def _body(self, queues: Iterable[MessageQueue]) -> bytes:
        refs = [QueueRef(queue.topic, queue.broker_name, queue.queue_id) for queue in sorted(queues)]
        return QueueLocks(self._client_id, self._group, refs).encode()
