"""A log on a disk in memory that is opened, damaged and opened again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chaos.disk import MemoryDisk
from raftlog.log_numbers import Term
from raftlog.segment import NORMAL, SegmentLog
from raftlog.segment.limits import DEFAULT, LogLimits

DIRECTORY = "/data/log"
CLUSTER_ID = "8c5b1f0e2d7a4c4b9f6d3e2a1b0c9d8e"


@dataclass
class LogHome:
    """A directory that logs are opened in again and again."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    segment_bytes: int = 4096
    limits: LogLimits = DEFAULT
    ticket: int = 0
    opened: list[SegmentLog] = field(default_factory=list)

    def open(self, **overrides: Any) -> SegmentLog:
        settings: dict[str, Any] = {
            "cluster_id": CLUSTER_ID,
            "node_id": "n1",
            "segment_bytes": self.segment_bytes,
            "disk": self.disk,
            "limits": self.limits,
        }
        log = SegmentLog.open(DIRECTORY, **(settings | overrides))
        self.ticket = 0
        self.opened.append(log)
        return log

    def put(self, log: SegmentLog, *bodies: bytes, term: int | None = None) -> None:
        """Append bodies and submit them as one ticket."""
        for body in bodies:
            log.append(NORMAL, log.last_index + 1, Term(term or max(1, log.last_term)), body)
        self.submit(log)

    def submit(self, log: SegmentLog, **changes: Any) -> None:
        self.ticket += 1
        log.submit(self.ticket, **changes)

    def close_all(self) -> None:
        for log in self.opened:
            log.close(clean=False)
        self.opened.clear()

    def distrust(self) -> None:
        """Remove the sidecars, so that the next opening verifies every entry."""
        for name in self.disk.listdir(DIRECTORY):
            if name.endswith(".index"):
                self.disk.unlink(f"{DIRECTORY}/{name}")

    def segment(self, start: int = 0) -> str:
        return f"{DIRECTORY}/{start:020d}"


def all_bodies(log: SegmentLog) -> list[bytes]:
    """Every body of a log, read the way a peer would get it, and checked against `locate` and `pread`."""
    found: list[bytes] = []
    while log.first_index + len(found) <= log.last_index:
        refs, data = log.read_entries(log.first_index + len(found), 1000)
        at = 0
        for ref in refs:
            assert log.locate(ref.index) == ref
            assert log.pread(ref.pos, ref.size) == data[at : at + ref.size]
            found.append(data[at + 48 : at + ref.size])
            at += ref.size
        assert at == len(data)
    return found
