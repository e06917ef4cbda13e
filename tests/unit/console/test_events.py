"""What happened in a broker group, from how it was at two times."""

from __future__ import annotations

from typing import Any

import pytest

from mq.console.events import EVENTS_MAX, Events
from mq.console.views.change_records import event_rows
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ReplicaStatus


def replica(node: str, role: str = "follower", **more: Any) -> ReplicaStatus:
    figures = more.pop("figures", {})
    return ReplicaStatus(node, f"{node}:10911", role, **{"term": 3, "member": "voter", "figures": figures, **more})


def group(*replicas: ReplicaStatus, leader: str | None = "n0") -> GroupStatus:
    return GroupStatus("C", "broker-a", None, leader, replicas)


def said(before: GroupStatus, after: GroupStatus) -> list[str]:
    events = Events()
    events.add([before], 1.0)
    events.add([after], 2.0)
    return [each.what for each in events.all()]


LEADER = replica("n0", "leader")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (group(LEADER), group(replica("n0", "leader")), []),
        (group(LEADER), group(replica("n0"), leader=None), ["has lost its leader n0"]),
        (group(replica("n1", "leader", term=4), leader=None), group(replica("n1", "leader", term=4), leader="n1"),
         ["is led by n1, in term 4"]),
        (group(LEADER, replica("n1")), group(LEADER, ReplicaStatus("n1", None, UNREACHABLE)),
         ["n1 no longer answers"]),
        (group(LEADER, ReplicaStatus("n1", None, UNREACHABLE)), group(LEADER, replica("n1")), ["n1 answers again"]),
        (group(LEADER), group(LEADER, replica("n1", member="learner")), ["n1 is a replica now"]),
        (group(LEADER, replica("n1", member="learner")), group(LEADER, replica("n1")),
         ["n1 is a voter, before a learner"]),
        (group(LEADER, replica("n1")), group(LEADER), ["n1 is no longer a replica"]),
        (group(LEADER), group(replica("n0", "leader", disk_used=0.95)), ["n0 has a disk that is 95% full"]),
        (group(LEADER), group(replica("n0", "leader", abstaining=True)),
         ["n0 has lost acknowledged entries, and does not vote"]),
        (group(replica("n0", "leader", figures={"bootTimestamp": "1"})),
         group(replica("n0", "leader", figures={"bootTimestamp": "2", "raftmq.clockJumps": "9"})),
         ["n0 was started again"]),
        (group(replica("n0", "leader", figures={"raftmq.queueBlocksRestored": "1"})),
         group(replica("n0", "leader", figures={"raftmq.queueBlocksRestored": "4"})),
         ["n0 restored 3 damaged blocks of its queues from its log"]),
    ],
)  # fmt: skip
def test_change_is_an_event(before: GroupStatus, after: GroupStatus, expected: list[str]) -> None:
    assert said(before, after) == expected


def test_initial_state_is_not_an_event() -> None:
    events = Events()
    events.add([group(LEADER)], 1.0)
    assert events.all() == []
    events.add([], 2.0)
    assert [each.what for each in events.all()] == ["is no longer registered at the name servers"]
    for number in range(2 * EVENTS_MAX):
        events.add([group(LEADER, leader=f"n{number}")], 3.0 + number)
    assert len(events.all()) == EVENTS_MAX


def test_event_has_the_time_of_its_look() -> None:
    events = Events()
    events.add([group(LEADER)], 0.0)
    events.add([], 90.0)
    [row] = event_rows(events.all(), 100.0, 1_800_000_000_000)
    assert row.at == "2027-01-15T07:59:50.000Z"
    assert row.state == "bad"
