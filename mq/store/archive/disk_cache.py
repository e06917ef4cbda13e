"""Caches objects of an archive on disk, up to a size: deletes those that were not used for longest.

An object may be missing after any failure of the disk: the cache only holds copies. Readers must verify what it
returns, as if it came from the store. For any thread.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

_NAME: Final = re.compile(r"[0-9a-f]{16}\.\d{20}")
_UNFINISHED: Final = ".new"


class BlockCache(Protocol):
    """The part of `DiskCache` that readers of blocks use."""

    def get(self, name: str, /) -> bytes | None:
        """Return a cached object; None without one."""

    def put(self, name: str, data: bytes, /) -> None:
        """Cache an object."""

    def drop(self, name: str, /) -> None:
        """Remove an object from the cache."""


class NoCache:
    """Caches nothing, for readers that read everything once."""

    def get(self, name: str) -> bytes | None:
        """Return None."""
        return None

    def put(self, name: str, data: bytes) -> None:
        """Do nothing."""

    def drop(self, name: str) -> None:
        """Do nothing."""


class DiskCache:
    """Files of one directory, to which no other process writes. It is made when something is put into it.

    Args:
        bytes_max: of all files; 0 keeps nothing.
        has_room: whether the disk has room for more. Without it, nothing is added.

    Attributes:
        nbytes: of all files.
    """

    def __init__(self, directory: str, bytes_max: int, has_room: Callable[[], bool]) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._has_room = has_room
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._writes = 0
        self.nbytes = 0
        for _, name, nbytes in sorted(_find_files(directory)):
            self._sizes[name] = nbytes
            self.nbytes += nbytes
        self._shrink(bytes_max)

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none, or it cannot be read."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            with open(self._path(name), "rb") as file:
                return file.read()
        except OSError:
            self.drop(name)
            return None

    def put(self, name: str, data: bytes) -> None:
        """Keep a file, if there is room for it."""
        assert _NAME.fullmatch(name), f"{name} is no name in the cache"
        if len(data) > self._bytes_max:
            return
        if not self._has_room():
            self.clear()
            return
        with self._lock:
            self._writes += 1
            path = f"{self._path(name)}.{self._writes}{_UNFINISHED}"
        try:
            os.makedirs(self._directory, exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            with self._lock:
                os.rename(path, self._path(name))
                self.nbytes += len(data) - self._sizes.pop(name, 0)
                self._sizes[name] = len(data)
                assert self.nbytes >= len(data), f"{self.nbytes} bytes are in {self._directory} with {name}"
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            return
        self._shrink(self._bytes_max)

    def drop(self, name: str) -> None:
        """Remove a file, such as one that is damaged."""
        with self._lock:
            self._remove(name)

    def clear(self) -> None:
        """Remove all files: something else needs the disk."""
        self._shrink(0)

    def _shrink(self, bytes_max: int) -> None:
        with self._lock:
            while self.nbytes > bytes_max and self._sizes:
                self._remove(next(iter(self._sizes)))

    def _remove(self, name: str) -> None:
        nbytes = self._sizes.pop(name, None)
        if nbytes is not None:
            self.nbytes -= nbytes
            assert self.nbytes >= 0, f"{self.nbytes} bytes are in {self._directory} without {name}"
        with suppress(OSError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _find_files(directory: str) -> list[tuple[float, str, int]]:
    """List the write time, name and size of each file of the cache. Removes unfinished files; leaves all others alone,
    such as a directory that a user has made there.
    """
    files: list[tuple[float, str, int]] = []
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return []
    for each in entries:
        with suppress(OSError):
            if not each.is_file(follow_symlinks=False):
                continue
            if _NAME.fullmatch(each.name):
                status = each.stat()
                files.append((status.st_mtime, each.name, status.st_size))
            elif each.name.endswith(_UNFINISHED):
                os.unlink(each.path)
    return files
