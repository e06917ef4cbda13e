"""Traces of cores keep the paper's rules, and the checker notices traces that were bent by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import main
from raftlog.consensus.trace import OWN_EVENTS, Trace
from tests.paper.group import A, B, C, Group
from tests.paper.reference import RuleBroken, check

ETCD_EVENTS = {
    "InitState",
    "BecomeCandidate",
    "BecomeFollower",
    "BecomeLeader",
    "Commit",
    "Replicate",
    "ApplyConfChange",
    "SendAppendEntriesRequest",
    "ReceiveAppendEntriesRequest",
    "SendAppendEntriesResponse",
    "ReceiveAppendEntriesResponse",
    "SendRequestVoteRequest",
    "ReceiveRequestVoteRequest",
    "SendRequestVoteResponse",
    "ReceiveRequestVoteResponse",
}

Event = dict[str, Any]


def story() -> list[str]:
    """Two leaders, an entry that is cut off, a slow disk, a restart."""
    lines: list[str] = []
    group = Group(3, core_class=Trace(lines.append).core_class()).led_by(A)
    group.replicate(A, 3)
    group.isolate(A)
    group.propose(A, 2)
    group.slow_disks.add(C)
    group.time_out(B)
    group.deliver()
    group.finish_writes(C)
    group.deliver()
    group.replicate(B, 4)
    group.slow_disks.clear()
    group.finish_writes(C)
    group.deliver()
    group.heal()
    group.pass_time(1.0)
    group.start(C)
    group.pass_time(1.0)
    return lines


def names(lines: list[str]) -> list[str]:
    return [json.loads(line)["event"]["name"] for line in lines]


def test_trace_of_a_story_follows_the_rules() -> None:
    lines = story()
    reference = check(lines)
    assert reference.lines == len(lines)
    assert set(names(lines)) <= ETCD_EVENTS | OWN_EVENTS
    assert {"BecomeLeader", "TruncateEntries", "Replicate", "Commit", "PersistDone"} <= set(names(lines))
    assert {replica.commit for replica in reference.replicas.values()} == {9}


def bent(choose: Callable[[Event], bool], change: Callable[[Event], None]) -> list[str]:
    """The story with its last event that satisfies ``choose`` changed."""
    lines = story()
    for number in reversed(range(len(lines))):
        record = json.loads(lines[number])
        if choose(record["event"]):
            change(record["event"])
            lines[number] = json.dumps(record)
            return lines
    raise AssertionError("no such event in the story")


def without(choose: Callable[[Event], bool]) -> list[str]:
    """The story without the events that satisfy ``choose``."""
    return [line for line in story() if not choose(json.loads(line)["event"])]


def named(name: str, node: str | None = None) -> Callable[[Event], bool]:
    return lambda event: event["name"] == name and node in (None, event["nid"])


def state(**values: object) -> Callable[[Event], None]:
    return lambda event: event["state"].update(values)


def fields(**values: object) -> Callable[[Event], None]:
    return lambda event: event.update(values)


def message(**values: object) -> Callable[[Event], None]:
    return lambda event: event["msg"].update(values)


BENT: dict[str, Callable[[], list[str]]] = {
    "terms never fall": lambda: bent(named("SendAppendEntriesResponse", C), state(term=1)),
    "one vote": lambda: bent(named("SendRequestVoteResponse", C), lambda event: event["state"].update(vote=A)),
    "votes are on disk": lambda: without(named("PersistDone", C)),
    "one leader": lambda: bent(
        lambda event: named("Commit", C)(event) and event["state"]["term"] == 1, fields(name="BecomeLeader")
    ),
    "elected by majorities": lambda: without(named("ReceiveRequestVoteResponse")),
    "a leader only appends": lambda: bent(named("TruncateEntries"), fields(role="StateLeader")),
    "commits stay": lambda: bent(named("TruncateEntries"), fields(first=2)),
    "logs have no gaps": lambda: without(lambda event: event["name"] == "TruncateEntries"),
    "log matching": lambda: bent(
        lambda event: event.get("spans") == [[5, 5, 2]] and named("AppendEntries", C)(event),
        fields(spans=[[5, 5, 1], [6, 6, 2]]),
    ),
    "said when on disk": lambda: bent(named("SendAppendEntriesResponse", B), message(index=99)),
    "own terms only": lambda: bent(
        lambda event: event["name"] == "Commit" and event["role"] == "StateLeader" and event["state"]["term"] == 2,
        state(term=3),
    ),
    "held by majorities": lambda: without(lambda event: named("PersistDone", B)(event) and event["log"] >= 9),
    "leaders commit": lambda: bent(named("Commit", B), fields(role="StateFollower")),
    "the disk remembers": lambda: bent(named("InitState", C), fields(spans=[[1, 4, 1]])),
}


@pytest.mark.parametrize("rule", BENT)
def test_altered_trace_is_detected(rule: str) -> None:
    with pytest.raises(RuleBroken) as broken:
        check(BENT[rule]())
    assert broken.value.rule == rule


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8, 16])
def test_simulated_group_keeps_the_rules(seed: int, tmp_path: Path) -> None:
    """Faults of all kinds, membership changes and resets, told by the cores and judged by the paper."""
    path = tmp_path / "events.ndjson"
    assert main(["--seed", str(seed), "--seconds", "10", "--ndjson", str(path)]) == 0
    with path.open() as lines:
        reference = check(lines)
    assert reference.lines > 200
