"""Operations of a log writer with made-up entries."""

from __future__ import annotations

from typing import Final

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL
from raftlog.segment.codec import TailEntry
from raftlog.segment.group_commit import WriteOp

HEADER: Final = b"h" * 48


def entry_op(ticket: int, pos: int, body: bytes) -> WriteOp:
    """Append one entry at ``pos``, whose index is the ticket."""
    size = len(HEADER) + len(body)
    entry = TailEntry(LogIndex(ticket), Term(1), NORMAL, pos, size, 7 * ticket, HEADER, body)
    return WriteOp(ticket, [entry], size)
