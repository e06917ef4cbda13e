"""Reads old messages, which only object storage still has, at all replicas of a growing log."""

from __future__ import annotations

import random
from typing import ClassVar

from checkers.recording import Worker
from jepsen.wire import Wire
from jepsen.workloads.log import LogWorkload
from jepsen.workloads.workload import QUEUES, SETTINGS

MIB = 1024 * 1024


class ArchiveWorkload(LogWorkload):
    name = "archive"
    summary = "raw appends, and reads of the newest messages and of those that only the archive has, at any replica"
    has_store: ClassVar[bool] = True
    settings: ClassVar[dict[str, str]] = SETTINGS | {
        "archive_bytes_per_second": "0",
        "archive_cache_bytes": "0",
        "local_retention_bytes": str(MIB),
        "retention_check_seconds": "0.3",
    }

    async def operate(self, worker: Worker, wire: Wire, node: str, number: int, rng: random.Random) -> None:
        """Read from a random place of a queue, or do an operation of the workload *log*."""
        if rng.random() < 0.3:
            queue_id = rng.randrange(QUEUES)
            newest = self.newest[f"{self.topic}/{queue_id}"]
            await self._read(worker, wire, node, queue_id, rng.randrange(newest + 1))
        else:
            await super().operate(worker, wire, node, number, rng)
