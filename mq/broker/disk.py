"""How full a disk is."""

from __future__ import annotations

import shutil
from pathlib import Path


def disk_usage(directory: Path) -> tuple[int, int]:
    """Free and total bytes of the disk that a directory is on. Raises OSError."""
    usage = shutil.disk_usage(directory)
    return usage.free, usage.total


def disk_used(directory: Path) -> float:
    """Which part of a directory's disk is in use, 0 to 1. Raises OSError."""
    free, total = disk_usage(directory)
    return 1 - free / total
