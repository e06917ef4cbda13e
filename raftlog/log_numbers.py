"""Numbers of a log that are easily mixed up, as types that mypy tells apart. At run time they are plain integers.

With `typing.NewType`, such a number plus 1 would be a plain integer again: code that goes from an entry to the next one
would have to call a function for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:

    class _LogNumber(int):
        def __add__(self, distance: int, /) -> Self: ...
        def __sub__(self, distance: int, /) -> Self: ...

    class LogIndex(_LogNumber):
        """The index of an entry in the Raft log; the first one has 1."""

    class Term(_LogNumber):
        """A term of the Raft group, see the Raft thesis 3.3."""

    def index_range(begin: LogIndex, end: LogIndex, step: int = 1, /) -> Sequence[LogIndex]:
        """Works like `range`, for log indexes."""

else:
    LogIndex = Term = int
    index_range = range

NO_INDEX: Final = LogIndex(0)
"""The index before the first entry."""
FIRST_INDEX: Final = LogIndex(1)
INDEX_MAX: Final = LogIndex(2**63 - 1)
"""The largest one that comes from a peer or a file; file formats have room for twice as much."""
NO_TERM: Final = Term(0)
"""The term before the first election."""
