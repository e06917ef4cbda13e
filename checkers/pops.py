"""Popped messages: hidden from others for their invisible time, never delivered again once acknowledged, and none lost.

The broker's time of a pop is between the beginning and the end of the operation, and the order of two operations is
known only if one ended before the other began. In doubt, the operation is taken for correct.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from checkers.history import History, Operation, final_reads
from checkers.verdict import Findings, Result

PROMISE = "a popped message is hidden for its time, comes again unless it is acknowledged, and never after that"
ORDERED_PROMISE = "a message is popped in order when all before it in its queue are acknowledged"

EARLY_NS_MAX = 10_000_000
CLOCK = "clock"
"""A kind of fault under which times are not checked."""


def check_pops(history: History) -> Result:
    """Check `pop` (its offset: milliseconds for which messages are hidden) against `send`, `ack` and `give-back`."""
    findings = Findings("pop", PROMISE)
    sends = {send.value: send for send in history.named("send", "proxied-send")}
    handed_out: defaultdict[str, list[Operation]] = defaultdict(list)
    for pop in history.named("pop"):
        findings.counts[f"pop: {pop.outcome}"] += 1
        if pop.outcome == "ok":
            for _, _, value in pop.result:
                handed_out[value].append(pop)
    acks: defaultdict[str, list[Operation]] = defaultdict(list)
    given_back: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history.named("ack", "give-back"):
        findings.counts[f"{operation.name}: {operation.outcome}"] += 1
        (acks if operation.name == "ack" else given_back)[operation.value].append(operation)
    clocks_agree = not any(fault.kind == CLOCK for fault in history.faults)
    stored_again = _stored_again(history)
    for value, pops in handed_out.items():
        findings.counts["messages handed out again"] += len(pops) - 1
        send = sends.get(value)
        if send is None or send.outcome == "fail":
            findings.add("unexpected", f"{value} was popped, and nobody sent it or it was refused")
        if value in stored_again:
            findings.counts["not judged: stored more than once by its sender"] += 1
            continue
        if clocks_agree:  # a leader's clock that jumps ahead ends the invisible time of all messages
            _hidden(value, pops, given_back[value], findings)
        _gone_when_acknowledged(value, pops, acks[value], findings)
    _as_stored(history, findings)
    for send in sends.values():
        if send.outcome != "ok":
            continue
        if send.value not in handed_out:
            findings.add("unseen", f"{send.value}, acknowledged at {send.place}, was never popped")
        elif all(ack.outcome == "fail" for ack in acks[send.value]):
            findings.add("not-again", f"{send.value} was popped, never acknowledged, and did not come again")
    if not handed_out or not findings.counts["messages handed out again"]:
        findings.cannot_tell("no message was popped, or none came again")
    return findings.result()


def _stored_again(history: History) -> set[str]:
    """Values with several messages, since a client or a proxy resent one with an unknown outcome: which of them came
    again cannot be told.
    """
    may_be = {send.value for send in history.named("proxied-send")}
    values = {send.value for send in history.named("send") if send.again}
    for node in history.nodes:
        queues = [queue for (at, _), queue in final_reads(history).items() if at == node]
        counts = Counter(value for queue in queues for value in queue.values.values())
        values |= {value for value, count in counts.items() if count > 1 and value in may_be}
    return values


def _as_stored(history: History, findings: Findings) -> None:
    """Check that a popped message is at its offset on every replica; a retry topic has its own offsets."""
    reads = final_reads(history)
    for pop in history.named("pop"):
        if pop.outcome != "ok":
            continue
        for queue, offset, value in pop.result:
            for node in history.nodes:
                queue_read = reads.get((node, queue))
                if queue_read is not None and queue_read.complete and queue_read.values.get(offset, value) != value:
                    stored_value = queue_read.values[offset]
                    what = (
                        f"process {pop.process} popped {value} of {queue}@{offset}, and {node} has {stored_value} there"
                    )
                    findings.add("inconsistent-offsets", what)


def _hidden(value: str, pops: list[Operation], given_back: list[Operation], findings: Findings) -> None:
    """Check that of two deliveries one comes after the other's invisible time, unless it was returned in between."""
    for one, other in pairwise(pops):
        if any(_is_between(op, one, other) for op in given_back):
            continue
        if _is_too_soon(one, other) and (_ended(one) < other.began or _is_too_soon(other, one)):
            seconds = (_ended(other) - one.began) / 1e9
            what = f"{value}, popped by process {one.process} for {(one.offset or 0) / 1000:g} s"
            findings.add("popped-too-soon", f"{what}, was handed to process {other.process} within {seconds:.3f} s")


def _is_between(give_back: Operation, one: Operation, other: Operation) -> bool:
    """Whether a message may have been returned after one delivery and before the other."""
    is_open = give_back.outcome == "info" or give_back.ended is None
    is_after = is_open or _ended(give_back) > one.began
    return give_back.outcome != "fail" and is_after and give_back.began < _ended(other)


def _is_too_soon(first: Operation, second: Operation) -> bool:
    """Whether, in this order, the second pop got a message that was still hidden."""
    return _ended(second) < first.began + (first.offset or 0) * 1_000_000 - EARLY_NS_MAX


def _gone_when_acknowledged(value: str, pops: list[Operation], acks: list[Operation], findings: Findings) -> None:
    ack_time = min((_ended(ack) for ack in acks if ack.outcome == "ok"), default=None)
    for pop in pops:
        if ack_time is not None and pop.began > ack_time:
            seconds = (pop.began - ack_time) / 1e9
            findings.add("acknowledged-again", f"{value} was popped {seconds:.3f} s after it was acknowledged")


def check_ordered_pops(history: History) -> Result:
    """Check that a later message of a queue is delivered only after acknowledgements of all earlier ones have begun."""
    findings = Findings("ordered-pop", ORDERED_PROMISE)
    acks: defaultdict[str, dict[int, int]] = defaultdict(dict)
    """By queue and offset, the begin of the first acknowledgement that may have taken effect."""
    for ack in history.named("ack"):
        if ack.outcome != "fail" and ack.queue is not None and ack.offset is not None:
            acks[ack.queue].setdefault(ack.offset, ack.began)
    next_offsets: defaultdict[str, int] = defaultdict(int)
    """The offset of each queue before which everything was acknowledged before the current pop."""
    for pop in sorted(history.named("pop"), key=lambda each: each.ended or 0):
        if pop.outcome != "ok":
            continue
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for queue, offset, _ in pop.result:
            by_queue[queue].append(offset)
        for queue, offsets in by_queue.items():
            findings.counts["messages popped in order"] += len(offsets)
            ack_times = acks[queue]
            while ack_times.get(next_offsets[queue], _ended(pop)) < _ended(pop):
                next_offsets[queue] += 1
            due = next_offsets[queue]
            for offset in offsets:
                while due < offset and ack_times.get(due, _ended(pop)) < _ended(pop):
                    due += 1
                if offset > due:
                    what = f"process {pop.process} was handed {queue}@{offset}, and {due} was not acknowledged"
                    findings.add("handed-too-early", what)
                due = max(due, offset + 1)
            if any(after <= before for before, after in pairwise(offsets)):
                findings.add("int-nonmonotonic-pop", f"process {pop.process} got {queue}@{offsets} in one answer")
    if not findings.counts["messages popped in order"]:
        findings.cannot_tell("no message was popped")
    return findings.result()


def _ended(operation: Operation) -> int:
    assert operation.ended is not None, f"{operation} has not ended"
    return operation.ended
