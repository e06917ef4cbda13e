"""Checks that missing, slow, damaged or rolled back object storage affects only readers of old messages."""

from __future__ import annotations

from checkers.history import History
from checkers.verdict import Findings, Result

PROMISE = "faults of the archive delay no sends, and old messages are served right or refused"
KINDS = frozenset({"store-gone", "store-slow", "store-rot", "store-rollback"})
STALL_NS = 3_000_000_000
"""A fault of the store that lasts so long must see messages acknowledged."""


def check_archive(history: History) -> Result:
    """Check that messages were acknowledged during each fault of the store, and that old ones were read from it.

    Whether these are the right messages, and all of them in the end, `check_log` checks.
    """
    findings = Findings("archive", PROMISE)
    ack_times = [send.ended for send in history.named("send") if send.outcome == "ok" and send.ended is not None]
    for fault in history.faults:
        if fault.kind not in KINDS or fault.ended is None or fault.ended - fault.began < STALL_NS:
            continue
        findings.counts["faults of the store"] += 1
        meanwhile = sum(fault.began < ended < fault.ended for ended in ack_times)
        findings.counts["acknowledged meanwhile"] += meanwhile
        if not meanwhile:
            seconds = (fault.ended - fault.began) / 1e9
            findings.add("stalled-by-store", f"no message was acknowledged during {fault.what}, for {seconds:.1f} s")
    for read in history.named("read"):
        findings.counts[f"reads: {read.outcome}"] += 1
    ranges = sum(event.v for event in history.of_run("store-ranges"))
    findings.counts["ranges read from the store"] = ranges
    if not ranges:
        findings.cannot_tell("nothing was read from the archive: the run was too short for its log to be archived")
    return findings.result()
