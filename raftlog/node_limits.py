"""Limits of a node, as a value: production uses the defaults, tests smaller ones. Operators do not set them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raftlog.segment.limits import LogLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """Limits of a node and of its log."""

    log: LogLimits = field(default_factory=LogLimits)
    """Limits of the log. A directory must always be opened with the same ones."""
    disk_poll_seconds: float = 1.0
    """Interval at which free space is looked at."""
    room_seconds: float = 2.0
    """A node without room for a fetch or a repair tries again after this time."""
    refill_look_seconds: float = 2.0
    """Interval at which a node looks whether it may fetch files that it deleted early."""
    archive_read_bytes: int = 4 * 1024 * 1024
    """A node that gets the log reads about this number of bytes of an archive at once."""
    archive_read_seconds: float = 4.0
    """An archive that needs longer for that is too slow: a leader is faster."""
    archive_trial_bytes: int = 16 * 1024 * 1024
    archive_slow_bytes_per_second: float = 16 * 1024 * 1024
    """If this much came from the archive, and slower than this, the leader is tried with as much."""
    archive_open_seconds: float = 10.0
    """Seconds for which a node that gets the log waits for the archive before it begins with the leader."""
    repair_patience_seconds: float = 3.0
    """Seconds for which only committed bytes are requested for a repair: a group that works without this replica
    commits them meanwhile.
    """
    refusal_log_seconds: float = 60.0
    """The refusal of a peer is logged again after this time at the earliest."""
    remind_seconds: float = 60.0
    """Interval at which a node that waits for its group logs that."""


DEFAULT: Final = NodeLimits()
