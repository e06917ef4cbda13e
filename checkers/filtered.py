"""Checks a group with a filter: passing messages are delivered at least once, others never, and offsets skip none."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from checkers.history import History, batches
from checkers.total_queue import check_total_queue
from checkers.verdict import Findings, Result

PROMISE = "the offset of a group with a filter passes no message that the filter lets through and nobody got"


def passes_filter(value: str) -> bool:
    """Whether the filter of the workload *filtered* lets a value's message through."""
    return int(value.split(".")[1]) % 3 == 1


def check_filtered(history: History) -> Result:
    """Check `send` against `receive`, as for a group without a filter."""
    return check_total_queue(history, passes_filter)


def check_filtered_offsets(history: History) -> Result:
    """Check each `stored` (a query of the group's offset): passing messages before it were received by then."""
    findings = Findings("filtered offsets", PROMISE)
    times: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for batch in batches(history):
        if batch.by_consumer:
            for offset, _ in batch.messages:
                times[batch.queue, offset].append(batch.at)
    sends_of: defaultdict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for send in history.named("send"):
        if send.outcome == "ok" and send.queue is not None and send.offset is not None and passes_filter(send.value):
            sends_of[send.queue].append((send.offset, send.value, min(times[send.queue, send.offset], default=-1)))
    for each in sends_of.values():
        each.sort()
    reported: set[str] = set()
    for question in history.named("stored"):
        if question.outcome != "ok" or not question.offset or question.ended is None:
            continue
        findings.counts["offsets asked"] += 1
        of_queue = sends_of[str(question.queue)]
        for offset, value, at in of_queue[: bisect_left(of_queue, (question.offset, "", 0))]:
            if not 0 <= at <= question.ended and value not in reported:
                reported.add(value)
                findings.add("passed-over", f"{value} at {question.queue}@{offset}; the group was at {question.offset}")
    if not findings.counts["offsets asked"]:
        findings.cannot_tell("nobody knew the group's offsets")
    return findings.result()
