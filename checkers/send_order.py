"""Order within a queue, for one producer and one reader."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from checkers.history import History, Operation
from checkers.verdict import Findings, Result

PROMISE = "messages that one producer sends one after the other to a queue lie in that order; a read is in order"


ASKED = ("read", "final-read", "dead-read")
"""Reads whose offset is the offset of the first requested message."""


def check_order(history: History) -> Result:
    """Check acknowledged sends of one process to one queue, and the offsets within each answer to a reader.

    A process does one thing after the other, so its sends have a known order.
    """
    findings = Findings("order", PROMISE)
    by_producer: defaultdict[tuple[int, str | None], list[Operation]] = defaultdict(list)
    for send in history.named("send"):
        if send.outcome == "ok":
            by_producer[send.process, send.queue].append(send)
    for (process, _), sends in by_producer.items():
        findings.counts["pairs of sends"] += len(sends) - 1
        for one, other in pairwise(sends):
            assert one.offset is not None, f"{one} has no offset"
            assert other.offset is not None, f"{other} has no offset"
            if other.offset <= one.offset:
                findings.add(
                    "nonmonotonic-send",
                    f"process {process} sent {one.value}, got {one.place}, then sent {other.value}, got {other.place}",
                )
    for read in history.named("read", "bulk-read", "final-read", "dead-read", "poll"):
        if read.outcome != "ok":
            continue
        findings.counts["answers to readers"] += 1
        offsets = [offset for offset, *_ in read.result]
        if read.name in ASKED and offsets and read.offset is not None and offsets[0] > read.offset:
            what = f"{read.queue or read.name} at {read.node}: {offsets[0]} came first, {read.offset} was asked for"
            findings.add("int-poll-skip", what)
        for before, after in pairwise(offsets):
            reader = read.node or f"consumer {read.process}"
            where = f"{read.queue or read.name} at {reader}: {after} after {before} in one answer"
            if after <= before:
                findings.add("int-nonmonotonic-poll", where)
            elif after > before + 1:
                findings.add("int-poll-skip", where)
    return findings.result()
