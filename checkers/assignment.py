"""Assigned queues: a consumer skips nothing and gets nothing twice, whichever replica serves it."""

from __future__ import annotations

from checkers.history import History, bases
from checkers.verdict import Findings, Result

PROMISE = "a consumer that reads a queue by itself gets every message once and in order from where it was told to begin"


def check_assigned(history: History) -> Result:
    """Check `poll` of each process and queue; `seek` is where a process begins to read a queue.

    The first poll after a seek has the message at the offset of the seek, every other one the next message. Every
    message that was acknowledged with its place is polled.
    """
    findings = Findings("assigned", PROMISE)
    due: dict[tuple[int, str], int] = {}
    places: set[tuple[str, int]] = set()
    for operation in sorted(history.named("seek", "poll"), key=lambda op: op.ended or 0):
        if operation.outcome != "ok" or operation.queue is None:
            continue
        key = (operation.process, operation.queue)
        if operation.name == "seek":
            assert operation.offset is not None, f"{operation} has no offset"
            due[key] = operation.offset
            findings.counts["seeks"] += 1
            continue
        for offset, *_ in operation.result:
            if key not in due:
                findings.add("poll-unassigned", f"consumer {key[0]} got {key[1]}@{offset} and never began there")
            elif offset > due[key]:
                findings.add("poll-skip", f"consumer {key[0]} got {key[1]}@{offset}, {due[key]} was due")
            elif offset < due[key]:
                findings.add("nonmonotonic-poll", f"consumer {key[0]} got {key[1]}@{offset}, {due[key]} was due")
            due[key] = offset + 1
            places.add((operation.queue, offset))
            findings.counts["messages polled"] += 1
    base = min(bases(history).values(), default=0)
    for send in history.named("send"):
        if send.outcome == "ok" and (send.queue, send.offset) not in places:
            if send.position is not None and send.position < base:
                findings.counts["removed in their time, never polled"] += 1
                continue
            findings.add("unseen", f"{send.value}, acknowledged at {send.place}, was never polled")
    if not findings.counts["messages polled"]:
        findings.cannot_tell("no consumer got anything")
    return findings.result()
