"""Reads the CPU time of a process and its children from the kernel."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and all its descendants, in steps of 10 ms; 0 once it has ended."""
    try:
        children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in _fields(task / "children")]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return cpu_seconds_without_running_children(pid) + sum(cpu_seconds(int(child)) for child in children)


def cpu_seconds_without_running_children(pid: int) -> float:
    """Return the CPU seconds of a process and of those children that have ended and that it waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_SECOND


def _fields(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []  # the thread has ended in the meantime
