"""Queries by key and by store time: every replica finds all messages acknowledged before the query began."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from checkers.history import History, Operation
from checkers.verdict import Findings, Result

PROMISE = "a query by key or time finds every message that was acknowledged before it, and nothing else"

SLACK_NS = 10 * 10**6
"""Store times are whole milliseconds, and clocks of one machine are read a moment apart."""


def check_queries(history: History) -> Result:
    """Check `find-key` and `find-time` against `send`."""
    findings = Findings("queries", PROMISE)
    sends = {send.value: send for send in history.named("send")}
    for query in history.named("find-key"):
        if query.outcome == "ok":
            findings.counts["queries by key"] += 1
            _check_key(query, sends, findings)
    _check_times(history, sends, findings)
    if not findings.counts["queries by key"]:
        findings.cannot_tell("no query by key was answered")
    return findings.result()


def _check_key(query: Operation, sends: dict[str, Operation], findings: Findings) -> None:
    key = query.value
    messages = {(str(queue), int(offset)): str(value) for queue, offset, value in query.result}
    for (queue, offset), value in messages.items():
        send = sends.get(value)
        if value != key or send is None:
            findings.add("other-message", f"{query.node} found {value} at {queue}@{offset} by the key {key}")
        elif send.outcome == "fail":
            findings.add("G1a", f"{query.node} found {value} at {queue}@{offset}, and it was refused: {send.error}")
    send = sends.get(key)
    if send is None or send.outcome != "ok" or (send.ended or 0) >= query.began:
        return
    if (send.queue, send.offset) not in messages:
        findings.add("not-found", f"{query.node} did not find {key}, which was acknowledged at {send.place} before")


def _check_times(history: History, sends: dict[str, Operation], findings: Findings) -> None:
    """Check that an offset for a time has everything before it that was acknowledged before that time, and nothing that
    was sent after it. Not judged if a clock was wrong.
    """
    wall_ns = history.plan.get("wall_ns")
    if not isinstance(wall_ns, int) or any(fault.kind == "clock" for fault in history.faults):
        findings.counts["queries by time are not judged"] = sum(1 for _ in history.named("find-time"))
        return
    by_queue: defaultdict[str, list[Operation]] = defaultdict(list)
    for send in sends.values():
        if send.outcome == "ok" and send.queue is not None:
            by_queue[send.queue].append(send)
    answers = {queue: _AcknowledgedSends(each) for queue, each in by_queue.items()}
    for query in history.named("find-time"):
        if query.outcome != "ok" or str(query.queue) not in answers:
            continue
        findings.counts["queries by time"] += 1
        at = history.began + int(query.value) * 10**6 - wall_ns
        queue, offset = answers[str(query.queue)], query.offset or 0
        # The query need not know messages acknowledged after it began.
        before = queue.highest_acknowledged(min(at, query.began) - SLACK_NS)
        if before is not None and offset <= (before.offset or 0):
            what = f"{before.value} at {before.place} was acknowledged before that time"
            findings.add("time-too-early", f"{query.node} answered {offset} for {query.queue}, and {what}")
        after = queue.lowest_sent(at + SLACK_NS)
        if after is not None and offset > (after.offset or 0):
            what = f"{after.value} at {after.place} was sent after that time"
            findings.add("time-skips", f"{query.node} answered {offset} for {query.queue}, and {what}")


class _AcknowledgedSends:
    """Acknowledged sends to one queue."""

    def __init__(self, sends: list[Operation]) -> None:
        ended = sorted(sends, key=lambda send: send.ended or 0)
        self._ends = [send.ended or 0 for send in ended]
        self._highest: list[Operation] = []
        for send in ended:
            is_higher = not self._highest or (send.offset or 0) > (self._highest[-1].offset or 0)
            self._highest.append(send if is_higher else self._highest[-1])
        began = sorted(sends, key=lambda send: send.began)
        self._begins = [send.began for send in began]
        self._lowest: list[Operation] = []
        for send in reversed(began):
            is_lower = not self._lowest or (send.offset or 0) < (self._lowest[-1].offset or 0)
            self._lowest.append(send if is_lower else self._lowest[-1])
        self._lowest.reverse()

    def highest_acknowledged(self, before: int) -> Operation | None:
        """The send with the highest offset among the sends acknowledged before a time."""
        at = bisect_left(self._ends, before) - 1
        return self._highest[at] if at >= 0 else None

    def lowest_sent(self, after: int) -> Operation | None:
        """The send with the lowest offset among the sends that began after a time."""
        at = bisect_right(self._begins, after)
        return self._lowest[at] if at < len(self._lowest) else None
