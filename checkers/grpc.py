"""Clients of proxies: messages that a proxy calls stored are stored, and messages that it refuses are not.

Answers do not name queues, so the final reads are searched for values. `checkers.pops` judges received messages.
"""

from __future__ import annotations

from collections import Counter

from checkers.history import History, final_reads
from checkers.verdict import Findings, Result

PROMISE = "a message that a proxy acknowledges is on every replica, and a refused one on none"


def check_grpc(history: History) -> Result:
    """Check `proxied-send` against the final reads of every replica."""
    findings = Findings("grpc", PROMISE)
    sends = list(history.named("proxied-send"))
    reads = final_reads(history)
    values_of = {
        node: Counter(value for (at, _), queue in reads.items() if at == node for value in queue.values.values())
        for node in history.nodes
    }
    whole = {node for node in history.nodes if all(queue.complete for (at, _), queue in reads.items() if at == node)}
    for send in sends:
        findings.counts[f"proxied-send: {send.outcome}"] += 1
        for node, values in values_of.items():
            copies = values[send.value]
            if send.outcome == "ok" and not copies and node in whole:
                findings.add("lost", f"{send.value} was acknowledged by a proxy, and {node} does not have it")
            elif send.outcome == "fail" and copies:
                findings.add("unexpected", f"{send.value} was refused by a proxy ({send.error}), and {node} has it")
            elif copies > 1:
                findings.counts["stored more than once, on a replica"] += 1
    if not whole or not any(send.outcome == "ok" for send in sends):
        findings.cannot_tell("no proxy acknowledged a message, or no replica was read as a whole")
    return findings.result()
