"""What the broker and the process that makes key files say to each other."""

from __future__ import annotations

import msgspec


class IndexJob(msgspec.Struct, frozen=True):
    """The entries ``begin`` to ``end`` of the segment that begins at ``segment_start``; all are physical offsets.

    ``segment`` is the path of that, ``target`` of the file to make.
    """

    segment: str
    segment_start: int
    begin: int
    end: int
    target: str


class IndexResult(msgspec.Struct, frozen=True):
    """What became of a job: its file is there, or why not, and at which physical offset an entry is damaged."""

    target: str
    failure: str | None = None
    damaged_at: int | None = None
