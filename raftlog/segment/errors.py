"""All errors of the log on disk."""

from __future__ import annotations

import os

from raftlog.log_numbers import LogIndex, Term


class SegmentError(Exception):
    """Base of all errors of this package."""


class FrameCorrupt(SegmentError):
    """An entry is inconsistent or does not follow its predecessor.

    ``physical_offset`` is where the entry begins in the log; ``expected`` and ``actual`` are the differing numbers.
    """

    def __init__(self, physical_offset: int, reason: str, expected: int, actual: int) -> None:
        super().__init__(f"entry at {physical_offset}: {reason}: expected {expected}, found {actual}")
        self.physical_offset = physical_offset
        self.reason = reason
        self.expected = expected
        self.actual = actual


class EntryTooNew(FrameCorrupt):
    """An entry is intact and has a newer format version than this software supports."""

    def __init__(self, physical_offset: int, version: int, newest: int) -> None:
        super().__init__(physical_offset, "format version is too new", newest, version)
        self.found = version
        self.newest = newest


class FormatTooNew(SegmentError):
    """A file is intact and has a newer format version than this software supports. Nothing was changed.

    ``found`` is the version of the file, ``newest`` the highest supported one.
    """

    def __init__(self, path: str, what: str, version: int, newest: int) -> None:
        super().__init__(
            f"{path}: {what} has format version {version}, and this version of the software understands none above "
            f"{newest}; nothing was changed. Run the newer version that wrote it"
        )
        self.path = path
        self.found = version
        self.newest = newest


class StorageCorrupt(SegmentError):
    """Bytes that were once durable are damaged or missing; the files are left unchanged."""

    def __init__(self, path: str, physical_offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at physical offset {physical_offset}: {reason}")
        self.path = path
        self.physical_offset = physical_offset
        self.reason = reason


class EntryGone(SegmentError):
    """The requested place is below the log's base: it existed and was deleted on purpose.

    ``unit`` says what the numbers count: ``index`` or ``position``. ``first`` is the lowest existing one.
    """

    def __init__(self, path: str, unit: str, number: int, first: int) -> None:
        super().__init__(f"{path}: {unit} {number} is deleted, the log begins at {unit} {first}")
        self.path = path
        self.unit = unit
        self.wanted = number
        self.first = first


class EntryUnusable(SegmentError):
    """A committed entry is intact, but the application cannot apply it; everything before it was applied.

    A restart reaches the same entry again. It was written by a newer version, or by a faulty leader.
    """

    def __init__(self, index: LogIndex, term: Term, physical_offset: int, reason: str) -> None:
        super().__init__(
            f"entry {index} of term {term} at physical offset {physical_offset} is intact and committed, but cannot be "
            f"applied: {reason}"
        )
        self.index = index
        self.term = term
        self.physical_offset = physical_offset
        self.reason = reason


class StorageFailed(SegmentError):
    """The disk refused an operation. The state of everything unacknowledged is unknown. Nothing is retried."""

    def __init__(self, path: str, errno: int, operation: str) -> None:
        super().__init__(f"{path}: {operation} failed with errno {errno} ({os.strerror(errno)})")
        self.path = path
        self.errno = errno
        self.operation = operation


class DirectoryMismatch(SegmentError):
    """The directory belongs to another cluster or node, or was created with another segment size."""

    def __init__(self, path: str, field: str, recorded_value: str | int, requested_value: str | int) -> None:
        super().__init__(f"{path}: made for {field} {recorded_value!r}, opened with {requested_value!r}")
        self.path = path
        self.field = field
        self.stored = recorded_value
        self.given = requested_value


class DirectoryLocked(SegmentError):
    """Another process, or another log of this one, has the directory open. ``pid`` is 0 if unknown."""

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(f"{path}: in use by process {pid}" if pid else f"{path}: in use by another process")
        self.path = path
        self.pid = pid


class DirectoryUnusable(SegmentError):
    """The directory cannot contain a log: read-only, full, or not a directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: cannot hold a log: {reason}")
        self.path = path
        self.reason = reason


class MetaCorrupt(SegmentError):
    """Term and vote are lost: there is no valid slot, or there are segments without a meta file.

    Starting anyway could vote twice in one term, so an operator must replace or restore the node.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: no valid slot, but segments are present; term and vote are lost")
        self.path = path


class TermUnusable(SegmentError):
    """The directory's term is so high that no election can follow; nothing was changed.

    Elections cannot have led there: a peer sent it to a version that accepted any term.
    """

    def __init__(self, path: str, term: Term, last_term: Term) -> None:
        super().__init__(
            f"{path}: term {term} leaves no room for elections, its last entry is of term {last_term}; "
            "see `raftmq log fix-term`"
        )
        self.path = path
        self.term = term
        self.last_term = last_term


class LogDiverged(SegmentError):
    """A leader's entry has the predecessor's index and term, but does not continue this log.

    One of the two logs is damaged, or was changed by something other than this program; continuing would hide which.
    """

    def __init__(self, path: str, index: LogIndex, what: str, expected: int, actual: int) -> None:
        super().__init__(f"{path}: entry {index} does not continue this log: {what} {actual}, expected {expected}")
        self.path = path
        self.index = index
        self.expected = expected
        self.actual = actual
