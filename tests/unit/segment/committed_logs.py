"""Logs of committed entries, for backups."""

from __future__ import annotations

from functools import partial
from itertools import count

from raftlog.segment import InlineWriter, SegmentLog
from tests.unit.segment.log_home import LogHome


def opened(home: LogHome, **overrides: str) -> SegmentLog:
    """A log whose vote file is written with each submit, as a slow one's is."""
    return home.open(writer=InlineWriter(clock=partial(next, count())), **overrides)


def filled(home: LogHome, entries: int) -> SegmentLog:
    log = opened(home)
    home.put(log, *(body(index) for index in range(1, entries + 1)))
    home.submit(log, commit_hint=entries)
    return log


def body(index: int) -> bytes:
    return b"%06d" % index * 20
