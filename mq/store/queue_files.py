"""The files of all consume queues behind one small set of open descriptors.

Ten thousand queues must not need ten thousand descriptors, so files are opened on demand and the least recently used
ones are closed. Everything here is called from one thread, the event loop's, except `sync`.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress

import msgspec

OPEN_FILES_MAX = 512

BLOCKS_KEPT = 1024
"""Verified blocks in memory, 4 MiB at most."""

BlockKey = tuple[Hashable, int]
"""A consume queue and the queue offset at which one of its blocks begins."""

_FILE_NAME = re.compile(r"[0-9]{20}")


class Changes(msgspec.Struct, frozen=True):
    """What happened to the files since it was last asked. Paths are relative to the root."""

    files: set[str]
    """Written or cut: to be synced before a checkpoint may rely on them."""
    directories: set[str]
    """Have new names in them: to be synced after the files."""
    retired: set[str]
    """No longer needed: may be unlinked once a checkpoint that does without them is durable."""
    forgotten: set[str]
    """Directories that were moved away; nothing that was said before about paths below them holds."""

    def merge(self, later: Changes) -> Changes:
        """These changes and later ones together."""
        return Changes(
            outside(self.files, later.forgotten) | later.files,
            outside(self.directories, later.forgotten) | later.directories,
            outside(self.retired, later.forgotten) | later.retired,
            self.forgotten | later.forgotten,
        )


def outside(paths: set[str], directories: set[str]) -> set[str]:
    """Those paths that are not one of the top-level directories, nor below one."""
    if not directories:
        return paths
    return {path for path in paths if path.partition(os.sep)[0] not in directories}


class QueueFiles:
    """Reads and writes files below one directory; paths are relative to it.

    Remembers which files and directories have changed since they were last taken for syncing.
    """

    def __init__(self, root: str, open_files_max: int = OPEN_FILES_MAX) -> None:
        assert open_files_max >= 1, f"open_files_max is {open_files_max}"
        self.root = root
        self._open_files_max = open_files_max
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._changes = Changes(set(), set(), set(), set())
        self.created_count = 0
        """How many files were created so far."""
        self._blocks: OrderedDict[BlockKey, bytes] = OrderedDict()
        self.damaged: dict[BlockKey, str] = {}
        """Blocks that were found to be damaged and are not restored yet, with what is wrong."""

    @property
    def open_count(self) -> int:
        """How many descriptors are open now."""
        return len(self._descriptors)

    def block(self, queue: Hashable, start: int) -> bytes | None:
        """The verified entries of a block as far as they are in memory, None if they are not."""
        return self._blocks.get((queue, start))

    def keep_block(self, queue: Hashable, start: int, entries: bytes) -> bytes:
        """Keep verified entries of a block in memory for a while; returns them."""
        self._blocks[queue, start] = entries
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return entries

    def restored(self, queue: Hashable, start: int) -> None:
        """A damaged block is whole again, or not needed any more."""
        self._blocks.pop((queue, start), None)
        self.damaged.pop((queue, start), None)

    def forget_blocks(self) -> None:
        """Keep no block in memory: what is read next comes out of files."""
        self._blocks.clear()

    def forget_queue(self, queue: Hashable) -> None:
        """A queue was dropped."""
        for table in (self._blocks, self.damaged):
            for key in [key for key in table if key[0] is queue]:
                del table[key]

    def read(self, path: str, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from byte ``position``; fewer at the end of the file. Raises OSError."""
        return os.pread(self._descriptor(path, create=False), size, position)

    def write(self, path: str, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at byte ``position``, creating file and directories. Into the page cache only.

        Raises OSError; then a prefix of the data may have been written, and writing again is safe.
        """
        descriptor = self._descriptor(path, create=True)
        self._changes.files.add(path)
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            position += written
            view = view[written:]

    def truncate(self, path: str, size: int) -> None:
        """Cut the file to ``size`` bytes. Raises OSError."""
        os.ftruncate(self._descriptor(path, create=False), size)
        self._changes.files.add(path)

    def size(self, path: str) -> int:
        """Size in bytes, 0 if there is no such file. Raises OSError."""
        try:
            return os.stat(self._absolute(path)).st_size
        except FileNotFoundError:
            return 0

    def list(self, directory: str) -> list[tuple[int, str]]:
        """The queue files of a directory as (first byte, path), ascending; empty if there is no directory."""
        try:
            found = os.listdir(self._absolute(directory))
        except FileNotFoundError:
            return []
        return [(int(name), os.path.join(directory, name)) for name in sorted(found) if _FILE_NAME.fullmatch(name)]

    def remove(self, path: str) -> None:
        """Unlink one file if it exists. Raises OSError."""
        self._close(path)
        self._changes.files.discard(path)
        with suppress(FileNotFoundError):
            os.unlink(self._absolute(path))

    def retire(self, path: str) -> None:
        """Give up a file that is no longer needed, but leave it in place: the last checkpoint may still name it."""
        self._close(path)
        self._changes.files.discard(path)
        self._changes.retired.add(path)

    def forget(self, directory: str) -> None:
        """Close everything below a top-level directory that is about to be moved away."""
        assert os.sep not in directory, f"{directory} is not a top-level directory"
        for path in [path for path in self._descriptors if path.startswith(directory + os.sep)]:
            self._close(path)
        self._changes = self._changes.merge(Changes(set(), set(), set(), {directory}))

    def take_changes(self) -> Changes:
        """What has changed since the last call."""
        changes, self._changes = self._changes, Changes(set(), set(), set(), set())
        return changes

    def close(self) -> None:
        """Close all descriptors; nothing is synced."""
        for path in list(self._descriptors):
            self._close(path)

    def _absolute(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _descriptor(self, path: str, *, create: bool) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        descriptor = self._open(path, create=create)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > self._open_files_max:
            _, oldest = self._descriptors.popitem(last=False)
            os.close(oldest)
        return descriptor

    def _open(self, path: str, *, create: bool) -> int:
        absolute = self._absolute(path)
        try:
            return os.open(absolute, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                raise
        os.makedirs(os.path.dirname(absolute), exist_ok=True)
        descriptor = os.open(absolute, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.created_count += 1
        # A new file survives a power loss only if every directory on the way to it is synced too.
        directory = os.path.dirname(path)
        while directory:
            self._changes.directories.add(directory)
            directory = os.path.dirname(directory)
        self._changes.directories.add("")
        return descriptor

    def _close(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)


def sync(root: str, changes: Changes) -> None:
    """Make changed files and then directories durable. Blocks; for a worker thread, with descriptors of its own.

    Raises OSError at the first that fails; then none of them may be taken for durable.
    """
    for path in sorted(changes.files):
        _sync_path(os.path.join(root, path), os.O_RDWR, os.fdatasync)
    # Deepest first, so that a name is durable only after what it names.
    for path in sorted(changes.directories, reverse=True):
        _sync_path(os.path.join(root, path), os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def _sync_path(path: str, flags: int, sync_descriptor: Callable[[int], None]) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
