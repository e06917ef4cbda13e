"""Watches how code changes real files, and knows at any moment which of them a power cut would leave.

For everything that is not on a simulated disk (`chaos.disk`): small files of servers and clients, checkpoints, restored
logs, backups. `watch_files` replaces the calls of `os` that sync, name or remove files. What is certainly on the disk
is then known without any help of that code: the content that a file had at its last sync, under the names that its
directory had at its last sync.

`WatchedFiles.undurable` lists the files that a power cut would change now: after an operation that promises durability,
nothing. `WatchedFiles.leave` builds the directory as a power cut, or the end of the process, would leave it; called at
each step, an operation is interrupted everywhere.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

_CHANGES = (
    "rename",
    "replace",
    "link",
    "symlink",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "ftruncate",
    "posix_fallocate",
)


class UnsyncedRest(enum.Enum):
    """The part of unsynced changes that remains after a power cut, or after the end of the process."""

    NOTHING = "nothing"
    """Names and contents as at the last syncs, the certain part."""
    NAMES = "names"
    """All names, and contents as at the last syncs: a file system may write its journal before its data."""
    ALL = "all"
    """Everything: the process ended, and the system continued."""


class WatchedFiles:
    """Watches the files below ``root``. Their content at the start counts as durable."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.at_each_step: Callable[[str], None] | None = None
        """Called before each change of names and each sync, with its description."""
        self._lock = threading.RLock()
        self._names: dict[int, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._kept_open: list[int] = []  # so that no inode number is used for two files
        self._is_busy = False
        for directory, _, files in os.walk(self.root):
            self._record_directory(directory)
            for name in files:
                self._record_file(os.path.join(directory, name))

    def undurable(self) -> list[str]:
        """Return the paths below the root that a power cut might change now, each with the reason."""
        with self._lock:
            return sorted(self._undurable(self.root, self.root.stat().st_ino))

    def leave(self, target: Path, rest: UnsyncedRest) -> None:
        """Write the files into the new directory ``target`` as a power cut would leave them now."""
        with self._lock:
            if rest is UnsyncedRest.ALL:
                shutil.copytree(self.root, target, symlinks=True)
            else:
                self._write(target, self.root.stat().st_ino, str(self.root), by_names=rest is UnsyncedRest.NAMES)

    def close(self) -> None:
        """Close the descriptors that were held open."""
        for fd in self._kept_open:
            os.close(fd)

    def step(self, what: str) -> None:
        """Call `at_each_step` with the description of a change that follows."""
        if self.at_each_step is not None and not self._is_busy:
            self._is_busy = True
            try:
                self.at_each_step(what)
            finally:
                self._is_busy = False

    def add_directory(self, path: str) -> None:
        """Record a new directory, whose content is not durable."""
        if self._is_below(os.path.realpath(path)):
            self._keep(path)
            self._names[os.stat(path).st_ino] = {}

    def record_sync(self, fd: int, data: bytes | None = None, offset: int = 0) -> None:
        """Record that ``fd`` was synced: as a whole, or only ``data`` at ``offset``."""
        path = f"/proc/self/fd/{fd}"
        if not self._is_below(os.readlink(path)):
            return
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self._record_directory(path)
        elif data is None:
            self._record_file(path)
        else:
            inode = os.fstat(fd).st_ino
            content = bytearray(self._contents.get(inode, b"")).ljust(offset, b"\0")
            content[offset : offset + len(data)] = data
            self._keep(path)
            self._contents[inode] = bytes(content)

    def _is_below(self, path: str) -> bool:
        return path == str(self.root) or path.startswith(f"{self.root}/")

    def _record_directory(self, path: str) -> None:
        self._keep(path)
        self._names[os.stat(path).st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}

    def _record_file(self, path: str) -> None:
        self._keep(path)
        with open(path, "rb") as file:
            self._contents[os.fstat(file.fileno()).st_ino] = file.read()

    def _keep(self, path: str) -> None:
        self._kept_open.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def _undurable(self, directory: Path, inode: int) -> Iterator[str]:
        names = self._names.get(inode, {})
        entries = {entry.name: entry for entry in os.scandir(directory)}
        for name in names.keys() - entries.keys():
            yield f"{(directory / name).relative_to(self.root)}: comes back"
        for name, entry in entries.items():
            path = directory / name
            where = path.relative_to(self.root)
            if names.get(name) != entry.inode():
                yield f"{where}: its name may be lost"
            elif entry.is_dir():
                yield from self._undurable(path, entry.inode())
            elif entry.is_file() and self._contents.get(entry.inode()) != path.read_bytes():
                yield f"{where}: its content may be lost"

    def _write(self, target: Path, inode: int, path: str, *, by_names: bool) -> None:
        target.mkdir()
        if by_names:
            names = {entry.name: entry.inode() for entry in os.scandir(path)} if path else {}
        else:
            names = self._names.get(inode, {})
        for name, child in names.items():
            below = os.path.join(path, name) if path else ""
            is_directory = child in self._names or (by_names and os.path.isdir(below))
            if is_directory:
                self._write(target / name, child, below, by_names=by_names)
            else:
                (target / name).write_bytes(self._contents.get(child, b""))


@contextlib.contextmanager
def watch_files(root: Path) -> Iterator[WatchedFiles]:
    """Watch the files below ``root`` within the block, whichever thread changes them."""
    files = WatchedFiles(root)
    real = {name: getattr(os, name) for name in (*_CHANGES, "fsync", "fdatasync", "pwritev")}

    def wrap_change(name: str) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            with files._lock:
                files.step(f"{name} {arguments[0]}")
                result = real[name](*arguments, **options)
                if name == "mkdir" and not options.get("dir_fd"):
                    files.add_directory(os.fspath(arguments[0]))
                return result

        return change

    def wrap_sync(name: str) -> Callable[[Any], None]:
        def sync(target: Any) -> None:
            fd = target if isinstance(target, int) else target.fileno()
            with files._lock:
                files.step(f"{name} {os.readlink(f'/proc/self/fd/{fd}')}")
                real[name](fd)
                files.record_sync(fd)

        return sync

    def pwritev(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        with files._lock:
            if not flags & os.RWF_DSYNC:
                return int(real["pwritev"](fd, buffers, offset, flags))
            files.step(f"write {os.readlink(f'/proc/self/fd/{fd}')}")
            count = int(real["pwritev"](fd, buffers, offset, flags))
            files.record_sync(fd, b"".join(buffers)[:count], offset)
            return count

    with contextlib.ExitStack() as stack:
        stack.callback(files.close)
        for name in _CHANGES:
            stack.enter_context(mock.patch.object(os, name, wrap_change(name)))
        for name in ("fsync", "fdatasync"):
            stack.enter_context(mock.patch.object(os, name, wrap_sync(name)))
        stack.enter_context(mock.patch.object(os, "pwritev", pwritev))
        yield files
