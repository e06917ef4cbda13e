"""Deliveries to a consumer group against sends: nothing lost, nothing invented, every duplicate explained.

Final reads are ignored here: a message that every replica has but no consumer got is lost for users.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from checkers.history import History, Operation, bases, batches
from checkers.verdict import Findings, Result

PROMISE = "every acknowledged message is consumed at least once, and each duplicate has a cause"

CAUSE_NS = 30 * 10**9
"""Nanoseconds for which the join or leave of a member, or the end of a fault, may cause redelivery."""


def check_total_queue(history: History, passes: Callable[[str], bool] = lambda value: True) -> Result:
    """Check `send` against `receive`; duplicates are explained by `join` and `leave`, and by faults.

    Only values that pass the filter of the group, if it has one, may be received, and must be.
    """
    findings = Findings("queue", PROMISE)
    sends = {operation.value: operation for operation in history.named("send")}
    received = [batch for batch in batches(history) if batch.by_consumer]
    got = {value for batch in received for _, value in batch.messages}
    in_the_log = {v for op in history.named("final-read") if op.outcome == "ok" for _, v, *_ in op.result}
    base = min(bases(history).values(), default=0)
    for send in sends.values():
        if send.outcome == "ok" and send.value not in got and passes(send.value):
            if send.value not in in_the_log and send.position is not None and send.position < base:
                findings.counts["removed in their time, never consumed"] += 1
                continue
            what = f"{send.value}, acknowledged at {send.place}, was never consumed"
            findings.add("unseen" if send.value in in_the_log else "lost", what)
    for value in sorted(got):
        its = sends.get(value)
        if its is None:
            findings.add("unexpected", f"{value} was consumed, and nobody sent it")
        elif not passes(value):
            findings.add("not-filtered", f"{value} was consumed, and does not pass the filter of the group")
        elif its.outcome == "fail":
            findings.add("unexpected", f"{value} was consumed, and was refused: {its.error}")
        elif its.outcome == "info":
            findings.counts["recovered"] += 1
    places: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for batch in received:
        for offset, _ in batch.messages:
            places[batch.queue, offset].append(batch.at)
    redelivered = _Causes(history)
    for (queue, offset), times in places.items():
        for one, other in pairwise(times):
            if redelivered.explain(one, other):
                findings.counts["handed out again, explained"] += 1
            else:
                seconds = (other - one) / 1e9
                findings.add("unexplained-duplicate", f"{queue}@{offset} was consumed again {seconds:.3f} s later")
    findings.counts.update(
        {
            "acknowledged": sum(send.outcome == "ok" for send in sends.values()),
            "consumed": len(received),
            "different messages consumed": len(got),
            "members that came": sum(1 for _ in history.named("join")),
        }
    )
    if not received:
        findings.cannot_tell("no consumer got anything")
    return findings.result()


class _Causes:
    """Times of events that cause redelivery."""

    def __init__(self, history: History) -> None:
        changes: list[Operation] = list(history.named("join", "leave"))
        spans = [(op.began, op.ended if op.ended is not None else op.began) for op in changes]
        spans += [(fault.began, history.ended if fault.ended is None else fault.ended) for fault in history.faults]
        self._begins, self._ends = _merged([(begin, end + CAUSE_NS) for begin, end in spans])

    def explain(self, one: int, other: int) -> bool:
        """Whether redelivery had a cause between two deliveries, at ``one`` and later at ``other``."""
        at = bisect_left(self._begins, other) - 1
        return at >= 0 and self._ends[at] >= one


def _merged(spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Merge overlapping time spans; returns beginnings and ends, both increasing."""
    begins: list[int] = []
    ends: list[int] = []
    for begin, end in sorted(spans):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends
