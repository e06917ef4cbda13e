"""Plausible terms: those that elections can have produced."""

from __future__ import annotations

from typing import Final

from raftlog.log_numbers import Term

TERM_MAX: Final = Term(2**62)
"""Terms stay below this: no replica campaigns in it, and none is believed to be in it."""

TERM_JUMP_MAX: Final = 2**40
"""The amount by which a peer's term may be ahead of our own.

A term rises by one per election, and an election takes longer than a write to the disks of a majority. At a thousand
elections a second, day and night, a replica would have to be away for 34 years to be this far behind.
"""


def highest_plausible(own_term: Term) -> Term:
    """The highest term that a replica in ``own_term`` accepts from a peer, of a message or of an entry."""
    return min(own_term + TERM_JUMP_MAX, TERM_MAX - 1)
