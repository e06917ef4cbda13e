"""One slow replica does not slow the group: sends to the others are acknowledged about as fast as without the fault."""

from __future__ import annotations

from collections.abc import Sequence

from checkers.history import Fault, History, Operation
from checkers.verdict import Findings, Result

PROMISE = "with one slow replica, 99 % of sends to the others take at most twice as long as without it"

KINDS = ("slow-disk", "packets")
FACTOR = 2.0
FLOOR_NS = 200 * 10**6
"""Shorter times are not compared: on a busy machine they say nothing. The faults delay each sync or packet by more."""
CATCH_UP_NS = 2 * 10**9
"""After a fault its replica catches up."""
SENDS_MIN = 50


def check_slow_node(history: History) -> Result:
    """Compare the times of acknowledged sends during each fault with those outside of all faults."""
    findings = Findings("slow node", PROMISE)
    sends = [send for send in history.named("send") if send.outcome == "ok"]
    faults = [fault for fault in history.faults if fault.kind in KINDS and fault.ended is not None]
    calm = [send for send in sends if not any(_is_during(send, fault, CATCH_UP_NS) for fault in history.faults)]
    if len(calm) < SENDS_MIN:
        findings.cannot_tell(f"only {len(calm)} sends outside of faults to compare with")
        return findings.result()
    usual_ns = _p99_ns(calm)
    limit_ns = max(FACTOR * usual_ns, FLOOR_NS)
    findings.counts["ms for 99 % of sends without faults"] = usual_ns // 10**6
    for fault in faults:
        under = [send for send in sends if _is_during(send, fault, 0) and send.node not in fault.nodes]
        if len(under) < SENDS_MIN:
            findings.cannot_tell(f"only {len(under)} sends to other replicas under {fault.what}")
            continue
        took_ns = _p99_ns(under)
        name = f"ms for 99 % of sends to others under {fault.what}"
        findings.counts[name] = max(findings.counts[name], took_ns // 10**6)
        if took_ns > limit_ns:
            times = f"{took_ns / 1e6:.0f} ms, {usual_ns / 1e6:.0f} ms without a fault"
            findings.add("slowed-by-one", f"{fault.what}: 99 % of {len(under)} sends to the others took {times}")
    if not faults:
        findings.cannot_tell("no replica was slow")
    return findings.result()


def _is_during(send: Operation, fault: Fault, catch_up_ns: int) -> bool:
    return fault.began <= send.began and (fault.ended is None or send.began < fault.ended + catch_up_ns)


def _p99_ns(sends: Sequence[Operation]) -> int:
    took = sorted((send.ended or send.began) - send.began for send in sends)
    return took[len(took) * 99 // 100]
