"""Verifies the logs of stopped brokers by `raftmq log verify`, and compares them byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec


class LogVerification(msgspec.Struct, frozen=True):
    """The report of `raftmq log verify --json`. Positions are bytes from the beginning of the group's log."""

    verdict: str
    begins_at: int | None = None
    ends_at: int | None = None
    segment_bytes: int | None = None


def differences(logs: Mapping[str, tuple[Path, LogVerification]]) -> list[str]:
    """List the places at which brokers' logs differ, given each broker's directory and report; empty if they agree.

    Logs may begin and end at different places. Logs with unknown bounds are left out. Raises OSError.
    """
    ranges = {
        node: (path, begin, end, size) for node, (path, report) in logs.items() for begin, end, size in _reach(report)
    }
    if len(ranges) < 2:
        return []
    begin = max(begin for _, begin, _, _ in ranges.values())
    end = min(end for _, _, end, _ in ranges.values())
    if begin >= end:
        return [f"the logs have nothing in common: {', '.join(f'{n} {b}-{e}' for n, (_, b, e, _) in ranges.items())}"]
    sizes = {size for _, _, _, size in ranges.values()}
    if len(sizes) > 1:
        return [f"the logs have files of different sizes: {sorted(sizes)}"]
    segment_bytes = sizes.pop()
    first, *others = ranges
    differences_found = []
    for start in range(begin, end, segment_bytes):
        name, size = f"{start:020d}", min(segment_bytes, end - start)
        content = _first_bytes(ranges[first][0] / name, size)
        differences_found += [
            f"the logs of {first} and {other} differ in the file {name}"
            for other in others
            if _first_bytes(ranges[other][0] / name, size) != content
        ]
    return differences_found


def _reach(report: LogVerification) -> list[tuple[int, int, int]]:
    if report.begins_at is None or report.ends_at is None or report.segment_bytes is None:
        return []
    return [(report.begins_at, report.ends_at, report.segment_bytes)]


def _first_bytes(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
