"""A topic that is made again under its name: every group gets every acknowledged message of each topic of that name."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from checkers.history import History, final_reads
from checkers.verdict import Findings, Result

PROMISE = "a topic made again under its name is read from its first message by the groups of the old one"


def check_recreated(history: History) -> Result:
    """Check `send` against `receive`, by the group that a process joined, and the last topic against final reads."""
    findings = Findings("recreated", PROMISE)
    group_of = {join.process: str(join.result) for join in history.named("join") if join.outcome == "ok"}
    got: defaultdict[str, set[str]] = defaultdict(set)
    for receive in history.named("receive"):
        got[group_of.get(receive.process, "")].add(receive.result)
    made = sorted(again.ended for again in history.named("recreate") if again.ended is not None)
    begun = sorted(again.began for again in history.named("recreate"))
    sends = {send.value: send for send in history.named("send")}
    groups = sorted(set(group_of.values()))
    for send in sends.values():
        if send.outcome != "ok":
            continue
        topic = bisect_right(made, send.began)
        findings.counts[f"acknowledged in topic {topic + 1}"] += 1
        for group in groups:
            if send.value not in got[group]:
                what = f"{send.value} at {send.place} of topic {topic + 1}"
                findings.add("unseen", f"{group} never got {what}")
    for group, values in got.items():
        for value in sorted(values - sends.keys()):
            findings.add("unexpected", f"{group} got {value}, and nobody sent it")
    last = begun[-1] if begun else 0
    for (node, queue), found in final_reads(history).items():
        if not found.complete:
            findings.cannot_tell(f"{node} was not read to the end of {queue}")
            continue
        there = set(found.values.values())
        for value in there:
            if value in sends and (sends[value].ended or last) < last:
                findings.add("came-back", f"{value} was sent before the topic was deleted, and {node} still has it")
        for send in sends.values():
            if send.outcome == "ok" and send.queue == queue and send.began > last and send.value not in there:
                findings.add("lost-write", f"{send.value}, acknowledged at {send.place}, is not at {node} in the end")
    findings.counts["topics made again"] = len(made)
    if not made or not groups:
        findings.cannot_tell("no topic was made again, or nobody consumed it")
    return findings.result()
