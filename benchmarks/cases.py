"""Defines the cases of `make bench`, and their measurements as values."""

from __future__ import annotations

from dataclasses import dataclass

BODIES = (128, 1024)
SHAPES = ((1, 1), (64, 1), (4, 256))


@dataclass(frozen=True, slots=True)
class Case:
    """A load on ``nodes`` replicas: ``connections`` with ``in_flight`` messages of ``body_bytes`` each."""

    nodes: int
    body_bytes: int
    connections: int
    in_flight: int

    @property
    def name(self) -> str:
        """The case's name in tables and in the option ``--case``."""
        return f"{self.nodes}n-{self.body_bytes}-{self.connections}x{self.in_flight}"

    @property
    def load(self) -> str:
        """The connections, messages in flight and body size as text, without the replicas."""
        body = f"{self.body_bytes} B" if self.body_bytes < 1024 else f"{self.body_bytes // 1024} KiB"
        return f"{body} {self.connections}x{self.in_flight}"


@dataclass(frozen=True, slots=True)
class Window:
    """The figures of one window. CPU is in microseconds per acknowledged message, shares are in cores."""

    messages_per_second: float
    p50_ms: float
    p99_ms: float
    leader_us: float
    follower_us: tuple[float, ...]
    generator_us: float
    generator_cores_max: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """All windows of a case. Measured once: memory of each replica, the leader first, and the load average before."""

    case: Case
    windows: tuple[Window, ...]
    rss_mib: tuple[float, ...]
    load_average: float
    durability: str

    @property
    def median(self) -> Window:
        """The window with the median rate. Its figures belong together, unlike medians of each figure."""
        windows = sorted(self.windows, key=lambda window: window.messages_per_second)
        return windows[len(windows) // 2]


def all_cases(nodes: tuple[int, ...] = (1, 3)) -> list[Case]:
    """Return every case, in the order of the tables."""
    return [Case(n, body, *shape) for n in nodes for body in BODIES for shape in SHAPES]
