"""Bulk reads at any replica: complete from their beginning to the returned next offset, and of one topic.

`check_log` checks that they contain only committed messages, at the right offsets and with the same bytes as elsewhere.
"""

from __future__ import annotations

from collections import Counter

from checkers.history import History
from checkers.verdict import Findings, Result

PROMISE = "a bulk read has every message from where it begins to where it says to go on, at any replica"


def check_bulk(history: History) -> Result:
    """Check `bulk-read` (value: its beginning; offset: where to continue), and that `identity` is the same
    everywhere.
    """
    findings = Findings("bulk", PROMISE)
    for read in history.named("bulk-read"):
        findings.counts[f"bulk-read: {read.outcome}"] += 1
        if read.outcome == "fail":
            findings.counts[f"answered {(read.error or '').partition(' ')[0]}"] += 1
        if read.outcome != "ok":
            continue
        findings.counts["messages read in bulk"] += len(read.result)
        offsets = [offset for offset, *_ in read.result]
        due = list(range(read.value, read.offset or 0))
        if offsets != due:
            missing = sorted(set(due) - set(offsets))
            what = f"{read.queue} at {read.node} from {read.value} to {read.offset}"
            findings.add(
                "int-poll-skip" if missing else "not-asked-for", f"{what}: {offsets[:20]}, missing {missing[:5]}"
            )
    identities = Counter(str(operation.result) for operation in history.named("identity"))
    if len(identities) > 1:
        findings.add("identity-changed", f"nobody deleted the topic, and replicas told {dict(identities)}")
    if not findings.counts["messages read in bulk"]:
        findings.cannot_tell("nothing was read in bulk")
    return findings.result()
