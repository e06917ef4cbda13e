"""Offsets that groups committed: what was answered stays, on every replica, and never goes back.

Each group of this workload has one member, which commits ever higher offsets of a queue. So the stored offset may only
rise, and a replica that is asked must know every commit that was answered before. One exception: a commit of unknown
outcome may still be on its way, and take effect at any later time. Going back to its offset is counted, not an anomaly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from jepsen.history import History, Operation
from jepsen.verdict import Findings, Result

PROMISE = "an answered commit is known to every replica from then on, and offsets never go back"

Key = tuple[str, str]
"""Group and queue."""


def check_offsets(history: History) -> Result:
    """Check `stored` (a replica was asked for a group's offset) against `commit` and against earlier answers."""
    findings = Findings("offsets", PROMISE)
    commits: defaultdict[Key, list[Operation]] = defaultdict(list)
    questions: defaultdict[Key, list[Operation]] = defaultdict(list)
    for operation in history.named("commit", "stored"):
        key = (str(operation.value), str(operation.queue))
        if operation.name == "commit":
            commits[key].append(operation)
            findings.counts["commits answered"] += operation.outcome == "ok"
        elif operation.outcome == "ok":
            questions[key].append(operation)
            findings.counts["offsets asked"] += 1
    for key, asked in questions.items():
        _check_key(key, commits[key], asked, findings)
    if not findings.counts["offsets asked"] or not findings.counts["commits answered"]:
        findings.cannot_tell("no offset was both committed and asked for")
    return findings.result()


def _check_key(key: Key, commits: list[Operation], asked: list[Operation], findings: Findings) -> None:
    group, queue = key
    known = [(op.ended or 0, op.offset or 0, f"process {op.process} committed it") for op in commits if _is_ok(op)]
    known += [(op.ended or 0, op.offset or 0, f"{op.node} said so") for op in asked]
    known.sort()
    times = [at for at, _, _ in known]
    highest: list[tuple[int, str]] = []
    best = (-1, "")
    for _, offset, why in known:
        best = max(best, (offset, why))
        highest.append(best)
    still_open = {commit.offset for commit in commits if commit.outcome == "info"}
    attempts = {commit.offset: commit.began for commit in reversed(commits) if commit.outcome != "fail"}
    for question in asked:
        offset = question.offset or 0
        before = bisect_left(times, question.began) - 1
        if before >= 0 and offset < highest[before][0]:
            least, why = highest[before]
            what = f"{question.node}: {group} is at {queue}@{offset}, was at {least}: {why}"
            if offset in still_open:
                findings.counts["answers after a commit of unknown outcome came late"] += 1
            else:
                findings.add("offset-went-back", what)
        if offset > 0 and not attempts.get(offset, question.ended or 0) < (question.ended or 0):
            findings.add("phantom-offset", f"{question.node}: {group} is at {queue}@{offset}, nobody committed that")


def _is_ok(operation: Operation) -> bool:
    return operation.outcome == "ok"
