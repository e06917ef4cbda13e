"""Queues consumed in order by one member at a time.

A `handle` begins when a member gets a message and ends when it is done with it. One without an end belongs to a member
that left: it is over when its process does something else, and the message is not done.
"""

from __future__ import annotations

from collections import defaultdict

from checkers.history import History, Operation
from checkers.verdict import Findings, Result

PROMISE = "messages of a queue are handled one after the other, in order, by one member at a time"


def check_exclusive(history: History) -> Result:
    """Check `handle` operations, queue by queue."""
    findings = Findings("exclusive", PROMISE)
    queues: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history.named("handle"):
        assert operation.queue is not None, f"{operation} is of no queue"
        queues[operation.queue].append(operation)
    for queue, operations in queues.items():
        _no_overlap(queue, operations, findings)
        _nothing_too_early(queue, operations, findings)
        findings.counts["messages handled"] += sum(operation.ended is not None for operation in operations)
        findings.counts["changes of owner"] += len({operation.process for operation in operations}) - 1
    if not findings.counts["messages handled"]:
        findings.cannot_tell("no message was handled")
    return findings.result()


def _no_overlap(queue: str, operations: list[Operation], findings: Findings) -> None:
    """Check that no handling begins before another one has ended, as far as ends are known."""
    latest: Operation | None = None
    for operation in operations:
        if latest is not None and latest.process != operation.process and operation.began < (latest.ended or 0):
            seconds = ((latest.ended or 0) - operation.began) / 1e9
            findings.add(
                "overlap",
                f"process {operation.process} began {queue}@{operation.offset} {seconds:.3f} s before process "
                f"{latest.process} was done with {queue}@{latest.offset}",
            )
        if operation.ended is not None and (latest is None or operation.ended > (latest.ended or 0)):
            latest = operation


def _nothing_too_early(queue: str, operations: list[Operation], findings: Findings) -> None:
    """Check that all earlier messages are done when a message is delivered; a group begins at offset 0."""
    ends = sorted((operation.ended, operation.offset or 0) for operation in operations if operation.ended is not None)
    offsets: set[int] = set()
    next_offset, at = 0, 0
    for operation in operations:
        while at < len(ends) and ends[at][0] <= operation.began:
            offsets.add(ends[at][1])
            at += 1
        while next_offset in offsets:
            offsets.remove(next_offset)
            next_offset += 1
        if (operation.offset or 0) > next_offset:
            findings.add(
                "handled-too-early",
                f"process {operation.process} was handed {queue}@{operation.offset} although "
                f"{queue}@{next_offset} was not done",
            )
