"""A queue as an append-only log: the rules L1 to L7.

Each acknowledged append contains its offset, so the order is observed and need not be searched for. An order that
agrees with real time and with every read is a linearization; these rules are complete, and take O(n log n).

The time of an acknowledgement is when the client received it. Only operations that began after that must see it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from checkers.history import Batch, FinalQueue, History, Operation, bases, batches, final_reads
from checkers.verdict import Findings, Result

PROMISE = "one order per queue, equal on every replica, with everything that was acknowledged"

DISK_USED_MAX = 0.75
"""Brokers delete files before their time if the disk of the run's machine is fuller than 0.8."""

Place = tuple[str, int]
"""Queue and offset."""

LATER = ("half", "stage", "schedule", "proxied-send")
"""Sends at a place that their answers do not contain: of messages that become visible later, if at all, and of clients
of proxies.
"""


class _Log(NamedTuple):
    """The input of all rules. Acknowledged sends have a queue, an offset and an end."""

    sends: Mapping[str, Operation]
    acknowledged: Sequence[Operation]
    seen: Sequence[Batch]
    final: Mapping[tuple[str, str], FinalQueue]
    nodes: Sequence[str]
    bases: Mapping[str, int]
    keeps_all: bool
    """Nothing in the run is a reason to remove messages: no limit of the log's size, no full disk."""


def check_log(history: History) -> Result:
    """Check sends, reads at any replica, queries of a queue's end, and the final reads of every replica."""
    findings = Findings("log", PROMISE)
    sends: dict[str, Operation] = {}
    for send in history.named("send", *LATER):
        if send.value in sends:
            findings.cannot_tell(f"{send.value} was sent by two operations, so nobody knows whose message was read")
        sends[send.value] = send
    acked_sends = [send for send in sends.values() if send.outcome == "ok" and send.name not in LATER]
    log = _Log(
        sends, acked_sends, batches(history), final_reads(history), history.nodes, bases(history), _keeps_all(history)
    )
    places = _one_value_at_one_offset(log, findings)
    _one_offset_for_one_value(log, places, findings)
    floors = _floors(history, log)
    _order_of_real_time(log, places, floors, findings)
    _nothing_out_of_nowhere(log, findings)
    _ends_are_current(history, log, floors, findings)
    _replicas_are_whole(log, findings)
    _everything_stays(log, places, findings)
    findings.counts.update(
        {
            "sends": len(sends),
            "acknowledged": len(acked_sends),
            "refused": sum(send.outcome == "fail" for send in sends.values()),
            "of unknown outcome": sum(send.outcome == "info" for send in sends.values()),
            "messages read": sum(len(batch.messages) for batch in log.seen),
            "messages in final reads": sum(len(queue.values) for queue in log.final.values()),
            "ends asked": sum(operation.outcome == "ok" for operation in history.named("end")),
        }
    )
    return findings.result()


def _one_value_at_one_offset(log: _Log, findings: Findings) -> dict[Place, str]:
    """Check L1: one value at one offset. Returns the value at each place, as first acknowledged or read."""
    places: dict[Place, str] = {_place(send): send.value for send in log.acknowledged}
    records: dict[Place, int] = {}
    for send in log.acknowledged:
        if send.asked_queue is not None:
            what = f"{send.value} was sent to {send.asked_queue} and acknowledged at {send.place}"
            findings.add("other-queue", what)
        if places[_place(send)] != send.value:
            what = f"{places[_place(send)]} and {send.value} were both acknowledged"
            findings.add("inconsistent-offsets", f"{send.place}: {what}")
    for batch in log.seen:
        for offset, value, *crcs in batch.messages:
            place = (batch.queue, offset)
            first_value = places.setdefault(place, value)
            if first_value != value:
                findings.add(
                    "inconsistent-offsets", f"{batch.queue}@{offset} is {first_value}, and {value} by {batch.by}"
                )
            for crc in crcs:
                if records.setdefault(place, crc) != crc:
                    where = f"{batch.queue}@{offset}"
                    findings.add("changed-record", f"{where}: {batch.by} got other bytes than a reader before")
    return places


def _one_offset_for_one_value(log: _Log, places: Mapping[Place, str], findings: Findings) -> None:
    """Check L2: a value has one offset, unless its client may have sent it more than once; these are counted."""
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


