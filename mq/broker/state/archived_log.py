"""How much of the log is in the archive: replicated, so that every replica knows it, also while the store is gone.

A replica proposes it after it has read the manifest back, and every object that this names; the leader checks it with
its own log. No replica believes the manifest alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mq.broker.state.table import SnapshotDamaged, TableCommand, check_range
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term
from raftlog.segment.meta import Base

URL_BYTES_MAX = 1024
_INT64_MAX = 2**63 - 1

NOTHING = Base(NO_INDEX, NO_TERM, 0, 0)


class NoteArchived(TableCommand, frozen=True, tag="note_archived"):
    """The archive at ``url`` has the log up to the entry ``index``, which ends before the physical offset ``pos``.

    A lower index of the same archive changes nothing; another archive replaces this one.
    """

    url: str
    index: LogIndex
    term: Term
    pos: int
    chain: int

    def check(self) -> None:
        """See `TableCommand.check`."""
        check_range("length of url", len(self.url.encode()), 1, URL_BYTES_MAX)
        for name in ("index", "term", "pos"):
            check_range(name, getattr(self, name), 1, _INT64_MAX)
        check_range("chain", self.chain, 0, 2**32 - 1)


class ArchivedLog:
    """A `StateTable` with one row.

    Attributes:
        url: of the archive; empty without one.
        end: the log up to here is in the archive.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (NoteArchived,)

    def __init__(self) -> None:
        self.url = ""
        self.end = NOTHING

    def end_at(self, url: str | None) -> Base:
        """How much is archived at a URL; NOTHING if another archive is known, or none."""
        return self.end if url == self.url else NOTHING

    def apply(self, command: TableCommand) -> None:
        """See `StateTable.apply`."""
        assert isinstance(command, NoteArchived), type(command).__name__
        if command.url != self.url or command.index > self.end.index:
            self.url = command.url
            self.end = Base(command.index, command.term, command.pos, command.chain)

    def capture(self) -> Callable[[], object]:
        """See `StateTable.capture`."""
        url, end = self.url, self.end
        return lambda: [url, end.index, end.term, end.pos, end.chain] if url else None

    def restore(self, state: object) -> None:
        """See `StateTable.restore`."""
        if state is None:
            self.url, self.end = "", NOTHING
            return
        url, index, term, pos, chain = msgspec.convert(state, tuple[str, LogIndex, Term, int, int])
        if not url or min(index, term, pos, chain) < 0:
            raise SnapshotDamaged(f"an archive at {url[:40]!r} up to entry {index} that cannot be")
        self.url, self.end = url, Base(index, term, pos, chain)

    def check_invariants(self) -> None:
        """Assert what holds between two commands; for tests."""
        assert bool(self.url) == bool(self.end.index), f"the archive at {self.url!r} has the log up to {self.end.index}"

    def topic_deleted(self, topic: str) -> None:
        """See `StateTable.topic_deleted`. The archive keeps the messages of deleted topics."""

    def group_deleted(self, group: str) -> None:
        """See `StateTable.group_deleted`. The archive does not depend on groups."""
