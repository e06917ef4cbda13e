"""Checks that a run tested anything: enough acknowledged, every fault took effect, clients worked under it, it ended.

None of this violates a promise. Missing coverage makes a run `unknown`, which is reported as failed: a run that saw
nothing proves nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from checkers.append_log import LATER
from checkers.history import Fault, History
from checkers.verdict import Findings, Result

PROMISE = "the run tested something: messages were acknowledged, and every fault was seen to take effect"

ACKNOWLEDGED = ("send", *LATER, "write")
ACKNOWLEDGED_MIN = 50
CALM = "calm"
FAILOVER_NS = 5 * 10**9
"""Failover takes at most this long: a shorter fault need not have any acknowledgements."""


def check_coverage(history: History) -> Result:
    """Check the coverage of the run."""
    findings = Findings("coverage", PROMISE)
    ack_times = sorted(send.ended or 0 for send in history.named(*ACKNOWLEDGED) if send.outcome == "ok")
    findings.counts["acknowledged"] = len(ack_times)
    findings.counts["operations"] = len(history.operations)
    if len(ack_times) < ACKNOWLEDGED_MIN:
        findings.cannot_tell(f"nothing was tested: {len(ack_times)} messages acknowledged")
    if not history.is_complete:
        findings.cannot_tell("the run did not reach its end")
    by_kind: defaultdict[str, list[Fault]] = defaultdict(list)
    for fault in history.faults:
        by_kind[fault.kind].append(fault)
        findings.counts["faults"] += 1
        findings.counts["faults confirmed"] += fault.seen is not None
        if fault.ended is None and history.is_complete:
            findings.cannot_tell(f"{fault.what} ({fault.kind}, fault {fault.number}) was never over")
    if not history.nodes:
        findings.cannot_tell("nothing was tested: the run had no replica")
    for kind in dict.fromkeys((*history.plan.get("nemeses", ()), *by_kind)):
        if kind != CALM:
            _check_kind(kind, by_kind.get(kind, []), ack_times, findings)
    return findings.result()


def _check_kind(kind: str, faults: list[Fault], ack_times: list[int], findings: Findings) -> None:
    if not faults:
        findings.cannot_tell(f"nothing was tested: no fault of kind {kind}")
        return
    for fault in faults:
        if fault.seen is None:
            findings.cannot_tell(f"{fault.what} ({kind}, fault {fault.number}) was not seen to take effect")
    last = ack_times[-1] if ack_times else 0
    if not any(fault.ended is not None and fault.ended < last for fault in faults):
        findings.cannot_tell(f"nothing was tested: no message was acknowledged after a fault of kind {kind}")
    survivable = [fault for fault in faults if fault.majority]
    under = sum(
        bisect_right(ack_times, fault.ended or last) - bisect_right(ack_times, fault.began) for fault in survivable
    )
    findings.counts[f"acknowledged under {kind}"] = under
    duration = sum((fault.ended or last) - fault.began for fault in survivable)
    if survivable and not under and duration >= FAILOVER_NS:
        findings.cannot_tell(f"nothing was tested: no message was acknowledged under a fault of kind {kind}")
