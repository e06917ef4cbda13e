"""The base of all workloads: clients send and read until stopped, and record their observations."""

from __future__ import annotations

import abc
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder

QUEUES = 4
SIZES = (0, 0, 0, 0, 100, 100, 100, 1000, 1000, 20_000)
"""Body sizes in bytes; one is drawn per message. The SDK compresses some."""

SETTINGS = {
    # Small files roll often, so that checkpoints and flushes coincide with faults.
    "segment_bytes": str(256 * 1024),
    "message_bytes_max": "60000",
    "entry_bytes_max": "65536",
    "checkpoint_seconds": "0.5",
    "offset_commit_seconds": "0.05",
    # A restarted name server soon knows all brokers, and a broker that is cut off soon expires.
    "register_seconds": "1",
}


class Workload(abc.ABC):
    """Clients of one kind that work on one topic.

    Attributes:
        acknowledged: queue and offset of every acknowledged message.
        acknowledged_values: the same messages by value.
        newest: the highest offset acknowledged in each queue, 0 before there is one.
        consumed: queue and offset of every message that a consumer got.
        leader: the replica that was last seen to lead.
        programs: command lines of clients in separate processes, by name; for workloads that host them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    settings: ClassVar[dict[str, str]] = SETTINGS
    """Settings of the brokers."""
    drain_seconds_max: ClassVar[float] = 20.0
    """Seconds for which consumers may get nothing although messages are left, before draining stops."""
    has_store: ClassVar[bool] = False
    """Whether brokers archive their log in an object storage of the run."""
    topic_attributes: ClassVar[Mapping[str, str]] = {}
    """The attributes with which the topic is created."""

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        self.cluster = cluster
        self.recorder = recorder
        self.rng = rng
        self.stopping = trio.Event()
        self.acknowledged: set[tuple[str, int]] = set()
        self.acknowledged_values: set[str] = set()
        self.newest: defaultdict[str, int] = defaultdict(int)
        self.consumed: set[tuple[str, int]] = set()
        self.leader: str | None = None
        self.programs: dict[str, Sequence[str]] = {}

    @property
    def topic(self) -> str:
        """The name of the topic in use."""
        return self.name.capitalize()

    @property
    def queues(self) -> list[str]:
        """The names of the topic's queues, as histories write them."""
        return [f"{self.topic}/{queue_id}" for queue_id in range(QUEUES)]

    def lite_topic(self, rng: random.Random) -> str | None:
        """Return the lite topic of the next message. By default None: the message has no lite topic."""
        return None

    def acknowledge(self, queue: str, offset: int, value: str) -> None:
        """Record an acknowledged message."""
        self.acknowledged.add((queue, offset))
        self.acknowledged_values.add(value)
        self.newest[queue] = max(self.newest[queue], offset)

    @abc.abstractmethod
    async def produce(self) -> None:
        """Send until `stopping` is set. Returns when every send has an outcome."""

    async def consume(self) -> None:
        """Read messages until cancelled. By default, reads nothing."""
        await trio.sleep_forever()

    async def wait_drained(self) -> None:
        """Wait until consumers have all acknowledged messages, or get nothing new for a while."""
        await trio.lowlevel.checkpoint()

    async def _wait_consumed(self, seconds_max: float | None = None) -> None:
        await self._wait_none_left(lambda: len(self.acknowledged - self.consumed), seconds_max)

    async def _wait_none_left(self, count: Callable[[], int], seconds_max: float | None = None) -> None:
        """Wait until nothing is left, or nothing changes for ``seconds_max``, by default `drain_seconds_max`."""
        while count_left := count():
            with trio.move_on_after(seconds_max or self.drain_seconds_max) as timeout:
                while count() == count_left:  # noqa: ASYNC110 (consumers are many)
                    await trio.sleep(0.2)
            if timeout.cancelled_caught:
                return
