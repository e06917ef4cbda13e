"""Delayed messages: never early, each visible once, and never after an answered recall."""

from __future__ import annotations

from checkers.history import History, batches
from checkers.served import served_in_the_end
from checkers.verdict import Findings, Result

PROMISE = "a delayed message is never seen before its time, is seen once, and never if its recall was answered"

EARLY_NS_MAX = 10_000_000
"""Clients and brokers share a clock; its milliseconds are truncated in two places."""
CLOCK = "clock"
"""A kind of fault under which times are not checked."""


def check_delays(history: History) -> Result:
    """Check `schedule` (its offset: delay in milliseconds from its beginning) and `recall` against everything that was
    read.

    `check_log` finds second copies.
    """
    findings = Findings("delays", PROMISE)
    schedules = {operation.value: operation for operation in history.named("schedule")}
    recalls = {operation.value: operation for operation in history.named("recall")}
    clocks_agree = not any(fault.kind == CLOCK for fault in history.faults)
    latest_ms = 0
    seen: set[str] = set()
    for batch in batches(history):
        for offset, value, *_ in batch.messages:
            schedule = schedules.get(value)
            if schedule is None or value in seen:
                continue  # the log's checker reports values that were never sent
            seen.add(value)
            due = schedule.began + (schedule.offset or 0) * 1_000_000
            what = f"{value} at {batch.queue}@{offset} by {batch.by}"
            if clocks_agree and batch.at < due - EARLY_NS_MAX:
                findings.add("early", f"read {(due - batch.at) / 1e6:.0f} ms before its time: {what}")
            if batch.operation.name == "poll":
                latest_ms = max(latest_ms, (batch.at - due) // 1_000_000)
            recall = recalls.get(value)
            if recall is not None and recall.outcome == "ok" and not schedule.again:
                findings.add("recalled-and-seen", f"its recall was answered: {what}")
    queues_served = served_in_the_end(history, findings)
    for value, schedule in schedules.items():
        recall = recalls.get(value)
        findings.counts[f"schedule: {schedule.outcome}"] += 1
        if recall is not None:
            findings.counts[f"recall: {recall.outcome}"] += 1
        if schedule.outcome != "ok" or (recall is not None and recall.outcome != "fail"):
            continue
        if missing := [node for node, values in queues_served.items() if value not in values]:
            findings.add("never-seen", f"{value} was acknowledged, and in the end it is not at {', '.join(missing)}")
    findings.counts["seen"] = len(seen)
    findings.counts["latest, ms after its time"] = latest_ms
    if not seen or not findings.counts["recall: ok"]:
        findings.cannot_tell("no delayed message was seen, or none was recalled")
    return findings.result()
