"""The logs that tortured nodes leave behind: each is intact, and all are equal byte for byte as far as they overlap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raftlog.segment import RealDisk
from raftlog.segment.verify import INTACT, StoppedLog


def compare_logs(directories: Mapping[str, Path]) -> list[str]:
    """What is wrong with the logs of stopped nodes, by node."""
    found: list[str] = []
    reach: dict[str, tuple[int, int]] = {}
    segment_bytes = 0
    for node, directory in directories.items():
        log = StoppedLog(RealDisk(), str(directory))
        try:
            report = log.report()
        finally:
            log.close()
        if report.verdict != INTACT or report.state is None or report.last is None:
            found.append(f"the log of {node} is {report.verdict}: {report.findings}")
            continue
        segment_bytes = report.state.segment_bytes
        reach[node] = (report.state.starts_at.pos, report.last.pos + report.last.size)
        if not report.last.index:
            found.append(f"the log of {node} is empty")
    if len(reach) < 2:
        return found
    begin, end = max(reach.values())[0], min(end for _, end in reach.values())
    if begin >= end:
        return [*found, f"the logs do not overlap: {reach}"]
    for start in range(begin, end, segment_bytes):
        contents = {
            node: (directories[node] / f"{start:020d}").read_bytes()[: min(segment_bytes, end - start)]
            for node in reach
        }
        first, *others = contents
        found += [
            f"{first} and {other} differ in the file at {start}"
            for other in others
            if contents[first] != contents[other]
        ]
    return found
