"""A queue as a log that is appended to and read: the rules L1 to L7.

Each acknowledged append says its offset, so the order is observed and need not be searched for. An order that agrees
with real time and with every read is a linearization; these rules are complete, and take O(n log n).

The time of an acknowledgement is when the client had it. Only what began after that must see it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jepsen.history import Batch, FinalQueue, History, Operation, bases, batches, final_reads
from jepsen.verdict import Findings, Result

PROMISE = "one order per queue, equal on every replica, with everything that was acknowledged"

Place = tuple[str, int]
"""Queue and offset."""

LATER = ("half", "schedule")
"""Sends of messages that are seen later, if at all, and at a place that their answers do not tell."""


class _Log(NamedTuple):
    """What all rules look at. Acknowledged sends have a queue, an offset and an end."""

    sends: Mapping[str, Operation]
    acknowledged: Sequence[Operation]
    seen: Sequence[Batch]
    final: Mapping[tuple[str, str], FinalQueue]
    nodes: Sequence[str]
    bases: Mapping[str, int]


def check_log(history: History) -> Result:
    """Check sends, reads at any replica, questions for a queue's end, and the final reads of every replica."""
    findings = Findings("log", PROMISE)
    sends = {operation.value: operation for operation in history.named("send", *LATER)}
    acknowledged = [send for send in sends.values() if send.outcome == "ok" and send.name not in LATER]
    log = _Log(sends, acknowledged, batches(history), final_reads(history), history.nodes, bases(history))
    places = _one_value_at_one_offset(log, findings)
    _one_offset_for_one_value(log, places, findings)
    _order_of_real_time(log, findings)
    _nothing_out_of_nowhere(log, findings)
    _ends_are_current(list(history.named("end")), log, findings)
    _replicas_are_whole(log, findings)
    _everything_stays(log, places, findings)
    findings.counts.update(
        {
            "sends": len(sends),
            "acknowledged": len(acknowledged),
            "refused": sum(send.outcome == "fail" for send in sends.values()),
            "of unknown outcome": sum(send.outcome == "info" for send in sends.values()),
            "messages read": sum(len(batch.messages) for batch in log.seen),
            "messages in final reads": sum(len(queue.values) for queue in log.final.values()),
            "ends asked": sum(operation.outcome == "ok" for operation in history.named("end")),
        }
    )
    return findings.result()


def _one_value_at_one_offset(log: _Log, findings: Findings) -> dict[Place, str]:
    """L1. Returns which value is at each place, as first acknowledged or read."""
    places: dict[Place, str] = {_place(send): send.value for send in log.acknowledged}
    records: dict[Place, int] = {}
    for send in log.acknowledged:
        if places[_place(send)] != send.value:
            what = f"{places[_place(send)]} and {send.value} were both acknowledged"
            findings.add("inconsistent-offsets", f"{send.place}: {what}")
    for batch in log.seen:
        for offset, value, *crcs in batch.messages:
            place = (batch.queue, offset)
            known = places.setdefault(place, value)
            if known != value:
                findings.add("inconsistent-offsets", f"{batch.queue}@{offset} is {known}, and {value} by {batch.by}")
            for crc in crcs:
                if records.setdefault(place, crc) != crc:
                    where = f"{batch.queue}@{offset}"
                    findings.add("changed-record", f"{where}: {batch.by} got other bytes than a reader before")
    return places


def _one_offset_for_one_value(log: _Log, places: Mapping[Place, str], findings: Findings) -> None:
    """L2. A value that its client may have sent more than once may have several offsets; they are counted."""
    where: defaultdict[str, list[Place]] = defaultdict(list)
    for place, value in places.items():
        where[value].append(place)
    for value, its in where.items():
        if len(its) > 1:
            send = log.sends.get(value)
            if send is not None and send.again:
                findings.counts["stored again after an unknown outcome"] += len(its) - 1
            else:
                findings.add("duplicate", f"{value} is at {_listed(its)} and was sent once")


def _order_of_real_time(log: _Log, findings: Findings) -> None:
    """L3: what was sent after an acknowledgement lies behind it."""
    queues: defaultdict[str | None, list[Operation]] = defaultdict(list)
    for send in log.acknowledged:
        queues[send.queue].append(send)
    for sends in queues.values():
        by_end = sorted(sends, key=_ended)
        at, highest = 0, None
        for send in sorted(sends, key=lambda each: each.began):
            while at < len(by_end) and _ended(by_end[at]) < send.began:
                if highest is None or _offset(by_end[at]) > _offset(highest):
                    highest = by_end[at]
                at += 1
            if highest is not None and _offset(send) <= _offset(highest):
                findings.add(
                    "order-of-real-time",
                    f"{send.value} was sent after {highest.value} was acknowledged at {highest.place}, "
                    f"and is at {send.place}",
                )


