"""Messages between the broker and the process that builds key files."""

from __future__ import annotations

import msgspec


class IndexJob(msgspec.Struct, frozen=True):
    """A part of the log to index: entries ``begin`` to ``end`` (exclusive) of the segment at ``segment_start``.

    ``segment`` is the path of the segment, ``target`` the path of the file to build. ``share`` is the part of a core
    that building it may use, above 0 and at most 1. ``is_copy`` says that ``segment`` is a copy of entries of the
    archive.
    """

    segment: str
    segment_start: int
    begin: int
    end: int
    target: str
    share: float = 1.0
    is_copy: bool = False


class IndexResult(msgspec.Struct, frozen=True):
    """The result of a job: success, or the error, and the physical offset of a damaged entry."""

    target: str
    failure: str | None = None
    damaged_at: int | None = None
