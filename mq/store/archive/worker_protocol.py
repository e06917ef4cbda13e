"""Messages between a broker and the process that archives its log."""

from __future__ import annotations

import enum

import msgspec


class ArchiveJob(msgspec.Struct, frozen=True):
    """Archive the complete files of a log.

    Attributes:
        data_dir, log_dir: of the replica.
        url, endpoint_url: where the archive is; see `raftlog.segment.s3_storage.open_s3`.
        known_index: up to this entry the group knows that this archive has its log; 0 if nothing.
        bytes_per_second: maximum rate of writes and of reading them back; 0 for no limit.
        has_retention: files are to be deleted in the archive some day: with each file a snapshot is stored, from which
            the log can be restored when it begins there.
        oldest_ms: files without a message that was stored at this time or later are to be deleted; None for none.
        bytes_max: the oldest files are to be deleted until the others have no more bytes; None for no limit.
        begin_pos: files below this physical offset may be deleted, since no replica serves their messages.
    """

    data_dir: str
    log_dir: str
    url: str
    endpoint_url: str | None = None
    known_index: int = 0
    bytes_per_second: int = 0
    has_retention: bool = False
    oldest_ms: int | None = None
    bytes_max: int | None = None
    begin_pos: int = 0


class Trouble(enum.Enum):
    """The reason that a run ended early."""

    STORE = "store"
    """The store did not answer, or refused a request: it is tried again."""
    DAMAGED = "damaged"
    """An object is missing, or not what was written."""
    REFUSED = "refused"
    """The archive cannot be continued from this log, or belongs to another one."""
    OTHER_WRITER = "other writer"
    """Another run has changed the archive in the meantime: nothing is wrong."""
    REPLICA = "replica"
    """The log of this replica could not be read, or its archiving process ended."""


class ArchiveStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the answer to a job: the present end of the archive, the reason why the run ended, or a sign of life.

    ``index``, ``term``, ``pos`` and ``chain`` describe the archived log (`raftlog.segment.meta.Base`); ``index`` is 0
    if that is not known. Every object below was read back, or compared by the store, and the
    manifest names all of them. ``nbytes`` is how much
    of the log this step has stored. ``is_older`` says that the manifest had less than the group knows to be archived:
    it was replaced by an older one. ``begin_pos`` is the physical offset at which the archive begins; -1 if that is not
    known. ``expired_pos`` is the one below which its files are to be deleted; -1 without news. ``is_last`` ends the
    answer.
    """

    index: int = 0
    term: int = 0
    pos: int = 0
    chain: int = 0
    nbytes: int = 0
    is_older: bool = False
    begin_pos: int = -1
    expired_pos: int = -1
    is_last: bool = False
    trouble: Trouble | None = None
    reason: str = ""