def _floors(history: History, log: _Log) -> dict[str, _Floors]:
    """Map each queue to the lowest ends that clients knew, by time."""
    floors: defaultdict[str, list[_Floor]] = defaultdict(list)
    for send in log.acknowledged:
        floors[str(send.queue)].append(_Floor(_ended(send), _offset(send) + 1, send))
    for batch in log.seen:
        if batch.messages:
            highest_read = max(batch.messages, key=itemgetter(0))[0]
            floors[batch.queue].append(_Floor(batch.at, highest_read + 1, batch.operation))
    for end in history.named("end", "known-end"):
        if end.outcome == "ok":
            floors[str(end.queue)].append(_Floor(_ended(end), _offset(end), end))
    return {queue: _Floors(each) for queue, each in floors.items()}


class _Floor(NamedTuple):
    """The least end of a queue, ``floor``, an offset, that clients know of from the time ``at`` on."""

    at: int
    floor: int
    by: Operation

    @property
    def why(self) -> str:
        """The reason as text."""
        by = self.by
        if by.name in ("end", "known-end"):
            return f"{by.node} said so"
        if by.name == "send":
            return f"{by.value} was acknowledged at {by.place}"
        return f"{Batch(self.at, str(by.queue), by).by} got {by.queue}@{self.floor - 1}"


class _Floors:
    """The least end of one queue that clients knew of, at any time."""

    def __init__(self, floors: list[_Floor]) -> None:
        floors.sort(key=lambda each: each.at)
        self._times = [each.at for each in floors]
        self._highest: list[_Floor] = []
        for each in floors:
            is_higher = not self._highest or each.floor > self._highest[-1].floor
            self._highest.append(each if is_higher else self._highest[-1])

    def before(self, time: int) -> _Floor | None:
        """The highest floor that a client knew before ``time``; None if there was none."""
        at = bisect_left(self._times, time) - 1
        return self._highest[at] if at >= 0 else None


def _order_of_real_time(
    log: _Log, places: Mapping[Place, str], floors: Mapping[str, _Floors], findings: Findings
) -> None:
    """Check L3: a message sent after clients learned a place is behind it, whether acknowledged or read."""
    for send in log.acknowledged:
        _is_behind(send, _place(send), floors, findings)
    for place, value in places.items():
        sent = log.sends.get(value)
        if sent is None or (sent.offset == place[1] and sent.queue == place[0]):
            continue
        if sent.outcome != "fail":
            _is_behind(sent, place, floors, findings)


def _is_behind(send: Operation, place: Place, floors: Mapping[str, _Floors], findings: Findings) -> None:
    queue, offset = place
    floor = floors[queue].before(send.began)
    if floor is not None and offset < floor.floor:
        when = f"was sent when {queue} ended at {floor.floor} or later: {floor.why}"
        findings.add("order-of-real-time", f"{send.value} is at {queue}@{offset}, and {when}")


def _nothing_out_of_nowhere(log: _Log, findings: Findings) -> None:
    """Check L4: every value read was sent before, and was not refused."""
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


def _ends_are_current(history: History, log: _Log, floors: Mapping[str, _Floors], findings: Findings) -> None:
    """Check L5: a query of the end that begins after an acknowledgement, a read or another answer is not behind it.

    Everything before a reported end must exist at the end of the run. No reader that requests a place before the end
    may be sent back to an earlier one, where a consumer would get everything again.
    """
    whole: dict[str, int] = {}
    for (_, queue), queue_read in log.final.items():
        if queue_read.complete:
            whole[queue] = max(queue_read.end, whole.get(queue, 0))
    for end in history.named("end", "known-end"):
        if end.outcome != "ok":
            continue
        queue, offset = str(end.queue), _offset(end)
        floor = floors[queue].before(end.began) if end.name == "end" else None
        if floor is not None and offset < floor.floor:
            findings.add("stale-end", f"{end.node} says {queue} ends at {offset}, it was at {floor.floor}: {floor.why}")
        if offset > whole.get(queue, offset):
            findings.add("phantom-end", f"{end.node} said {queue} ends at {offset}, in the end it is {whole[queue]}")
    for read in history.named("read"):
        if read.outcome == "ok" and read.error is not None and str(read.queue) in floors:
            floor = floors[str(read.queue)].before(read.began)
            if floor is not None and _offset(read) <= floor.floor:
                what = f"{read.node} told a reader of {read.place}: {read.error}"
                findings.add("sent-back", f"{what}, and the queue ended at {floor.floor} or later: {floor.why}")


