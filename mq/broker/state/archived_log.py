"""The archived part of the log. It is replicated, so that every replica knows it even if the store cannot be reached.

A replica proposes it after it has read the manifest back, and every object that this names; the leader checks it with
its own log. No replica believes the manifest alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mq.broker.state.table import SnapshotDamaged, StateTable, TableCommand, check_range
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term
from raftlog.segment.meta import Base

URL_BYTES_MAX = 1024
_INT64_MAX = 2**63 - 1

NOTHING = Base(NO_INDEX, NO_TERM, 0, 0)
_Row = tuple[str, LogIndex, Term, int, int]
_TierRow = tuple[str, LogIndex, Term, int, int, int, bool]


class NoteArchived(TableCommand, frozen=True, tag="note_archived"):
    """Record that the archive at ``url`` has the log up to the entry ``index``, before the physical offset ``pos``.

    A lower index of the same archive changes nothing; another archive replaces this one.
    """

    url: str
    index: LogIndex
    term: Term
    pos: int
    chain: int

    def check(self) -> None:
        check_range("length of url", len(self.url.encode()), 1, URL_BYTES_MAX)
        for name in ("index", "term", "pos"):
            check_range(name, getattr(self, name), 1, _INT64_MAX)
        check_range("chain", self.chain, 0, 2**32 - 1)


class NoteTier(TableCommand, frozen=True, tag="note_tier"):
    """Serve messages of the archive at ``url`` from the physical offset ``begin_pos`` on, even if deleted locally.
    ``is_held``: its manifest lacks archived files, and archived messages stay on the replicas until it has them again.

    The beginning never decreases. Only for the archive that the group has; of another one it changes nothing.
    """

    url: str
    begin_pos: int
    is_held: bool

    def check(self) -> None:
        check_range("length of url", len(self.url.encode()), 1, URL_BYTES_MAX)
        check_range("begin_pos", self.begin_pos, 0, _INT64_MAX)


class ArchivedLog(StateTable):
    """The table of the archived log, with one row. The archive keeps the messages of deleted topics.

    Attributes:
        url: of the archive; empty without one.
        end: the log up to here is in the archive.
        begin_pos: from this physical offset on, archived messages are served; None if only what is local is.
        is_held: nothing may be deleted because it is archived; see `NoteTier`.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (NoteArchived, NoteTier)

    def __init__(self) -> None:
        self.url = ""
        self.end = NOTHING
        self.begin_pos: int | None = None
        self.is_held = False

    def end_at(self, url: str | None) -> Base:
        """Return the end of the archived log, if ``url`` is the known archive; otherwise NOTHING."""
        return self.end if url == self.url else NOTHING

    def known_at(self, url: str | None) -> Base | None:
        """Return the end of the archived log, if ``url`` is the known archive; otherwise None."""
        end = self.end_at(url)
        return end if end.index else None

    def apply(self, command: TableCommand) -> None:
        match command:
            case NoteArchived():
                if command.url != self.url:
                    self.begin_pos, self.is_held = None, False
                if command.url != self.url or command.index > self.end.index:
                    self.url = command.url
                    self.end = Base(command.index, command.term, command.pos, command.chain)
            case NoteTier():
                if command.url == self.url:
                    self.begin_pos = max(command.begin_pos, self.begin_pos or 0)
                    self.is_held = command.is_held
            case _:
                raise AssertionError(f"{type(command).__name__} is not a command of the archive")

    def capture(self) -> Callable[[], object]:
        """Capture the row. Without a tier it has the form of format level 6, which older software can read."""
        if not self.url:
            return lambda: None
        end, begin_pos = self.end, self.begin_pos
        row: list[object] = [self.url, end.index, end.term, end.pos, end.chain]
        if begin_pos is not None:
            row += [begin_pos, self.is_held]
        return lambda: row

    def restore(self, state: object) -> None:
        if state is None:
            self.url, self.end, self.begin_pos, self.is_held = "", NOTHING, None, False
            return
        begin_pos: int | None = None
        is_held = False
        if isinstance(state, list | tuple) and len(state) > 5:
            url, index, term, pos, chain, begin_pos, is_held = msgspec.convert(state, _TierRow)
        else:
            url, index, term, pos, chain = msgspec.convert(state, _Row)
        if not url or min(index, term, pos, chain, begin_pos or 0) < 0:
            raise SnapshotDamaged(f"the archive at {url[:40]!r} up to entry {index} has no URL or a negative number")
        self.url, self.end = url, Base(index, term, pos, chain)
        self.begin_pos, self.is_held = begin_pos, is_held

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        assert bool(self.url) == bool(self.end.index), f"the archive at {self.url!r} has the log up to {self.end.index}"
        assert self.url or self.begin_pos is None, f"no archive is served from {self.begin_pos} on"
