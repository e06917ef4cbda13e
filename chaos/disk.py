"""A disk in memory that forgets unsynced writes.

`MemoryDisk` behaves as `raftlog.segment.disk.Disk` specifies, and passes the same tests as the real one. In addition:

- `crash` cuts the power: of the unsynced changes, any subset of 512-byte sectors survives, whatever
  order they were written in, and so does any subset of the unsynced directory changes;
- `kill` ends the process only: everything written stays, locks are released;
- `cut_power_after` cuts the power in the middle of an operation, `fail` makes single operations fail,
  `capacity_bytes` limits the space, `flip_bit` damages stored bytes;
- a failed sync marks the dirty pages as clean, as Linux does. Reads continue to return the new content, later
  syncs succeed and do not write it, and a power cut or `evict` brings the old content back. Only bytes that are
  written again reach the disk.

The last point was checked on Linux 6.18 with ext4 on a loop device whose backing file had no space left: `fdatasync`
failed once per open descriptor, the next call succeeded although nothing had been written, a descriptor opened after
that saw no error, reads returned the new content until ``/proc/sys/vm/drop_caches`` was written to, and the old content
afterwards. Once there was space again, `fdatasync` and `sync` still wrote nothing; writing the same bytes again and
syncing them did. XFS behaves in the same way; Btrfs returns the old content at once, which is the case of `evict`.
Lengths and names are metadata: a file system keeps them in its journal, and shuts down if that cannot be written.

Everything is deterministic; randomness comes from a `random.Random`.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

Buffer = bytes | bytearray | memoryview

SECTOR_BYTES: Final = 512
"""The unit that a disk writes atomically."""

_Change = tuple[int, bytes] | int
"""A write of whole sectors, or a length."""


class _State(enum.Enum):
    """The state of a change. Lost changes are in the cache only, and no sync writes them."""

    DIRTY = enum.auto()
    DURABLE = enum.auto()
    LOST = enum.auto()


class PowerCut(Exception):
    """The simulated machine has no power: every operation fails until `MemoryDisk.crash`."""


class _SimulatedFile:
    """The content that reads return, the content that survives, and the changes between the two (a write, or a
    length).
    """

    __slots__ = ("_clean", "changes", "current", "durable", "locked_by", "unreadable")

    def __init__(self) -> None:
        self.current = bytearray()
        self.durable = bytearray()
        # In order. Durable ones stay in place behind others that may still reach the disk, or have partly.
        self.changes: list[tuple[_Change, _State]] = []
        self._clean = 0  # the number of leading ones that are not dirty
        self.locked_by: int | None = None
        self.unreadable: set[int] = set()  # numbers of sectors

    def change(self, change: _Change, state: _State = _State.DIRTY) -> None:
        """Apply a change; ``state`` says how far it gets. A durable one survives even if earlier ones are lost."""
        _apply(self.current, change)
        if not isinstance(change, int):
            # The cache is written back in whole sectors, with whatever else is in them.
            begin, end = change[0], change[0] + len(change[1])
            begin -= begin % SECTOR_BYTES
            change = (begin, bytes(self.current[begin : end + -end % SECTOR_BYTES]))
        if state is _State.DURABLE:
            _apply(self.durable, change)
            if not self.changes:
                return
        if self._clean == len(self.changes) and state is not _State.DIRTY:
            self._clean += 1
        self.changes.append((change, state))

    @property
    def has_lost(self) -> bool:
        """Whether the cache has content that no sync will write."""
        return any(state is _State.LOST for _, state in self.changes)

    def sync(self) -> None:
        for number in range(self._clean, len(self.changes)):
            change, state = self.changes[number]
            if state is not _State.LOST:
                _apply(self.durable, change)
                self.changes[number] = (change, _State.DURABLE)
        self._clean = len(self.changes)
        if not self.has_lost:
            self.changes.clear()
            self._clean = 0

    def fail_sync(self) -> None:
        """Mark all dirty pages as clean without writing them. Lengths stay in the journal."""
        for number in range(self._clean, len(self.changes)):
            change, state = self.changes[number]
            if state is _State.DIRTY and not isinstance(change, int):
                self.changes[number] = (change, _State.LOST)

    def evict(self, random: Random) -> None:
        """Drop clean pages from the cache. Reads then return the bytes on the disk, and the dirty ones."""
        changes, self.changes, self._clean = self.changes, [], 0
        keep = random.choice((0.0, 0.5))
        for change, state in changes:
            if state is _State.LOST:
                self._keep_some(change, keep, random)
                continue
            if state is _State.DURABLE:
                _apply(self.durable, change)
            self.changes.append((change, state))
        self.current = bytearray(self.durable)
        for change, _ in self.changes:
            _apply(self.current, change)
        if all(state is _State.DURABLE for _, state in self.changes):
            self.changes.clear()

    def crash(self, random: Random) -> None:
        keep = random.choice((0.0, 0.5, 0.9, 1.0))
        for change, state in self.changes:
            if state is _State.DURABLE:
                _apply(self.durable, change)
            else:
                self._keep_some(change, keep, random)
        self.changes.clear()
        self._clean = 0
        self.current = bytearray(self.durable)
        self.locked_by = None

    def flip_bit(self, offset: int, bit: int) -> None:
        """Flip a bit in the cache and on the disk."""
        self.sync()
        for content in (self.current, self.durable):
            content[offset] ^= 1 << bit
        if self.changes:
            self.changes.append(((offset, bytes(self.durable[offset : offset + 1])), _State.DURABLE))
            self._clean = len(self.changes)

    def _keep_some(self, change: _Change, keep: float, random: Random) -> None:
        if isinstance(change, int):
            if random.random() < keep:
                _apply(self.durable, change)
            return
        offset, data = change
        for at in range(0, len(data), SECTOR_BYTES):
            if random.random() < keep:
                _apply(self.durable, (offset + at, data[at : at + SECTOR_BYTES]))


def _apply(content: bytearray, change: _Change) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
    else:
        offset, data = change
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


class MemoryDisk:
    """A disk in memory that forgets unsynced writes. Attributes:

    capacity_bytes: how much all files may hold together; None for no limit. operations: how many changing operations
    there were.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self._files: dict[str, _SimulatedFile] = {}
        self._durable_files: dict[str, _SimulatedFile] = {}
        # Directory changes since the last sync: (directory, {path: file or None}).
        self._pending_names: list[tuple[str, dict[str, _SimulatedFile | None]]] = []
        self._directories: set[str] = {"/"}
        self._open: dict[int, _SimulatedFile] = {}
        self._next_fd = 3
        self._boot = 1
        self._power_cut_at: int | None = None
        self._faults: dict[str, list[tuple[int, int]]] = {}

    def crash(self, random: Random) -> None:
        """Cut the power and start again: any subset of the unsynced changes survives. All descriptors are closed."""
        # File systems tend to journal names in order, but do not guarantee it.
        for _, change in self._pending_names:
            if random.random() < 0.5:
                _rename(self._durable_files, change)
        self._pending_names.clear()
        self._files = dict(self._durable_files)
        for file in {id(file): file for file in self._files.values()}.values():
            file.crash(random)
        self._open.clear()
        self._power_cut_at = None
        self._boot += 1

    def kill(self) -> None:
        """End the process: its descriptors and locks are released, and everything written stays in the page cache."""
        self._open.clear()
        self._power_cut_at = None
        for file in self._files.values():
            file.locked_by = None

    @property
    def has_lost(self) -> bool:
        """Whether the cache of a file has content that no sync will write, because an earlier sync failed."""
        return any(file.has_lost for file in self._files.values() if file.changes)

    def evict(self, random: Random) -> None:
        """Drop clean pages from the cache, so that writes that a failed sync lost are gone, wholly or in part."""
        for file in {id(file): file for file in self._files.values()}.values():
            file.evict(random)

    def cut_power_after(self, operations: int) -> None:
        """Allow ``operations`` more changing operations, then raise `PowerCut` from each one until `crash`."""
        self._power_cut_at = self.operations + operations

    def cancel_power_cut(self) -> None:
        """Cancel a pending power cut."""
        self._power_cut_at = None

    def fail(self, operation: str, number: int, *, after: int = 0) -> None:
        """Make ``operation`` (a method's name) raise `OSError` with that errno once, ``after`` calls from now."""
        self._faults.setdefault(operation, []).append((after, number))

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Flip one stored bit, synced or not."""
        self._files[path].flip_bit(offset, bit)

    def lose_sectors(self, path: str, offset: int, length: int) -> None:
        """Make the sectors with these bytes unreadable until they are written as a whole."""
        self._files[path].unreadable.update(range(offset // SECTOR_BYTES, -(-(offset + length) // SECTOR_BYTES)))

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Overwrite bytes of a file durably, bypassing the descriptors."""
        file = self._files[path]
        file.sync()
        file.change((offset, data), _State.DURABLE)

    def content(self, path: str) -> bytes:
        """Return all bytes of a file as a reader sees them."""
        return bytes(self._files[path].current)

    def durable(self, path: str, offset: int, length: int) -> bytes:
        """Return the bytes that survive a power cut; empty if not even the file's name is durable."""
        file = self._durable_files.get(path)
        return b"" if file is None else bytes(file.durable[offset : offset + length])

    def first_undurable(self, path: str, begin: int, end: int) -> int | None:
        """Return the first offset in ``begin..end`` whose byte a power cut may change; None if there is none."""
        now, later = self.content(path)[begin:end], self.durable(path, begin, end - begin)
        if now == later:
            return None
        return begin + next((at for at, (a, b) in enumerate(zip(now, later, strict=False)) if a != b), len(later))

    @contextlib.contextmanager
    def suspend_faults(self) -> Iterator[None]:
        """Suspend all faults within the block, for checks by the simulation."""
        faults, self._faults = self._faults, {}
        try:
            yield
        finally:
            self._faults = faults

    def clear_faults(self) -> None:
        """Cancel pending failures, and any limit of space."""
        self._faults.clear()
        self.capacity_bytes = None

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, ascending; without faults or latency."""
        return sorted(os.path.basename(name) for name in self._files if os.path.dirname(name) == directory)

    @property
    def used_bytes(self) -> int:
        """The space that all files use."""
        return sum(len(file.current) for file in self._files.values())

    def open(self, path: str, *, create: bool = False) -> int:
        self._fault("open", path)
        if path in self._directories:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if (file := self._files.get(path)) is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if os.path.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._step()
            file = _SimulatedFile()
            self._change_names(path, {path: file})
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor; works without power, too, so that a process can end."""
        file = self._open.pop(fd, None)
        if file is not None and file.locked_by == fd:
            file.locked_by = None

    def size(self, fd: int) -> int:
        return len(self._file(fd).current)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._fault("pread")
        file = self._file(fd)
        if any(
            offset < (number + 1) * SECTOR_BYTES and number * SECTOR_BYTES < offset + length
            for number in file.unreadable
        ):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(file.current[offset : offset + length])

    def is_cached(self, fd: int, length: int, offset: int) -> bool:
        """Return False: any read of this disk may block."""
        return False

    def pread_cached(self, fd: int, length: int, offset: int) -> bytes | None:
        """Return None: any read of this disk may block."""
        return None

    def pread_disk(self, fd: int, length: int, offset: int) -> tuple[bytes, bool]:
        return self.pread(fd, length, offset), True

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the whole range: there are no holes."""
        return [(offset, end)]

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write as `Disk.pwritev`; a disk with too little space takes as much as fits."""
        file = self._file(fd)
        self._fault("pwritev")
        self._step()
        if len(buffers) > 1024:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        data = b"".join(buffers)
        room = self._room() + max(0, len(file.current) - offset)
        if data and room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[:room]
        file.change((offset, data))
        file.unreadable.difference_update(range(-(-offset // SECTOR_BYTES), (offset + len(data)) // SECTOR_BYTES))
        return len(data)

    def write_synced(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write as `Disk.write_synced`; the sync can fail, or lose power, on its own."""
        file = self._file(fd)
        count = self.pwritev(fd, buffers, offset)
        change, _ = file.changes[-1]
        try:
            self._fault("fdatasync")
        except OSError:
            file.changes[-1] = (change, _State.LOST)
            raise
        self._step()
        file.changes.pop()
        file.change(change, _State.DURABLE)
        return count

    def fdatasync(self, fd: int) -> None:
        file = self._file(fd)
        try:
            self._fault("fdatasync")
        except OSError:
            file.fail_sync()
            raise
        self._step()
        file.sync()

    def allocate(self, fd: int, length: int) -> None:
        self._fault("allocate")
        self._resize(fd, max(length, self.size(fd)))

    def truncate(self, fd: int, length: int) -> None:
        """Truncate as `Disk.truncate`; holes use capacity like data."""
        self._fault("truncate")
        self._resize(fd, length)

    def lock(self, fd: int) -> None:
        file = self._file(fd)
        if file.locked_by not in (None, fd):
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        file.locked_by = fd

    def rename(self, source: str, target: str) -> None:
        self._fault("rename", source)
        file = self._file_at(source)
        self._step()
        self._change_names(target, {source: None, target: file})

    def unlink(self, path: str) -> None:
        self._fault("unlink", path)
        self._file_at(path)
        self._step()
        self._change_names(path, {path: None})

    def listdir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return [os.path.basename(name) for name in self._files if os.path.dirname(name) == path]

    def mkdir(self, path: str) -> None:
        if path in self._directories:
            return
        if path in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.mkdir(os.path.dirname(path))
        self._fault("mkdir", path)
        self._step()
        self._directories.add(path)

    def sync_directory(self, path: str) -> None:
        self._fault("sync_directory", path)
        self._step()
        for directory, change in self._pending_names:
            if directory == path:
                _rename(self._durable_files, change)
        self._pending_names = [names for names in self._pending_names if names[0] != path]

    def usage(self, path: str) -> tuple[int, int]:
        """Return usage as `Disk.usage`; without a capacity there is a TiB of free space."""
        self._fault("usage", path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        used = sum(len(file.current) for file in self._files.values())
        total = used + (1 << 40) if self.capacity_bytes is None else self.capacity_bytes
        return max(0, total - used), total

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    def _file(self, fd: int) -> _SimulatedFile:
        if (file := self._open.get(fd)) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def _file_at(self, path: str) -> _SimulatedFile:
        if (file := self._files.get(path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def _resize(self, fd: int, length: int) -> None:
        file = self._file(fd)
        self._step()
        if length - len(file.current) > self._room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if length != len(file.current):
            file.change(length)

    def _change_names(self, path: str, change: dict[str, _SimulatedFile | None]) -> None:
        _rename(self._files, change)
        self._pending_names.append((os.path.dirname(path), change))

    def _room(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 60
        return self.capacity_bytes - self.used_bytes

    def _step(self) -> None:
        if self._power_cut_at is not None and self.operations >= self._power_cut_at:
            raise PowerCut(f"after {self.operations} operations")
        self.operations += 1

    def _fault(self, operation: str, path: str | None = None) -> None:
        faults = self._faults.get(operation)
        if not faults:
            return
        after, number = faults[0]
        if after:
            faults[0] = (after - 1, number)
            return
        faults.pop(0)
        raise OSError(number, os.strerror(number), path)


def _rename(files: dict[str, _SimulatedFile], change: dict[str, _SimulatedFile | None]) -> None:
    for path, file in change.items():
        if file is None:
            files.pop(path, None)
        else:
            files[path] = file
