"""The two offsets of a message, as types that mypy tells apart. At run time they are plain integers.

With `typing.NewType`, such a number plus 1 would be a plain integer again, as in `raftlog.log_numbers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self, final, overload

if TYPE_CHECKING:

    class _Offset(int):
        def __add__(self, distance: int, /) -> Self: ...
        @overload
        def __sub__(self, other: Self, /) -> int: ...  # type: ignore[overload-overlap]
        @overload
        def __sub__(self, distance: int, /) -> Self: ...
        def __sub__(self, other: int, /) -> Any: ...

    @final
    class QueueOffset(_Offset):
        """The place of a message in its queue."""

    @final
    class PhysicalOffset(_Offset):
        """The place of a record in the commit log of its broker group, in bytes."""

    def offset_range(begin: QueueOffset, end: QueueOffset, step: int = 1, /) -> Sequence[QueueOffset]:
        """Works like `range`, for offsets."""

else:
    QueueOffset = PhysicalOffset = int
    offset_range = range

LOG_BEGIN: Final = PhysicalOffset(0)
"""The beginning of a new group's log."""
FIRST_OFFSET: Final = QueueOffset(0)
"""The offset of a queue's first message, unless an earlier topic had the name of its topic."""
NO_OFFSET: Final = QueueOffset(-1)
"""Stands for a missing offset."""
