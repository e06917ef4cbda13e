"""Committed offsets of groups: an answered commit stays, on every replica, and offsets never decrease.

Each group of this workload has one member, which commits increasing offsets of a queue. So the stored offset may only
rise, and every queried replica must know all commits answered before. One exception: a commit of unknown outcome may
still be in flight, and take effect at any later time. A return to its offset is counted, and is not an anomaly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from checkers.history import History, Operation, final_reads
from checkers.verdict import Findings, Result

PROMISE = "an answered commit is known to every replica from then on, and offsets never go back"
PROMISE_TOLD = "the offset that a replica tells of a group is never behind one that was told before"

Key = tuple[str, str]
"""Group and queue."""


def check_offsets(history: History) -> Result:
    """Check `stored` (a query of a group's offset at a replica) against `commit` and against earlier answers."""
    findings = Findings("offsets", PROMISE)
    commits: defaultdict[Key, list[Operation]] = defaultdict(list)
    for operation in history.named("commit"):
        commits[_key(operation)].append(operation)
        findings.counts["commits answered"] += operation.outcome == "ok"
    for key, questions in _answers(history, findings).items():
        acked_commits = [commit for commit in commits[key] if commit.outcome == "ok"]
        still_open = {commit.offset for commit in commits[key] if commit.outcome == "info"}
        for what in _went_back(questions, acked_commits, still_open, findings):
            findings.add("offset-went-back", what)
        _nothing_out_of_nowhere(questions, commits[key], findings)
    if not findings.counts["offsets asked"] or not findings.counts["commits answered"]:
        findings.cannot_tell("no offset was both committed and asked for")
    return findings.result()


def check_told_offsets(history: History) -> Result:
    """Check `stored` against earlier answers, for groups whose commits are unknown.

    A RocketMQ client that takes over a queue may move an offset back to its own position (decision 6 in
    docs/decisions); with one in the group, that is counted and not an anomaly.
    """
    stock = "java" in history.plan.get("programs", ())
    findings = Findings("told offsets", PROMISE_TOLD)
    ends = {queue: found.end for (_, queue), found in final_reads(history).items() if found.complete}
    for questions in _answers(history, findings).values():
        for question in questions:
            end = ends.get(str(question.queue))
            if end is not None and (question.offset or 0) > end:
                what = f"{question.node}: {question.value} is at {question.place}, the queue ends at {end}"
                findings.add("phantom-offset", what)
        for what in _went_back(questions, [], set(), findings):
            if stock:
                findings.counts["went back, with a stock client in the group"] += 1
            else:
                findings.add("offset-went-back", what)
    if not findings.counts["offsets asked"]:
        findings.cannot_tell("no replica was asked for an offset")
    return findings.result()


def _key(operation: Operation) -> Key:
    return str(operation.value), str(operation.queue)


def _answers(history: History, findings: Findings) -> dict[Key, list[Operation]]:
    questions: defaultdict[Key, list[Operation]] = defaultdict(list)
    for question in history.named("stored"):
        if question.outcome == "ok":
            questions[_key(question)].append(question)
            findings.counts["offsets asked"] += 1
    return questions


def _went_back(
    questions: Sequence[Operation], commits: Sequence[Operation], still_open: Collection[int | None], findings: Findings
) -> Iterator[str]:
    """Yield the answers below an offset committed or reported before the query."""
    offsets = [(op.ended or 0, op.offset or 0, f"process {op.process} committed it") for op in commits]
    offsets += [(op.ended or 0, op.offset or 0, f"{op.node} said so") for op in questions]
    offsets.sort()
    times = [at for at, _, _ in offsets]
    highest: list[tuple[int, str]] = []
    best = (-1, "")
    for _, offset, why in offsets:
        best = max(best, (offset, why))
        highest.append(best)
    for question in questions:
        offset = question.offset or 0
        before = bisect_left(times, question.began) - 1
        if before < 0 or offset >= highest[before][0]:
            continue
        if offset in still_open:
            findings.counts["answers after a commit of unknown outcome came late"] += 1
            continue
        least, why = highest[before]
        yield f"{question.node}: {question.value} is at {question.place}, was at {least}: {why}"


def _nothing_out_of_nowhere(questions: Sequence[Operation], commits: Sequence[Operation], findings: Findings) -> None:
    """Check that every reported offset was committed before."""
    attempts = {commit.offset: commit.began for commit in reversed(commits) if commit.outcome != "fail"}
    for question in questions:
        end = question.ended or 0
        if (question.offset or 0) > 0 and not attempts.get(question.offset, end) < end:
            what = f"{question.node}: {question.value} is at {question.place}, nobody committed that"
            findings.add("phantom-offset", what)
