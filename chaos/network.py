"""A simulated network between nodes: it delays, drops, duplicates, reorders, corrupts and partitions frames.

Frames travel in one of two ways, fixed per run. As *streams*, like the real connections: in order per lane, and a loss
breaks the connection with everything in flight. As *datagrams*, each on its own: that is harsher than any connection,
and the consensus core must tolerate it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from chaos.buggify import Buggify
from chaos.faults import CutLink, Heal, Isolation, LinkQuality, OneWay, Partition
from raftlog.consensus.types import NodeId
from raftlog.net.transport import Lane

STUCK_FRAMES_MAX = 1000
"""The number of frames that a connection across a cut link buffers before it is full."""


class Network:
    """The links that work, and the quality of all links."""

    def __init__(self, nodes: Sequence[NodeId], link_quality: LinkQuality, rng: random.Random) -> None:
        self._nodes = tuple(nodes)
        self._rng = rng
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self.link_quality = link_quality

    def disturb(self, fault: Partition | OneWay | CutLink | Isolation | Heal | LinkQuality) -> None:
        """Apply a fault to the links. Cut links stay cut until `Heal`."""
        match fault:
            case Partition(groups):
                group_of = {node: number for number, group in enumerate(groups) for node in group}
                self._cut |= {link for link in self._links() if group_of.get(link[0]) != group_of.get(link[1])}
            case OneWay(src, dst):
                self._cut.add((src, dst))
            case CutLink(one, other):
                self._cut |= {(one, other), (other, one)}
            case Isolation(node):
                self._cut |= {link for link in self._links() if node in link}
            case Heal():
                self._cut.clear()
            case LinkQuality():
                self.link_quality = fault

    def reconnect(self, node: NodeId) -> None:
        """Let all links of ``node`` work again."""
        self._cut = {link for link in self._cut if node not in link}

    def connected(self, src: NodeId, dst: NodeId) -> bool:
        """Whether the link from ``src`` to ``dst`` is not cut."""
        return (src, dst) not in self._cut

    def latency(self) -> float:
        """Draw the seconds that the next frame takes."""
        link_quality = self.link_quality
        return self._rng.uniform(link_quality.latency_seconds_min, link_quality.latency_seconds_max)

    def _links(self) -> list[tuple[NodeId, NodeId]]:
        return [(src, dst) for src in self._nodes for dst in self._nodes if src != dst]


class _LaneStream:
    """One lane from one node to another."""

    __slots__ = ("arrives_at", "epoch", "frames", "opens_at")

    def __init__(self) -> None:
        self.epoch = 0
        self.opens_at = 0.0
        self.arrives_at = 0.0
        self.frames: list[bytes] = []


Deliver = Callable[[NodeId, NodeId, bytearray, bool], bool]
"""``deliver(src, dst, frame, garbled)``; returns False when the receiver closes the connection."""


class Wires:
    """Carries frames between nodes.

    Args:
        at: ``at(time, step, *arguments)`` runs something at that time.
        now: the time.
    """

    def __init__(
        self,
        network: Network,
        *,
        streams: bool,
        at: Callable[..., None],
        now: Callable[[], float],
        deliver: Deliver,
        buggify: Buggify,
        rng: random.Random,
    ) -> None:
        self._network = network
        self._as_streams = streams
        self._at = at
        self._now = now
        self._deliver = deliver
        self._buggify = buggify
        self._rng = rng
        self._streams: dict[tuple[NodeId, NodeId, Lane], _LaneStream] = {}
        self.blocked_frames = 0
        """The number of frames that cut links held up."""

    def send(self, src: NodeId, dst: NodeId, lane: Lane, frame: bytes) -> bool:
        """Send one frame. Return False if its lane has no connection or no room."""
        if self._buggify("no-room-in-lane"):
            return False
        link_quality, rng, now = self._network.link_quality, self._rng, self._now()
        is_connected = self._network.connected(src, dst)
        self.blocked_frames += not is_connected
        if not self._as_streams:
            if is_connected and rng.random() >= link_quality.loss:
                for _ in range(2 if rng.random() < link_quality.duplication else 1):
                    self._at(now + self._network.latency(), self._arrive, src, dst, frame)
            return True
        stream = self._stream(src, dst, lane)
        if now < stream.opens_at:
            return False
        if not is_connected:
            stream.frames.append(frame)
            return len(stream.frames) < STUCK_FRAMES_MAX
        if link_quality.loss and rng.random() < link_quality.loss / 4:
            self._break(stream)
            return True
        stream.arrives_at = max(stream.arrives_at, now + self._network.latency())
        self._at(stream.arrives_at, self._arrive_in, stream, stream.epoch, src, dst, frame)
        return True

    def break_connections(self, node: NodeId) -> None:
        """Break the connections of ``node``, whose process has ended."""
        for (src, dst, _), stream in self._streams.items():
            if node in (src, dst):
                self._break(stream)

    def release_stuck(self) -> None:
        """Deliver frames that were stuck, if their link works again and their connection has not broken."""
        for (src, dst, _), stream in self._streams.items():
            if stream.frames and self._network.connected(src, dst):
                if not self._buggify("old-frames-after-heal"):
                    self._break(stream)
                    continue
                frames, stream.frames = stream.frames, []
                stream.arrives_at = max(stream.arrives_at, self._now() + self._network.latency())
                for frame in frames:
                    self._at(stream.arrives_at, self._arrive_in, stream, stream.epoch, src, dst, frame)

    def _stream(self, src: NodeId, dst: NodeId, lane: Lane) -> _LaneStream:
        stream = self._streams.get((src, dst, lane))
        if stream is None:
            stream = self._streams[src, dst, lane] = _LaneStream()
        return stream

    def _break(self, stream: _LaneStream) -> None:
        stream.epoch += 1
        stream.frames = []
        stream.opens_at = self._now() + self._rng.uniform(0.0, 0.5 if self._buggify("slow-reconnect") else 0.03)

    def _arrive_in(self, stream: _LaneStream, epoch: int, src: NodeId, dst: NodeId, frame: bytes) -> None:
        if stream.epoch == epoch and not self._arrive(src, dst, frame):
            self._break(stream)

    def _arrive(self, src: NodeId, dst: NodeId, frame: bytes) -> bool:
        data = bytearray(frame)
        is_garbled = (
            self._network.link_quality.garbling > 0 and self._rng.random() < self._network.link_quality.garbling
        )
        if is_garbled:
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        return self._deliver(src, dst, data, is_garbled)
