"""Commits and queries the offsets of consumer groups by raw requests to any replica.

Each worker has its own group and commits increasing offsets; it queries the offsets of all groups.
"""

from __future__ import annotations

import random

from checkers.recording import Worker
from jepsen.wire import Wire
from jepsen.workloads.log import LogWorkload, unknown_unless_answered
from jepsen.workloads.workload import QUEUES
from mq.protocol.codes import RequestCode, ResponseCode

NOWHERE = -1
"""The offset of a group that never committed."""


class OffsetsWorkload(LogWorkload):
    """Commits and queries offsets. Some operations are those of the workload *log*, because offsets need messages."""

    name = "offsets"
    summary = "raw commits of consumer offsets, and questions for them, at any replica; appends in between"

    async def operate(self, worker: Worker, wire: Wire, node: str, group: int, rng: random.Random) -> None:
        """Commit an offset, query one, or do an operation of the workload *log*."""
        chance = rng.random()
        queue_id = rng.randrange(QUEUES)
        if chance < 0.3:
            await self._commit(worker, wire, node, f"jepsen_offsets_{group}", queue_id)
        elif chance < 0.6:
            group_asked = f"jepsen_offsets_{rng.randrange(self.workers)}"
            await ask_stored_offset(worker, wire, node, self.topic, group_asked, queue_id)
        else:
            await super().operate(worker, wire, node, group, rng)

    async def _commit(self, worker: Worker, wire: Wire, node: str, group: str, queue_id: int) -> None:
        queue = f"{self.topic}/{queue_id}"
        offset = self.newest[queue]  # only grows, and stays within the queue
        fields = {"consumerGroup": group, "topic": self.topic, "queueId": queue_id, "commitOffset": offset}
        with unknown_unless_answered(worker, "commit", k=queue, v=group, o=offset, n=node):
            response, _ = await wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if response.code == ResponseCode.SUCCESS:
            worker.ok("commit", k=queue, v=group, o=offset, n=node)
        else:
            worker.info("commit", f"code {response.code}: {response.remark}", k=queue, v=group, n=node)


async def ask_stored_offset(worker: Worker, wire: Wire, node: str, topic: str, group: str, queue_id: int) -> None:
    """Query a group's offset at a replica. Raises trio.BrokenResourceError; then the outcome is unknown."""
    queue = f"{topic}/{queue_id}"
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "setZeroIfNotFound": "false"}
    with unknown_unless_answered(worker, "stored", k=queue, v=group, n=node):
        response, _ = await wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    if response.code == ResponseCode.SUCCESS:
        worker.ok("stored", k=queue, v=group, o=int(response.ext["offset"]), n=node)
    elif response.code == ResponseCode.QUERY_NOT_FOUND:
        worker.ok("stored", k=queue, v=group, o=NOWHERE, n=node)
    else:
        worker.fail("stored", f"code {response.code}: {response.remark}", k=queue, v=group, n=node)
