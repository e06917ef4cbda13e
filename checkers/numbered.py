"""Checks sends with sequence numbers: each number is stored once, and all answers to its attempts report that place."""

from __future__ import annotations

from collections import Counter, defaultdict

from checkers.history import History, final_reads
from checkers.served import served_in_the_end
from checkers.verdict import Findings, Result

PROMISE = "a message with a sequence number is stored once, however often it is sent, and each answer tells where"


def check_answers(history: History) -> Result:
    """Check only that all answered attempts to send a message report the same place."""
    findings = Findings("numbered", PROMISE)
    _same_answers(history, findings)
    return findings.result()


def _same_answers(history: History, findings: Findings) -> None:
    places: defaultdict[str, set[tuple[str | None, int | None]]] = defaultdict(set)
    for attempt in history.named("attempt"):
        findings.counts[f"attempts: {attempt.outcome}"] += 1
        if attempt.outcome == "ok":
            places[attempt.value].add((attempt.queue, attempt.offset))
    for value, answers in places.items():
        if len(answers) > 1:
            text = " and ".join(f"{queue}@{offset}" for queue, offset in sorted(answers, key=str))
            findings.add("other-answer", f"{value} is said to be at {text}")


def check_numbered(history: History) -> Result:
    """Check `attempt` and `send` against each other and against the final read of each replica."""
    findings = Findings("numbered", PROMISE)
    _same_answers(history, findings)
    attempts = Counter(attempt.value for attempt in history.named("attempt"))
    for attempt in history.named("attempt"):
        if attempt.outcome == "fail" and "SEQUENCE_FORGOTTEN" in (attempt.error or ""):
            findings.add("forgotten", f"{attempt.value} is one of the latest of its producer: {attempt.error}")
    findings.counts["numbers sent more than once"] = sum(count > 1 for count in attempts.values())
    copy_counts: Counter[tuple[str, str]] = Counter()
    for (node, _), queue_read in final_reads(history).items():
        copy_counts.update((node, value) for value in queue_read.values.values())
    nodes = served_in_the_end(history, findings)
    for send in history.named("send"):
        if send.node is not None and send.value not in attempts:
            continue  # without a number: numbered sends may be sent to any replica
        findings.counts["numbers"] += 1
        if send.outcome != "ok":
            findings.cannot_tell("the outcome of some number was never known")
        for node in history.nodes:
            copies = copy_counts[node, send.value]
            if copies > 1:
                findings.add(
                    "stored-twice", f"{node} has {copies} copies of {send.value}, sent {attempts[send.value]} times"
                )
            elif send.outcome == "ok" and node in nodes and not copies:
                findings.add("not-stored", f"{node} has no copy of {send.value}, acknowledged at {send.place}")
    if not findings.counts["numbers sent more than once"]:
        findings.cannot_tell("no number was sent more than once")
    return findings.result()
