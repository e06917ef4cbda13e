"""The sizes and waits of benchmark cases. Tests use smaller ones than the defaults.

The command line does not set them, so that figures of two runs can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of messages, and times in seconds."""

    connect_seconds: float = 2.0
    """Seconds from the start of a load generator until its connections have filled their window in flight."""
    curve_warm_up_seconds: float = 1.5
    """Seconds from then on until the windows of a curve begin."""
    backlog_messages: int = 200_000
    random_messages: int = 100_000
    old_messages: int = 5_000_000
    latency_messages: int = 5000
    timers: int = 1_000_000
    idle_core: float = 0.1
    """All replicas together use less than this share of a core when they are idle."""


DEFAULT: Final = Sizes()

TEST_MIN: Final = Sizes(
    connect_seconds=0.5,
    curve_warm_up_seconds=0.3,
    backlog_messages=20_000,
    random_messages=10_000,
    old_messages=1_000_000,
    latency_messages=400,
    timers=100_000,
    idle_core=100.0,
)
"""The sizes of tests."""
