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
    return used_part(*disk_usage(directory))


def used_part(free: int, total: int) -> float:
    """The used fraction of a disk. A file system without a size, such as a tmpfs without a limit, is never full."""
    return 1 - free / total if total else 0.0