def _nothing_out_of_nowhere(log: _Log, findings: Findings) -> None:
    """L4: what is read was sent before, and was not refused."""
    for batch in log.seen:
        for offset, value, *_ in batch.messages:
            send = log.sends.get(value)
            if send is not None and send.outcome != "fail" and send.began <= batch.at:
                continue
            what = f"{value} at {batch.queue}@{offset} by {batch.by}"
            if send is None:
                findings.add("phantom", f"nobody sent {what}")
            elif send.outcome == "fail":
                findings.add("G1a", f"refused ({send.error}) and read: {what}")
            else:
                findings.add("future-read", f"read before it was sent: {what}")


def _ends_are_current(ends: Sequence[Operation], log: _Log, findings: Findings) -> None:
    """L5: a question for the end that begins after an acknowledgement, a read or an answer is not behind it."""
    floors: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for send in log.acknowledged:
        floors[str(send.queue)].append((_ended(send), _offset(send) + 1, f"{send.value} was acknowledged"))
    for batch in log.seen:
        if batch.messages:
            highest_read = max(offset for offset, *_ in batch.messages)
            floors[batch.queue].append((batch.at, highest_read + 1, f"{batch.by} read {highest_read}"))
    answered = [end for end in ends if end.outcome == "ok"]
    if not answered:
        return
    for end in answered:
        floors[str(end.queue)].append((_ended(end), _offset(end), f"{end.node} said so"))
    steps: dict[str, tuple[list[int], list[tuple[int, str]]]] = {}
    for queue, known in floors.items():
        known.sort()
        times, highest = [], []
        best = (0, "")
        for at, offset, why in known:
            if offset > best[0]:
                best = (offset, why)
            times.append(at)
            highest.append(best)
        steps[queue] = (times, highest)
    for end in answered:
        times, highest = steps[str(end.queue)]
        before = bisect_left(times, end.began) - 1
        if before >= 0 and _offset(end) < highest[before][0]:
            least, why = highest[before]
            findings.add("stale-end", f"{end.node} says {end.queue} ends at {end.offset}, it was at {least}: {why}")


def _replicas_are_whole(log: _Log, findings: Findings) -> None:
    """Offsets of a replica have no gap, and queues end at the same offset on all of them."""
    ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (node, queue), found in log.final.items():
        if not found.complete:
            findings.cannot_tell(f"{node} was not read to the end of {queue}")
            continue
        ends[queue][node] = found.end
        missing = sorted(set(range(found.first, found.end)) - found.values.keys())
        if missing:
            findings.add("gap", f"{queue} of {node} has {len(found.values)} messages and none at {_listed(missing)}")
    if not log.final:
        findings.cannot_tell("no replica was read in the end")
    for queue, by_node in ends.items():
        if len(set(by_node.values())) > 1:
            findings.add("replicas-differ", f"{queue} ends at different offsets: {by_node}")


def _everything_stays(log: _Log, places: Mapping[Place, str], findings: Findings) -> None:
    """L6: what was acknowledged is on every replica where it was said to be. L7: what was once read stays there.

    Unless it has been removed in its time: then the log of the replica begins behind it.
    """
    promised = {_place(send): send for send in log.acknowledged}
    for place, value in places.items():
        queue, offset = place
        for node in log.nodes:
            found = log.final.get((node, queue))
            if found is None or not found.complete or found.values.get(offset) == value:
                continue
            send = promised.get(place)
            if offset < found.first and send is not None and send.position is not None and node not in log.bases:
                findings.cannot_tell(f"{node} did not say where its log begins")
                continue
            if offset < found.first and (send is None or _is_below(send, log.bases.get(node, 0))):
                findings.counts["removed in their time"] += 1
                continue
            has = found.values.get(offset, "nothing")
            anomaly = "flicker" if send is None else "lost-write"
            why = "read" if send is None else f"acknowledged to process {send.process}"
            findings.add(anomaly, f"{value} at {queue}@{offset} was {why}, {node} has {has} there in the end")


def _is_below(send: Operation, base: int) -> bool:
    return send.position is not None and send.position < base


def _place(send: Operation) -> Place:
    assert send.queue is not None, f"{send} was acknowledged in no queue"
    return send.queue, _offset(send)


def _offset(operation: Operation) -> int:
    assert operation.offset is not None, f"{operation} has no offset"
    return operation.offset


def _ended(operation: Operation) -> int:
    assert operation.ended is not None, f"{operation} has not ended"
    return operation.ended


def _listed(things: Sequence[object], count_max: int = 5) -> str:
    shown = ", ".join(map(str, things[:count_max]))
    return shown + (f" and {len(things) - count_max} more" if len(things) > count_max else "")
