"""Disk usage."""

from __future__ import annotations

from pathlib import Path

from raftlog.segment import RealDisk


def disk_usage(directory: Path) -> tuple[int, int]:
    """Free and total bytes of the disk of a directory, without the space reserved for root. Raises OSError.

    `df` counts in the same way, and so does the check that refuses messages on a full disk.
    """
    return RealDisk().usage(str(directory))


def disk_used(directory: Path) -> float:
    """The used fraction of a directory's disk, 0 to 1. Raises OSError."""
    free, total = disk_usage(directory)
    return 1 - free / total
