"""Counts rare states, which long runs must reach, in brokers' logs and in histories. Pure.

The report says "never" for a state that no run reached.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

from checkers.history import History, Operation

IN_LOGS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "a leader resigned because it heard no majority": ("role_changed", {"cause": "majority_silent"}),
    "a leader was silent, and another one elected": ("role_changed", {"cause": "leader_silent"}),
    "a candidate gave way to another one": ("role_changed", {"cause": "other_candidate"}),
    "leadership was handed over": ("role_changed", {"cause": "handed_over"}),
    "a follower lost its leader with forwarded requests under way": ("forwarding_broken", {}),
    "a replica fetched whole files, since its log was too far behind": ("install_begun", {}),
    "a damaged log was noticed": ("log_damaged", {}),
    "damaged entries came back from peers": ("log_repaired", {}),
    "a broker stopped because its disk failed": ("disk_failed", {}),
    "a checkpoint could not be written": ("checkpoint_failed", {}),
    "a replica that is not a member was refused": ("peer_refused", {}),
}
"""The event in a broker's log, and its fields, that show each state."""

CHECKED_BACK = "a half message was open when the leader changed, and was checked back afterwards"
ENDED = "a half message was open when the leader changed, and its producer ended it afterwards"
RECALLED = "a delayed message was stored under one leader and recalled under another"
ACKNOWLEDGED = "a popped message was acknowledged to another leader than the one that served it"
HANDLED = "a member of an ordered group handled a message while the leader changed"
IN_DOUBT = "the leader changed during a send, and the client does not know whether it is stored"
REMOVED = "a reader asked a follower for messages that retention had removed"

IN_HISTORIES = (CHECKED_BACK, ENDED, RECALLED, ACKNOWLEDGED, HANDLED, IN_DOUBT, REMOVED)
STATES = (*IN_LOGS, *IN_HISTORIES)


def count_states(lines: Iterable[str]) -> Counter[str]:
    """Count how often each rare state occurs in the log of one broker."""
    counts: Counter[str] = Counter()
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the broker was killed while it wrote
        for state, (name, fields) in IN_LOGS.items():
            if event.get("event") == name and all(event.get(key) == value for key, value in fields.items()):
                counts[state] += 1
    return counts


class _Leaders:
    """The leaders over time, as observed by the run."""

    def __init__(self, history: History) -> None:
        self._times: list[int] = []
        self._nodes: list[str | None] = [None]
        for event in history.of_run("role"):
            if event.v[0] == "leader" and event.n != self._nodes[-1]:
                self._times.append(event.t)
                self._nodes.append(event.n)

    def at(self, time: int) -> str | None:
        """The leader at this time, None before there was one."""
        return self._nodes[bisect_right(self._times, time)]

    def changed(self, began: int, end: int) -> bool:
        """Whether different replicas led at the two times; the first election is not a change."""
        return self.at(began) not in (None, self.at(end))


def met_in_history(history: History) -> Counter[str]:
    """Count how often clients reached each state of `IN_HISTORIES`; 0 if never."""
    leaders = _Leaders(history)
    counts = Counter(dict.fromkeys(IN_HISTORIES, 0))
    end_times: dict[tuple[str, str], int] = {}
    # Skip operations without an end: they would span every later change of leader.
    by_end = sorted((each.ended, each.index, each) for each in history.operations if each.ended is not None)
    for end, _, operation in by_end:
        for state, key in _begun_before(operation):
            counts[state] += key in end_times and leaders.changed(end_times[key], end)
        match operation.name, operation.outcome:
            case (("half" | "schedule"), "ok"):
                end_times[operation.name, operation.value] = end
            case "pop", "ok":
                end_times |= {("pop", value): end for _, _, value in operation.result or ()}
            case "handle", _:
                counts[HANDLED] += leaders.changed(operation.began, end)
            case "send", "info":
                counts[IN_DOUBT] += leaders.changed(operation.began, end)
            case "removed", _:
                counts[REMOVED] += operation.node is not None and operation.node != leaders.at(end)
            case _:
                pass
    return counts


def _begun_before(operation: Operation) -> list[tuple[str, tuple[str, str]]]:
    """The states that an operation completes if the key's earlier operation was answered under another leader."""
    if operation.outcome != "ok":
        return []
    match operation.name:
        case "check":
            return [(CHECKED_BACK, ("half", operation.value[0]))]
        case "end-transaction":
            return [(ENDED, ("half", operation.value[0]))]
        case "recall":
            return [(RECALLED, ("schedule", operation.value))]
        case "ack":
            return [(ACKNOWLEDGED, ("pop", operation.value))]
        case _:
            return []
