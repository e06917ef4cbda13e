"""Messages that consumers send back: they are redelivered, counted, and end in the group's dead letter topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from checkers.history import History, Operation
from checkers.verdict import Findings, Result

PROMISE = "a message that is given back comes again, counted, until it is handled or becomes a dead letter"

RECONSUMED_MAX = 3
"""Redeliveries of a message before it becomes a dead letter."""


def check_retries(history: History) -> Result:
    """Check `try` (offset: number of earlier deliveries; error: it was sent back) and `dead-read`."""
    findings = Findings("retries", PROMISE)
    tries: defaultdict[str, list[Operation]] = defaultdict(list)
    for attempt in history.named("try"):
        tries[attempt.value].append(attempt)
        findings.counts["given back" if attempt.error else "handled"] += 1
    dead: defaultdict[str, set[str]] = defaultdict(set)
    places: dict[int, tuple[str, int]] = {}
    read_to_the_end = set()
    for read in history.named("dead-read"):
        if read.outcome == "ok" and read.node is not None:
            dead[read.node].update(value for _, value, *_ in read.result)
            for offset, value, crc in read.result:
                if places.setdefault(offset, (value, crc)) != (value, crc):
                    what = f"{read.node} has {value} as dead letter {offset}, another replica {places[offset][0]}"
                    findings.add("dead-letters-differ", f"{what}, or with other bytes")
            if not read.result:
                read_to_the_end.add(read.node)
    for node in history.nodes:
        if node not in read_to_the_end:
            findings.cannot_tell(f"the dead letters of {node} were not read to the end")
    somewhere = set().union(*dead.values())
    _are_dead_once(history, [value for value, _ in places.values()], tries, findings)
    sends = {send.value: send for send in history.named("send")}
    for value, attempts in tries.items():
        if value not in sends or sends[value].outcome == "fail":
            findings.add("unexpected", f"{value} was handed out, and nobody sent it or it was refused")
        _is_counted(value, attempts, findings)
    for send in sends.values():
        attempts = tries[send.value]
        is_handled = any(not attempt.error for attempt in attempts)
        if send.value in somewhere:
            _is_rightly_dead(send.value, attempts, findings)
            if missing := [node for node in history.nodes if node in read_to_the_end and send.value not in dead[node]]:
                findings.add("dead-letters-differ", f"{send.value} is no dead letter at {', '.join(missing)}")
        elif send.outcome == "ok" and not attempts:
            findings.add("unseen", f"{send.value}, acknowledged at {send.place}, was never handed out")
        elif send.outcome == "ok" and not is_handled and read_to_the_end:
            times = [attempt.offset for attempt in attempts]
            findings.add(
                "given-back-and-lost", f"{send.value} was given back {times}, and neither came again nor is dead"
            )
    for value in somewhere - sends.keys():
        findings.add("unexpected", f"{value} is a dead letter, and nobody sent it")
    findings.counts["dead letters"] = len(somewhere)
    if not somewhere or not findings.counts["handled"]:
        findings.cannot_tell("no message was handled, or none died")
    return findings.result()


def _are_dead_once(history: History, dead: list[str], tries: Mapping[str, list[Operation]], findings: Findings) -> None:
    """Check that each message sent back for the last time becomes one dead letter.

    Under faults a client may send a message back again because it got no answer; without faults it has no reason to.
    """
    for value, times in Counter(dead).items():
        attempts = tries.get(value, ())
        last_tries = sum(attempt.error is not None and attempt.offset == RECONSUMED_MAX for attempt in attempts)
        excess = times - max(1, last_tries)
        if excess <= 0:
            continue
        if history.faults:
            findings.counts["dead letters stored again"] += excess
        else:
            what = f"{value} is a dead letter {times} times, and was given back {last_tries} times for the last time"
            findings.add("dead-twice", what)


def _is_counted(value: str, attempts: list[Operation], findings: Findings) -> None:
    """Check that each attempt's number follows the previous one, which was sent back; none exceeds the maximum."""
    given_back = {-1}
    for attempt in attempts:
        times = attempt.offset or 0
        if times > RECONSUMED_MAX:
            findings.add("one-more", f"{value} came again {times} times, {RECONSUMED_MAX} are allowed")
        elif times - 1 not in given_back:
            findings.add("count-skipped", f"{value} came with count {times}, and was not given back with {times - 1}")
        if attempt.error:
            given_back.add(times)


def _is_rightly_dead(value: str, attempts: list[Operation], findings: Findings) -> None:
    if not any(attempt.error and attempt.offset == RECONSUMED_MAX for attempt in attempts):
        times = [attempt.offset for attempt in attempts]
        findings.add("dead-too-early", f"{value} is a dead letter, and was handed out with counts {times} only")
