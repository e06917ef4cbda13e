"""Stores the position of a query as offsets of a consumer group, so that tools can show its lag.

They are never read back. Nothing depends on them, so a failure is logged and retried later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from mq.protocol.codes import RequestCode, ResponseCode
from spark.client import ServerError, TopicRoute, Unreachable
from spark.kept_connections import KeptConnections
from spark.offset_survey import LEADER_ID
from spark.option_table import QueueName

PAUSE_SECONDS: Final = 1.0
"""Offsets are stored no more often than this."""

_SECONDS_MAX: Final = 3.0
_AT_ONCE: Final = 256

log = logging.getLogger(__name__)


class GroupOffsets:
    """Stores the offsets of one consumer group.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, group: str, connections: KeptConnections, clock: Callable[[], float]) -> None:
        self._group = group
        self._connections = connections
        self._clock = clock
        self._next_offsets: dict[QueueName, int] = {}
        self._stored_offsets: dict[QueueName, int] = {}
        self._tried_at: float | None = None
        self._is_failing = False

    def commit(
        self, offsets: Mapping[QueueName, int], routes: Mapping[str, TopicRoute], *, at_once: bool = False
    ) -> None:
        """Store the next offset of each queue: now, or with a later call if offsets were stored a moment ago."""
        self._next_offsets.update(offsets)
        now = self._clock()
        if at_once or self._tried_at is None or now - self._tried_at >= PAUSE_SECONDS:
            self.flush(routes)

    def flush(self, routes: Mapping[str, TopicRoute]) -> None:
        """Store the offsets that are not stored yet."""
        by_leader: dict[str, list[QueueName]] = {}
        for queue, offset in self._next_offsets.items():
            leader = routes[queue[0]].addresses.get(queue[1], {}).get(LEADER_ID) if queue[0] in routes else None
            if leader is not None and self._stored_offsets.get(queue) != offset:
                by_leader.setdefault(leader, []).append(queue)
        if not by_leader:
            return
        self._tried_at = self._clock()
        try:
            for address, queues in by_leader.items():
                for begin in range(0, len(queues), _AT_ONCE):
                    self._store(address, queues[begin : begin + _AT_ONCE])
        except (Unreachable, ServerError) as error:
            self._connections.close()  # responses may still be in flight
            if not self._is_failing:
                log.warning("the offsets of consumer group %s could not be stored: %s", self._group, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _store(self, address: str, queues: list[QueueName]) -> None:
        connection = self._connections(address, _SECONDS_MAX)
        requests = [(queue, self._next_offsets[queue], connection.send(*self._request(queue))) for queue in queues]
        for queue, offset, number in requests:
            response = connection.receive(number)
            if response.code != ResponseCode.SUCCESS:
                raise ServerError(address, response.code, response.remark)
            self._stored_offsets[queue] = offset

    def _request(self, queue: QueueName) -> tuple[int, dict[str, str]]:
        topic, broker_name, queue_id = queue
        return RequestCode.UPDATE_CONSUMER_OFFSET, {
            "consumerGroup": self._group,
            "topic": topic,
            "queueId": str(queue_id),
            "commitOffset": str(self._next_offsets[queue]),
            "brokerName": broker_name,
        }
