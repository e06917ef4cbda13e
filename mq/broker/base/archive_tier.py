"""Computes which part of the log this replica reads from the archive, because its local files were deleted.

The group knows up to where its log is archived, and from where on archived messages are served
(`mq.broker.state.archived_log`). The consume queues keep their entries of archived messages, so that everything that
needs no message works as before. A replica whose queues were derived again, such as a new one, has entries only from
the beginning of its log on: it notes where, and does not say that older messages are gone. It reads the archive
backward, and puts the missing entries in front of its queues (`mq.broker.archive.queue_refill`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from raftlog.segment.meta import Base

POS_MAX: Final = 2**63 - 1
QUEUES_FROM: Final = "queues_from"
"""The note of the log: from this physical offset on, the queues have all entries."""


class ArchiveState(Protocol):
    """The part of `mq.broker.state.archived_log.ArchivedLog` that `Tier` needs."""

    begin_pos: int | None
    is_held: bool

    def end_at(self, url: str | None) -> Base:
        """Return the end of the part of the log that the archive at ``url`` has."""


class NotedLog(Protocol):
    """The part of `raftlog.segment.log.SegmentLog` that `Tier` needs."""

    @property
    def base_pos(self) -> int:
        """The physical offset at which the local log begins."""

    @property
    def notes(self) -> Mapping[str, bytes]:
        """The small values that are stored with the log."""

    def set_note(self, key: str, value: bytes | None, /) -> None:
        """Store a note with the log; None removes it."""


def store_queues_from(log: NotedLog, *, has_tiers: bool, is_fresh: bool) -> None:
    """Store with the log where the queues begin. A broker calls this when it opens them.

    Args:
        has_tiers: whether archived messages are served after their files were deleted.
        is_fresh: the queues are derived from the log, as it is now.
    """
    if not has_tiers:
        log.set_note(QUEUES_FROM, None)
    elif is_fresh:
        log.set_note(QUEUES_FROM, b"%d" % log.base_pos)


class Tier:
    """Tells from where on this replica serves messages, and up to where the archive replaces its log files.

    Args:
        url: of the archive; None if only local messages are served.
    """

    def __init__(self, *, url: str | None, log: NotedLog, state: ArchiveState) -> None:
        self._url = url
        self._log = log
        self._state = state
        self._refilled_pos = self._opened_pos = POS_MAX

    @property
    def is_wanted(self) -> bool:
        """Whether this replica is configured to serve archived messages."""
        return self._url is not None

    @property
    def begin_pos(self) -> int | None:
        """The physical offset from which on the group serves archived messages; None if it serves none."""
        is_known = self._url is not None and self._state.end_at(self._url).pos > 0
        return self._state.begin_pos if is_known else None

    @property
    def queues_from(self) -> int:
        """The physical offset from which on this replica's queues have all entries."""
        note = self._log.notes.get(QUEUES_FROM)
        first_pos = self._log.base_pos if note is None else min(int(note), self._log.base_pos)
        return min(first_pos, self._refilled_pos)

    @property
    def visible_pos(self) -> int:
        """The physical offset from which on this replica serves messages, from its log or from the archive."""
        if self._url is None or QUEUES_FROM not in self._log.notes:
            return self._log.base_pos
        return min(max(min(self.queues_from, self._opened_pos), self._state.begin_pos or 0), self._log.base_pos)

    @property
    def lacks_older(self) -> bool:
        """Whether the group serves archived messages that this replica's queues do not have."""
        return self.begin_pos is not None and self.queues_from > self.begin_pos

    @property
    def lacks_older_for_good(self) -> bool:
        """Whether this replica can never get its missing entries: the archive ends before its queues begin."""
        return self.lacks_older and self._state.end_at(self._url).pos < self.queues_from

    def open_from(self, pos: int) -> None:
        """Serve messages from the physical offset ``pos`` on, because their entries are about to be added to the
        queues.
        """
        self._opened_pos = min(self._opened_pos, pos)
        if QUEUES_FROM not in self._log.notes:
            self._log.set_note(QUEUES_FROM, b"%d" % self._log.base_pos)

    def refilled_from(self, pos: int) -> None:
        """Record, for this process, that the queues have all entries from the physical offset ``pos`` on."""
        assert self._opened_pos <= pos < self.queues_from, (
            f"entries from {pos} on, opened are those from {self._opened_pos} on"
        )
        self._refilled_pos = pos

    @property
    def noted_pos(self) -> int:
        """The physical offset from which on the queues have all entries even after a restart."""
        return int(self._log.notes.get(QUEUES_FROM, POS_MAX))

    def deletable_pos(self) -> int:
        """Return the physical offset below which local files may be deleted because they are archived; 0: none may."""
        if self.begin_pos is None or self._state.is_held:
            return 0
        if QUEUES_FROM not in self._log.notes:  # durable together with the next deletion
            self._log.set_note(QUEUES_FROM, b"%d" % self._log.base_pos)
        return self._state.end_at(self._url).pos
