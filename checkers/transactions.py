"""Transactions: a committed message is visible once, a rolled back one never, and none before its commit.

The producer decides the same outcome everywhere: in `end-transaction` and in its answers to `check`.
"""

from __future__ import annotations

from checkers.history import History, batches
from checkers.served import served_in_the_end
from checkers.verdict import Findings, Result

PROMISE = "a transactional message is visible once after its commit, and never before it or after a rollback"

COMMIT, ROLLBACK = "commit", "rollback"


def check_transactions(history: History) -> Result:
    """Check `half`, `end-transaction` and `check` against everything that was read. `check_log` finds second copies."""
    findings = Findings("transactions", PROMISE)
    commits: dict[str, int] = {}
    """The time at which each transaction was first, or may have been first, committed."""
    rolled_back: set[str] = set()
    """Transactions whose rollback was confirmed."""
    promised: dict[str, str] = {}
    """Transactions that must be visible at the end, and why."""
    for operation in history.named("half", "end-transaction", "check"):
        findings.counts[f"{operation.name}: {operation.outcome}"] += 1
        if operation.name == "half":
            continue
        value, wanted = operation.result if operation.name == "check" else operation.value
        if wanted == ROLLBACK and operation.outcome == "ok" and operation.name == "end-transaction":
            rolled_back.add(value)
        if wanted == COMMIT:
            said = operation.began
            commits[value] = min(said, commits.get(value, said))
            if operation.outcome == "ok":
                how = "the commit was confirmed" if operation.name == "end-transaction" else "a check was told so"
                promised.setdefault(value, how)
    # A half message that its client may have stored twice has an outcome for each copy.
    halves = {half.value for half in history.named("half") if not half.again}
    seen: set[str] = set()
    for batch in batches(history):
        for offset, value, *_ in batch.messages:
            if value in seen or value not in halves:
                continue  # the log's checker reports values that were never sent
            seen.add(value)
            what = f"{value} at {batch.queue}@{offset} by {batch.by}"
            if value not in commits:
                findings.add("seen-without-commit", f"rolled back, or never ended, and read: {what}")
            elif value in rolled_back:
                findings.add("seen-after-rollback", f"its rollback was confirmed, and it is read: {what}")
            elif batch.at < commits[value]:
                findings.add("seen-before-commit", f"read {(commits[value] - batch.at) / 1e9:.3f} s before: {what}")
    for value in sorted(rolled_back & promised.keys() & halves):
        findings.add("ended-both-ways", f"{value}: its rollback was confirmed, and {promised[value]}")
    served = served_in_the_end(history, findings)
    for value, why in promised.items():
        if missing := [node for node, values in served.items() if value not in values]:
            findings.add("commit-lost", f"{value}: {why}, and in the end it is not at {', '.join(missing)}")
    findings.counts["committed"] = len(promised)
    findings.counts["never visible"] = len(halves - seen)
    if not promised or not findings.counts["never visible"]:
        findings.cannot_tell("no transaction was committed, or none was not")
    return findings.result()
