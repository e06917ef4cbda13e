"""Removes what killed runs leave behind: mounts, stopped servers, control groups.

Everything that a run creates outside its directory names that directory. A running run holds a lock in its directory;
only leftovers of unlocked directories are removed. So concurrent runs do not disturb each other, and nothing else is
touched.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mq.local_cluster.ports import is_locked

PREFIX = "rmqf-"
"""Prefix of the mount points of runs."""
RUN_VARIABLE = "RAFTMQ_JEPSEN_RUN"
"""The variable of every server with the directory of its run."""
NAMESPACES = Path("/run/netns")
"""Networks are cleaned up when networks are opened, under their own lock: a running run may have them."""
CGROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
"""The directories in which a run may have created control groups: version 1, version 2."""

_LOCK = "run.lock"


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a run's directory until the block or this process ends. Raises OSError if another process holds the lock."""
    with (directory / _LOCK).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_held(directory: Path) -> bool:
    """Whether the run of this directory is running."""
    return is_locked(directory / _LOCK)


def mount_points(mounts: Iterable[str]) -> list[Path]:
    """Return the mount points of runs in the lines of /proc/self/mounts, newest first."""
    points = (line.split()[1].encode().decode("unicode_escape") for line in mounts if line.count(" ") >= 2)
    paths = [Path(point) for point in points if point.rpartition("/")[2].startswith(PREFIX)]
    return [point for point in reversed(paths) if point.parent != NAMESPACES]


def run_of(environ: bytes) -> Path | None:
    """Return the directory of the run that a process belongs to, given its /proc/PID/environ."""
    for each in environ.split(b"\0"):
        name, _, value = each.partition(b"=")
        if name == RUN_VARIABLE.encode() and value:
            return Path(os.fsdecode(value))
    return None


def remove_leftovers() -> list[str]:
    """Remove leftovers of dead runs; returns a description."""
    names = []
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        run = run_of(_content(pid))
        if run is not None and pid != os.getpid() and not is_held(run):
            try:
                os.kill(pid, signal.SIGKILL)  # a stopped one does not notice that its run has ended
            except OSError:
                continue
            names.append(f"process {pid} of {run}")
    with open("/proc/self/mounts", encoding="ascii") as mounts:
        points = mount_points(mounts)
    for point in points:
        if not is_held(point.parent):
            process = subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)
            names += [] if process.returncode else [f"mount {point}"]
    for group in (path for root in CGROUPS if root.is_dir() for path in root.glob(f"{PREFIX}*")):
        _, _, pid_text = group.name.rpartition("-")
        if pid_text.isdigit() and not Path(f"/proc/{pid_text}").exists():
            try:
                group.rmdir()
            except OSError:
                continue
            names.append(f"control group {group}")
    return names


def _content(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to another user
