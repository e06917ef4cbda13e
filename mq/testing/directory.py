"""The directory of a kit: in memory if the machine can, and removed however the test ends.

Each has a file that its process holds locked. A process that is killed leaves its directory behind; the next kit of any
process finds it unlocked, and removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_PREFIX = "raftmq-kit-"
_LOCK = "lock"
_MEMORY = Path("/dev/shm")  # noqa: S108 - each kit has a directory of its own there
_ROOM_BYTES = 64 * 1024 * 1024

_open: dict[Path, int] = {}
"""The directories of this process, and the process."""


@contextlib.contextmanager
def new_directory() -> Iterator[Path]:
    """Make an empty directory, which exists until the block ends. Raises OSError."""
    parent = _MEMORY if _has_room(_MEMORY) else Path(tempfile.gettempdir())
    _sweep(parent)
    directory, lock = _lock_new(parent)
    with lock:
        _open[directory] = os.getpid()
        try:
            yield directory
        finally:
            _open.pop(directory, None)
            shutil.rmtree(directory, ignore_errors=True)


def _lock_new(parent: Path) -> tuple[Path, TextIO]:
    """Make a directory, and the locked file that says which process owns it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = (directory / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / _LOCK).exists():
            return directory, lock
        lock.close()  # another process has found it before it was locked, and removed it


def warn_not_closed() -> None:
    """Log a warning that a test kit was not closed."""
    warnings.warn(
        "a test kit was not closed: use it as `with running_kit() as kit:` or `async with open_kit() as kit:`",
        ResourceWarning,
        stacklevel=3,
    )


def _has_room(directory: Path) -> bool:
    try:
        return os.access(directory, os.W_OK) and shutil.disk_usage(directory).free > _ROOM_BYTES
    except OSError:
        return False


def _sweep(parent: Path) -> None:
    """Remove directories that killed processes left."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (directory / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)


@atexit.register
def _at_exit() -> None:
    for directory, process in list(_open.items()):
        if process == os.getpid():  # else it belongs to the process which forked this one
            shutil.rmtree(directory, ignore_errors=True)
