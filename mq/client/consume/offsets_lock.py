"""Keeps the offsets file of a broadcast consumer for one consumer: two would each store offsets that the other has not
reached, and skip messages when they are opened again.

The lock is the system's on a file beside it, which ends with the process. Such locks know processes only, so the locks
of this process are listed here. A file system that has no locks, or that nobody may write, is left alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Final

from mq.client.errors import AlreadyOpen
from mq.client.net.forks import forks
from mq.durable_files import make_directory

_holders: Final[dict[str, int]] = {}
"""Files that consumers of this process use, by the number of forks so far: the files of a parent are the parent's."""


class OffsetsLock:
    """Locks one file until `release`. Raises AlreadyOpen if another consumer has locked it."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        if _holders.get(self._path) == forks():
            raise self._refusal("this process")
        self._file = self._lock_file()
        _holders[self._path] = forks()

    def release(self) -> None:
        """Let another consumer use the file. Does nothing if it was released, or was locked by another process."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if _holders.get(self._path) == forks():
            del _holders[self._path]

    def _lock_file(self) -> IO[bytes] | None:
        lock = Path(f"{self._path}.lock")
        try:
            make_directory(lock.parent)
            file = lock.open("ab")
        except OSError:  # its offsets cannot be written either, which is logged then
            return None
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                file.close()
                raise self._refusal("another process") from error
            except OSError:
                file.close()
                return None
        return file

    def _refusal(self, who: str) -> AlreadyOpen:
        return AlreadyOpen(
            f"a consumer of {who} keeps its offsets in {self._path}: give each consumer a file of its own, or "
            "broadcast=True"
        )
