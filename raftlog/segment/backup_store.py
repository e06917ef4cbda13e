"""Stores of backups: a directory, or a bucket (`s3_storage`). The backup logic knows only `BackupStore`.

A store holds byte strings with names such as ``manifest.json`` and ``log/00000000000000000000``. Object storage cannot
append. So `append` is in `GrowingStore`, implemented by directories: there a run writes only what is new, and a full or
vanished target leaves complete and synced files. See decision 12.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

from raftlog.segment.disk import Disk, write_file, write_fully
from raftlog.segment.errors import SegmentError, StorageFailed

MANIFEST_NAME: Final = "manifest.json"
LOG_FOLDER: Final = "log"
CONDITIONS_NAME: Final = "conditions"
"""An object that shows whether a store refuses to overwrite one when it is told to."""
LOCK_FILE_NAME: Final = "LOCK"
SYNC_EVERY_BYTES: Final = 16 * 1024 * 1024
"""Written bytes are synced in steps of this size: one sync of a whole file would block other writers of the disk."""


class BackupRefused(SegmentError):
    """The operation does not fit this backup; nothing was changed in it."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"{target}: {reason}")
        self.target = target
        self.reason = reason


class ManifestChanged(BackupRefused):
    """Another run has replaced the manifest since it was loaded; that one stays."""


class BackupDamaged(SegmentError):
    """A file or an object of a backup is damaged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: damaged: {reason}")
        self.path = path
        self.reason = reason


class StoreFailed(SegmentError):
    """Object storage refused an operation, or did not answer."""

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{path}: {operation} failed: {reason}")
        self.path = path
        self.operation = operation
        self.reason = reason


class NotStored(SegmentError):
    """The store has nothing of this name."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: is missing")
        self.path = path


