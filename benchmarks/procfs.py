"""What the kernel says of a process: CPU time, memory; and of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time the process has used, in steps of 10 ms. 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def rss_bytes(pid: int) -> int:
    """Resident set of the process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


def machine() -> str:
    """Processor, kernel and interpreter in a line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} x {model}, Linux {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})"
    )
