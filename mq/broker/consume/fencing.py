"""Fences queues: while a client holds the lock of a queue, other clients cannot change its offset or messages.

A client that was away for longer than its lock lasts does not know that another one holds its queue now. Its offset
commits are ignored, and messages that it sends back are refused: those would be redelivered a second time and out of
order.
"""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.context import BrokerContext
from mq.broker.net.connection import ClientConnection

_REPORTS_MAX = 1000

QueueKey = tuple[str, str, int]
"""Group, topic and queue id."""


class Fencing:
    """Decides whether to ignore a client's requests about a queue, because another client holds its lock.

    Args:
        is_free: whether this queue is unlocked or its lock expired, including changes in flight.

    Attributes:
        count: how many offset commits were ignored and returned messages refused, because another client held the
            queue.
    """

    def __init__(self, context: BrokerContext, is_free: Callable[[QueueKey], bool]) -> None:
        self._metadata = context.metadata
        self._client_id = context.client_id
        self._log = context.log
        self._is_free = is_free
        self._reports: set[tuple[str, str]] = set()
        self.count = 0

    def fences(
        self, connection: ClientConnection, group: str, topic: str, queue_id: int, *, only_known: bool = False
    ) -> bool:
        """Return whether to ignore requests of ``connection`` about a queue, because another client holds its lock.

        A connection without a heartbeat of the group has no member id: it is fenced, too, unless ``only_known``.
        """
        holder = self._metadata.lock_holder(group, topic, queue_id)
        if holder is None:
            return False
        client_id = self._client_id(connection, group)
        if client_id == holder or (client_id is None and only_known) or self._is_free((group, topic, queue_id)):
            return False
        self._log_fencing(group, topic, queue_id, client_id, holder)
        return True

    def fences_topic(self, connection: ClientConnection, group: str, topic: str) -> bool:
        """Return whether other clients hold locks in this topic and this client none, so that it has no message of it.

        A connection without a heartbeat of the group is not fenced: its client may have just found this leader.
        """
        client_id = self._client_id(connection, group)
        if client_id is None:
            return False
        locks = self._metadata.queue_locks.get((group, topic), {})
        in_force = {
            queue_id: holder for queue_id, holder in locks.items() if not self._is_free((group, topic, queue_id))
        }
        if not in_force or client_id in in_force.values():
            return False
        queue_id, holder = next(iter(in_force.items()))
        self._log_fencing(group, topic, queue_id, client_id, holder)
        return True

    def _log_fencing(self, group: str, topic: str, queue_id: int, client_id: str | None, holder: str) -> None:
        self.count += 1
        if (group, client_id or "") not in self._reports and len(self._reports) < _REPORTS_MAX:
            self._reports.add((group, client_id or ""))
            self._log.warning(
                "client_fenced",
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                client_id=client_id,
                holder=holder,
            )
