"""Data directories with the log of one replica, for commands that read files."""

from __future__ import annotations

from pathlib import Path

from raftlog import RealDisk
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, SegmentLog


def opened(data_dir: Path, segment_bytes: int = 4096) -> SegmentLog:
    """The log of the replica n1, created if it does not exist."""
    return SegmentLog.open(
        str(data_dir / "commitlog"), cluster_id="c", node_id="n1", segment_bytes=segment_bytes, disk=RealDisk()
    )


def grow(data_dir: Path, last_index: int, segment_bytes: int = 4096, body_repeats: int = 20) -> None:
    """Write committed entries up to that one, and a matching vote file, as a running replica has within a second."""
    log = opened(data_dir, segment_bytes)
    for index in range(log.last_index + 1, last_index + 1):
        log.append(NORMAL, LogIndex(index), Term(1), b"%06d" % index * body_repeats)
    log.submit(1, commit_hint=LogIndex(last_index))
    log.close()