def _replicas_are_whole(log: _Log, findings: Findings) -> None:
    """Check that offsets of a replica have no gaps, and that queues end at the same offset on all of them."""
    ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (node, queue), queue_read in log.final.items():
        if not queue_read.complete:
            findings.cannot_tell(f"{node} was not read to the end of {queue}")
            continue
        ends[queue][node] = queue_read.end
        if queue_read.read_to is not None and queue_read.read_to > queue_read.end:
            findings.add(
                "gap", f"{queue} of {node} ends at {queue_read.read_to}, and the last messages were not served"
            )
        missing = sorted(set(range(queue_read.first, queue_read.end)) - queue_read.values.keys())
        if missing:
            findings.add(
                "gap", f"{queue} of {node} has {len(queue_read.values)} messages and none at {_listed(missing)}"
            )
    if not log.final:
        findings.cannot_tell("no replica was read in the end")
    for queue, by_node in ends.items():
        if len(set(by_node.values())) > 1:
            longest = max(by_node, key=by_node.__getitem__)
            shortest = min(by_node.values())
            beyond = [log.final[longest, queue].values.get(each) for each in range(shortest, by_node[longest])][:3]
            texts = "; ".join(_how_sent(log, value) for value in beyond if value is not None)
            findings.add("replicas-differ", f"{queue} ends at different offsets: {by_node}: {texts}")


def _everything_stays(log: _Log, places: Mapping[Place, str], findings: Findings) -> None:
    """Check L6: an acknowledged message is on every replica at its reported place; L7: a message once read stays there.

    Unless retention removed it: then the log of the replica begins after it.
    """
    sends = {_place(send): send for send in log.acknowledged}
    for place, value in places.items():
        queue, offset = place
        for node in log.nodes:
            queue_read = log.final.get((node, queue))
            if queue_read is None:
                findings.cannot_tell(f"{node} was not read to the end of {queue}")
                continue
            if not queue_read.complete or queue_read.values.get(offset) == value:
                continue
            send = sends.get(place)
            if offset < queue_read.first and send is not None and send.position is not None and node not in log.bases:
                findings.cannot_tell(f"{node} did not say where its log begins")
                continue
            if offset < queue_read.first and (send is None or _is_below(send, log.bases.get(node, 0))):
                if log.keeps_all:
                    text = f"{node} begins {queue} at {queue_read.first}, and no file was due for removal"
                    findings.add("removed-too-early", f"{value} at {queue}@{offset}: {text}")
                else:
                    findings.counts["removed in their time"] += 1
                continue
            has = queue_read.values.get(offset, "nothing")
            anomaly = "flicker" if send is None else "lost-write"
            why = "read" if send is None else f"acknowledged to process {send.process}"
            how = "" if send is not None else f" ({_how_sent(log, value)})"
            findings.add(anomaly, f"{value} at {queue}@{offset} was {why}, {node} has {has} there in the end{how}")


def _keeps_all(history: History) -> bool:
    settings = history.plan.get("settings")
    if settings is None or "retention_bytes" in settings or "retention_hours" in settings:
        return False
    if float(history.plan.get("disk_used", 0.0)) >= DISK_USED_MAX:
        return False
    return not any(fault.kind == "disk-full" for fault in history.faults)


def _how_sent(log: _Log, value: str) -> str:
    """Describe the end of a value's send, for an example."""
    send = log.sends.get(value)
    if send is None:
        return f"nobody sent {value}"
    outcome = {"ok": "was acknowledged", "fail": "was refused", "info": "had an unknown outcome"}[send.outcome]
    when = "never ended" if send.ended is None else f"after {(send.ended - send.began) / 1e9:.3f} s"
    why = f", {send.error}" if send.error else ""
    return f"the send of {value} by process {send.process} {outcome}: {when}{why}"


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
    text = ", ".join(map(str, things[:count_max]))
    return text + (f" and {len(things) - count_max} more" if len(things) > count_max else "")
