"""Measures disk usage."""

from __future__ import annotations

from pathlib import Path

from raftlog.segment import RealDisk


def disk_usage(directory: Path) -> tuple[int, int]:
    """Return the free and the total bytes of a directory's disk, without the space reserved for root. Raises OSError.

    `df` counts in the same way, and so does the check that refuses messages on a full disk.
    """
    return RealDisk().usage(str(directory))


def disk_used(directory: Path) -> float:
    """Return the used fraction, 0 to 1, of a directory's disk. Raises OSError."""
    return used_part(*disk_usage(directory))


def used_part(free: int, total: int) -> float:
    """Return the used fraction of a disk; 0 for a file system without a size, such as an unlimited tmpfs."""
    return 1 - free / total if total else 0.0