class BackupStore(Protocol):
    """Holds a backup. For one thread at a time. Every method may raise `StorageFailed` or `StoreFailed`.

    Attributes:
        name: the operator's name for it, for messages; contains no credentials.
    """

    name: str

    def path(self, name: str) -> str:
        """The name of an object of this store in messages."""

    def begin_writing(self) -> None:
        """Lock out other writers until `close`, if the store supports that. Raises BackupRefused if there is one."""

    def names(self, folder: str = "") -> Iterable[str]:
        """The content of a folder, without subfolders; empty if the folder does not exist."""

    def read(self, name: str, length: int, offset: int) -> bytes:
        """Read up to ``length`` bytes; fewer only at the end. Raises NotStored. Fast for ascending offsets."""

    def load_manifest(self) -> bytes | None:
        """The manifest, None if there is none."""

    def replace_manifest(self, content: bytes) -> None:
        """Replace the manifest that was loaded last, durably and atomically.

        Raises:
            ManifestChanged: another process has replaced it since; that one stays.
        """

    def write(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Store an object durably; until it is complete, the previous one of that name stays.

        Returns whether the store has compared all of it with checksums that were taken here, and is known to refuse
        what differs: then it need not be read back.

        Exceptions of ``pieces`` propagate unchanged.
        """

    def remove(self, name: str) -> None:
        """Remove an object; no error if it does not exist."""

    def free_bytes(self) -> int | None:
        """Free space, None if unknown or unlimited."""

    def close(self) -> None:
        """Release the lock, and everything open."""


@runtime_checkable
class GrowingStore(BackupStore, Protocol):
    """A store in which files can grow."""

    def append(self, name: str, offset: int, pieces: Iterable[bytes]) -> None:
        """Continue a file at ``offset``, durably; existing content after it is dropped. At 0 the file may be missing.

        Exceptions of ``pieces`` propagate unchanged; the file is unchanged up to ``offset``.

        Raises:
            BackupDamaged: the file is shorter than ``offset``.
        """


@runtime_checkable
class EagerStore(BackupStore, Protocol):
    """A store that is faster if it knows the next reads."""

    def will_read(self, objects: Sequence[tuple[str, int]]) -> None:
        """Prepare to read these objects, of these sizes, from first to last, as wholes."""


class DirectoryStore:
    """Stores a backup in a directory, which may be missing: `begin_writing` creates it."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.name = directory
        self._disk = disk
        self._lock_fd: int | None = None
        self._open: tuple[str, int] | None = None

    def path(self, name: str) -> str:
        """Path of a file."""
        return os.path.join(self.name, name)

    def begin_writing(self) -> None:
        """Create the directory if it is missing, and lock it."""
        try:
            self._disk.mkdir(self.name)
            self._disk.mkdir(self.path(LOG_FOLDER))
            self._lock_fd = self._disk.open(self.path(LOCK_FILE_NAME), create=True)
            self._disk.lock(self._lock_fd)
        except BlockingIOError as error:
            raise BackupRefused(self.name, "another process is writing to it") from error
        except OSError as error:
            raise self._storage_error(error, "opening the backup") from error

    def names(self, folder: str = "") -> Iterable[str]:
        """Names of files and directories."""
        try:
            return self._disk.listdir(self.path(folder) if folder else self.name)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._storage_error(error, "listing the backup") from error

    def read(self, name: str, length: int, offset: int) -> bytes:
        """Read from a file, which stays open until another one is read."""
        try:
            if self._open is None or self._open[0] != name:
                self._release()
                self._open = (name, self._disk.open(self.path(name)))
            return self._disk.pread(self._open[1], length, offset)
        except FileNotFoundError as error:
            raise NotStored(self.path(name)) from error
        except OSError as error:
            raise StorageFailed(self.path(name), error.errno or 0, "read") from error

    def load_manifest(self) -> bytes | None:
        """Content of ``manifest.json``."""
        path = self.path(MANIFEST_NAME)
        try:
            fd = self._disk.open(path)
            try:
                return self._disk.pread(fd, self._disk.size(fd), 0)
            finally:
                self._disk.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageFailed(path, error.errno or errno.EIO, "read") from error

    def replace_manifest(self, content: bytes) -> None:
        """Write the manifest; the lock keeps other processes out."""
        self.write(MANIFEST_NAME, (content,))

    def write(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Write a file under a temporary name, sync it, and rename it."""
        path = self.path(name)
        try:
            write_file(self._disk, path + ".tmp", b"".join(pieces))
            self._disk.rename(path + ".tmp", path)
            self._disk.sync_directory(os.path.dirname(path))
        except OSError as error:
            raise self._storage_error(error, "writing the backup") from error
        return False

    def append(self, name: str, offset: int, pieces: Iterable[bytes]) -> None:
        """Append to a file, and sync it in steps, including the name of a new file."""
        path, disk = self.path(name), self._disk
        try:
            # Do not create an existing file again: the target may have been removed, or mounted elsewhere.
            fd = disk.open(path, create=offset == 0)
            try:
                if (size := disk.size(fd)) < offset:
                    raise BackupDamaged(path, f"it has {size} bytes, but {offset} were written")
                disk.truncate(fd, offset)
                unsynced_bytes = 0
                for piece in pieces:
                    write_fully(disk.pwritev, fd, [piece], offset)
                    offset += len(piece)
                    unsynced_bytes += len(piece)
                    if unsynced_bytes >= SYNC_EVERY_BYTES:
                        disk.fdatasync(fd)
                        unsynced_bytes = 0
                disk.fdatasync(fd)
            finally:
                disk.close(fd)
            disk.sync_directory(os.path.dirname(path))
        except OSError as error:
            raise self._storage_error(error, "writing the backup") from error

    def remove(self, name: str) -> None:
        """Unlink a file."""
        try:
            self._disk.unlink(self.path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._storage_error(error, "removing a file of the backup") from error

    def free_bytes(self) -> int | None:
        """Free space of its file system for unprivileged users."""
        try:
            return self._disk.usage(self.name)[0]
        except OSError as error:
            raise StorageFailed(self.name, error.errno or 0, "asking for its free space") from error

    def close(self) -> None:
        """Release the lock."""
        self._release()
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _release(self) -> None:
        if self._open is not None:
            self._disk.close(self._open[1])
            self._open = None

    def _storage_error(self, error: OSError, operation: str) -> StorageFailed:
        return StorageFailed(error.filename or self.name, error.errno or 0, operation)
