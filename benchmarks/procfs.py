"""Reads the memory and CPU use of a process and of the machine from the kernel."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

REAL_TIME_HELP = "servers and clients get the processors before all other programs; needs root"


def run_before_others() -> None:
    """Give this process and its later children priority over all programs of normal priority.

    On a machine that others use, latencies are nearly those of a quiet one then. Ends the process without permission.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError as error:
        sys.exit(f"--real-time needs root, or CAP_SYS_NICE: {error.strerror}")


def rss_bytes(pid: int) -> int:
    """Return the resident set of the process in bytes; 0 once it has ended."""
    return _status_bytes(pid, "VmRSS:")


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous part of the resident set in bytes; 0 once the process has ended."""
    return _status_bytes(pid, "RssAnon:")


def own_cpu_seconds(pid: int) -> float:
    """Return user and system time of the process without children, in steps of 10 ms; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_seconds(pid: int) -> float:
    """Return the seconds in which the main thread was ready, but waited for a core; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def ran_seconds(pid: int) -> float:
    """Return the seconds that the process's living threads have run, to the nanosecond; 0 once it has ended."""
    return sum(_thread_numbers(pid, "schedstat", lambda text: int(text.split()[0]))) / 1e9


def wake_ups(pid: int) -> float:
    """Return how often the living threads of the process have waited for something; 0 once it has ended."""
    return sum(_thread_numbers(pid, "status", lambda text: _number_in(text, "voluntary_ctxt_switches:")))


def _thread_numbers(pid: int, name: str, number: Callable[[str], int]) -> list[int]:
    numbers = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                numbers.append(number((task / name).read_text()))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile
    return numbers


def machine_cpu_seconds() -> float:
    """Return the CPU seconds of all processes and the kernel since the machine's start, in steps of 10 ms."""
    words = Path("/proc/stat").read_text().partition("\n")[0].split()
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, words[1:])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """Return the ids of the process and all its descendants."""
    pids = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += process_tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile
    return pids


def rss_bytes_max(pid: int) -> int:
    """Return the peak resident set of the process in bytes; 0 once it has ended."""
    return _status_bytes(pid, "VmHWM:")


def disk_bytes_read(pid: int) -> int:
    """Return the bytes that the process made the disk read, with read-ahead; 0 once it has ended."""
    return _file_number(f"/proc/{pid}/io", "read_bytes:")


def _status_bytes(pid: int, name: str) -> int:
    return 1024 * _file_number(f"/proc/{pid}/status", name)


def _file_number(path: str, name: str) -> int:
    try:
        return _number_in(Path(path).read_text(), name)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _number_in(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def machine() -> str:
    """Describe the processor, the kernel and the interpreter in one line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} x {model}, Linux {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})"
    )
