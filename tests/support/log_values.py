"""Positions and entries of a Raft log, from plain numbers."""

from __future__ import annotations

from raftlog.consensus.types import ConfState, EntryKind, LogId, Span
from raftlog.log_numbers import LogIndex, Term


def log_id(index: int, term: int) -> LogId:
    """The entry at ``index``, of ``term``."""
    return LogId(LogIndex(index), Term(term))


def span_of(
    first: int, last: int, term: int, nbytes: int, kind: EntryKind = EntryKind.NORMAL, conf: ConfState | None = None
) -> Span:
    """The entries ``first`` to ``last``, of one term."""
    return Span(LogIndex(first), LogIndex(last), Term(term), nbytes, kind, conf)
