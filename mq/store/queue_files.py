"""Reads and writes the files of all consume queues with few open descriptors.

Ten thousand queues must not need ten thousand descriptors, so files are opened on demand and the least recently used
ones are closed. Everything runs on the event loop's thread, except `sync`.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress

import msgspec

from mq.protocol.numbers import QueueOffset
from mq.store.write_back import begin_write_back

OPEN_FILES_MAX = 512

BLOCKS_KEPT = 1024
"""Verified blocks in memory, at most 4 MiB."""

BlockKey = tuple[Hashable, QueueOffset]
"""A consume queue and the queue offset at which one of its blocks begins."""

_WRITE_BACK_FILES_MIN = 16
"""From this number of files on, writeback is started for all of them before the first one is synced."""

_FILE_NAME = re.compile(r"[0-9]{20}")


class Changes(msgspec.Struct, frozen=True):
    """Files that changed since the last call. Paths are relative to the root."""

    files: set[str]
    """Written or cut: sync before a checkpoint relies on them."""
    directories: set[str]
    """Contain new names: sync after the files."""
    retired: set[str]
    """No longer needed: may be unlinked once a checkpoint without them is durable."""
    forgotten: set[str]
    """Directories that were moved away; earlier changes to paths below them are void."""

    def merge(self, later: Changes) -> Changes:
        """Merge these changes with later ones."""
        return Changes(
            outside(self.files, later.forgotten) | later.files,
            outside(self.directories, later.forgotten) | later.directories,
            outside(self.retired, later.forgotten) - later.files | later.retired,
            self.forgotten | later.forgotten,
        )


def outside(paths: set[str], directories: set[str]) -> set[str]:
    """Drop the paths of top-level directories, and the paths below one."""
    if not directories:
        return paths
    return {path for path in paths if path.partition(os.sep)[0] not in directories}


class QueueFiles:
    """Reads and writes files below one directory; paths are relative to it.

    Records which files and directories have changed since they were last taken for syncing.
    """

    def __init__(self, root: str, open_files_max: int = OPEN_FILES_MAX) -> None:
        assert open_files_max >= 1, f"open_files_max is {open_files_max}"
        self.root = root
        self._open_files_max = open_files_max
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._changes = Changes(set(), set(), set(), set())
        self.created_count = 0
        """Number of files created so far."""
        self._blocks: OrderedDict[BlockKey, bytes] = OrderedDict()
        self.damaged: dict[BlockKey, str] = {}
        """Damaged blocks that are not restored yet, with the error."""

    @property
    def open_count(self) -> int:
        """Return the number of descriptors that are open now."""
        return len(self._descriptors)

    def block(self, queue: Hashable, start: QueueOffset) -> bytes | None:
        """Return the verified entries of a cached block; None if it is not cached."""
        return self._blocks.get((queue, start))

    def keep_block(self, queue: Hashable, start: QueueOffset, entries: bytes) -> bytes:
        """Cache verified entries of a block; returns them."""
        self._blocks[queue, start] = entries
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return entries

    def forget_damage(self, queue: Hashable, start: QueueOffset) -> None:
        """Remove a damaged block from `damaged`, because it is restored or no longer needed."""
        self._blocks.pop((queue, start), None)
        self.damaged.pop((queue, start), None)

    def forget_blocks(self) -> None:
        """Drop all cached blocks: the next reads come from files."""
        self._blocks.clear()

    def forget_queue(self, queue: Hashable) -> None:
        """Forget the blocks of a queue that was dropped."""
        for table in (self._blocks, self.damaged):
            for key in [key for key in table if key[0] is queue]:
                del table[key]

    def read(self, path: str, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from byte ``position``; fewer at the end of the file. Raises OSError."""
        return os.pread(self._descriptor(path, create=False), size, position)

    def write(self, path: str, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at byte ``position``, creating file and directories. Into the page cache only.

        Raises OSError; a prefix of the data may have been written, and writing again is safe.
        """
        assert position >= 0, f"{path} is written at byte {position}"
        descriptor = self._descriptor(path, create=True)
        self._changes.files.add(path)
        self._changes.retired.discard(path)  # older entries came back
        view = memoryview(data)
        while view:
            count = os.pwrite(descriptor, view, position)
            assert count > 0, f"{path}: nothing of {len(view)} bytes was written at byte {position}"
            position += count
            view = view[count:]

    def truncate(self, path: str, size: int) -> None:
        """Cut the file to ``size`` bytes. Raises OSError."""
        assert size > 0, f"{path} is cut to {size} bytes, instead of removed"
        os.ftruncate(self._descriptor(path, create=False), size)
        self._changes.files.add(path)

    def size(self, path: str) -> int:
        """Size in bytes, 0 if there is no such file. Raises OSError."""
        try:
            return os.stat(self._absolute(path)).st_size
        except FileNotFoundError:
            return 0

    def list(self, directory: str) -> list[tuple[int, str]]:
        """List the queue files of a directory as (first byte, path), ascending; empty without a directory."""
        try:
            names = os.listdir(self._absolute(directory))
        except FileNotFoundError:
            return []
        return [(int(name), os.path.join(directory, name)) for name in sorted(names) if _FILE_NAME.fullmatch(name)]

    def remove(self, path: str) -> None:
        """Unlink one file if it exists. Raises OSError."""
        self._close(path)
        self._changes.files.discard(path)
        with suppress(FileNotFoundError):
            os.unlink(self._absolute(path))

    def retire(self, path: str) -> None:
        """Mark a file as no longer needed, but leave it in place: the last checkpoint may still use it."""
        self._close(path)
        self._changes.files.discard(path)
        self._changes.retired.add(path)

    def forget(self, directory: str) -> None:
        """Close everything below a top-level directory that is about to be moved away."""
        assert os.sep not in directory, f"{directory} is not a top-level directory"
        for path in [path for path in self._descriptors if path.startswith(directory + os.sep)]:
            self._close(path)
        self._changes = self._changes.merge(Changes(set(), set(), set(), {directory}))

    def note_new_names(self, directory: str) -> None:
        """Have the next checkpoint sync ``directory``, which is new or has new names, and all directories above it."""
        while directory:
            self._changes.directories.add(directory)
            directory = os.path.dirname(directory)
        self._changes.directories.add("")

    def take_changes(self) -> Changes:
        """Return the files that changed since the last call."""
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
            assert len(self._descriptors) <= self._open_files_max, f"{len(self._descriptors)} files are open"
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
        # A new file survives a power loss only if every directory on its path is synced too.
        self.note_new_names(os.path.dirname(path))
        return descriptor

    def _close(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)


def sync(root: str, changes: Changes) -> None:
    """Make changed files and then directories durable. Blocks; for a worker thread, with its own descriptors.

    Raises OSError at the first failure; then none of them is taken for durable.
    """
    if len(changes.files) >= _WRITE_BACK_FILES_MIN:
        # The sync of the first file then commits the sizes of all of them, and the others find little to do.
        for path in changes.files:
            _sync_path(os.path.join(root, path), os.O_RDWR, begin_write_back)
    for path in sorted(changes.files):
        _sync_path(os.path.join(root, path), os.O_RDWR, os.fdatasync)
    # Deepest first, so that a name becomes durable only after its content.
    for path in sorted(changes.directories, reverse=True):
        _sync_path(os.path.join(root, path), os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def _sync_path(path: str, flags: int, sync_descriptor: Callable[[int], None]) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
