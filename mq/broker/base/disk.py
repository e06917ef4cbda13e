"""How full a disk is."""

from __future__ import annotations

from pathlib import Path

from raftlog.segment import RealDisk


def disk_usage(directory: Path) -> tuple[int, int]:
    """Free and total bytes of the disk that a directory is on, without what is kept for root. Raises OSError.

    So `df` counts as well, and the replica that refuses messages for want of room.
    """
    return RealDisk().usage(str(directory))


def disk_used(directory: Path) -> float:
    """Which part of a directory's disk is in use, 0 to 1. Raises OSError."""
    free, total = disk_usage(directory)
    return 1 - free / total
