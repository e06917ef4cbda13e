"""No consumer passes a message that some replica still has, whatever other replicas have deleted."""

from __future__ import annotations

from checkers.history import History, batches, final_reads
from checkers.verdict import Findings, Result

PROMISE = "no consumer passes an acknowledged message while a replica has it"


def check_skipped(history: History) -> Result:
    """Compare the messages that consumers got with the ones that each replica serves at the end.

    A message was passed if a later one of its queue was consumed, and no consumer got it until the end.
    """
    findings = Findings("skipped", PROMISE)
    got: set[str] = set()
    reached: dict[str, int] = {}
    for batch in batches(history):
        if batch.by_consumer:
            for offset, value in batch.messages:
                got.add(value)
                reached[batch.queue] = max(offset, reached.get(batch.queue, -1))
    acknowledged = {send.value for send in history.named("send") if send.outcome == "ok"}
    held: dict[tuple[str, int, str], list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for (node, queue), found in final_reads(history).items():
        if found.first:
            lacking.setdefault(queue, []).append(f"{node} begins at {found.first}")
        for offset, value in found.values.items():
            if value in acknowledged and value not in got and offset < reached.get(queue, -1):
                held.setdefault((queue, offset, value), []).append(node)
    for (queue, offset, value), nodes in sorted(held.items()):
        others = ", ".join(sorted(lacking.get(queue, ["every replica has it"])))
        what = f"{value} at {queue}@{offset} was passed, and {', '.join(sorted(nodes))} had it ({others})"
        findings.add("skipped-though-held", what)
    findings.counts["acknowledged"] = len(acknowledged)
    findings.counts["queues consumed"] = len(reached)
    if not reached:
        findings.cannot_tell("no consumer got anything")
    return findings.result()
