"""Workloads whose messages become visible later, at a place that no answer tells: they are followed by their values."""

from __future__ import annotations

import random
from typing import ClassVar

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder
from jepsen.workloads.assigned import AssignedWorkload


class LaterWorkload(AssignedWorkload):
    """Readers without seeks follow the topic.

    Attributes:
        expected: values that are to become visible, as far as clients know.
    """

    seek_chance: ClassVar[float] = 0.0
    linger_seconds: ClassVar[float] = 2.0
    """What must not come has so long to come all the same."""

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self.expected: set[str] = set()

    async def wait_drained(self) -> None:
        """Until all that is expected was read, or nothing new was for a while."""
        await self._wait_none_left(lambda: len(self.expected - self.read_values))
        await trio.sleep(self.linger_seconds)
