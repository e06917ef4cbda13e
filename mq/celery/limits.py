"""The intervals of the transport. Workers use the defaults; tests use smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """The intervals of the transport, in seconds."""

    fresh_seconds: float = 10.0
    """Seconds for which the bindings of other processes are taken from memory."""
    missed_seconds: float = 1.0
    """Seconds for which they are when no queue is found for a message."""
    list_seconds: float = 600.0
    """Bindings are read again after this time also if their version is the same: an operator may have deleted topics.
    """
    route_seconds: float = 10.0
    """Seconds after which a consumer looks whether a queue has got another broker group, or more levels of priority."""


DEFAULT: Final = TransportLimits()

TEST_MIN: Final = TransportLimits(fresh_seconds=0.0, missed_seconds=0.0, route_seconds=0.05)
"""For tests."""
