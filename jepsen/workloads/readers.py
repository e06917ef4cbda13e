"""Workloads whose messages become visible later, at an offset that no response reports. Readers track values."""

from __future__ import annotations

import random
from typing import ClassVar

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder
from jepsen.workloads.assigned import AssignedWorkload


class LaterWorkload(AssignedWorkload):
    """A workload whose readers follow the topic without seeking.

    Attributes:
        expected: values that should become visible, as far as clients know.
    """

    seek_chance: ClassVar[float] = 0.0
    linger_seconds: ClassVar[float] = 2.0
    """Seconds to keep reading for messages that must not arrive."""

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self.expected: set[str] = set()

    async def wait_drained(self) -> None:
        """Wait until all expected messages were read, or nothing new has arrived for a while."""
        await self._wait_none_left(lambda: len(self.expected - self.read_values))
        await trio.sleep(self.linger_seconds)
