"""What `raftmq status` makes of the brokers' answers."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from mq.cli.status import table_of
from mq.inspection.cluster import UNREACHABLE, BrokerAnswer, GroupStatus, group_statuses


def figures(
    node_id: str, role: str, *, term: int = 3, last: int = 100, position: int = 5000, **more: str
) -> dict[str, str]:
    return {
        "raftmq.nodeId": node_id,
        "raftmq.role": role,
        "raftmq.term": str(term),
        "raftmq.lastIndex": str(last),
        "raftmq.commitIndex": str(last),
        "raftmq.appliedIndex": str(last),
        "raftmq.commitPosition": str(position),
        "raftmq.durability": "quorum-fsync",
        **{f"raftmq.{name}": value for name, value in more.items()},
    }


def peers(**match: tuple[int, bool]) -> str:
    return json.dumps({name: {"matchIndex": index, "active": active} for name, (index, active) in match.items()})


def answer(broker_id: int, known: dict[str, str] | None, group: str = "broker-a") -> BrokerAnswer:
    return BrokerAnswer("DefaultCluster", group, broker_id, f"127.0.0.1:{10911 + broker_id}", known)


def test_lag_is_the_difference_to_the_leader() -> None:
    leader = figures("n1", "leader", peers=peers(n0=(90, True), n2=(100, True)))
    [group] = group_statuses(
        [answer(0, leader), answer(1, figures("n0", "follower", position=4000)), answer(3, figures("n2", "follower"))]
    )
    assert group.leader == "n1"
    assert [(r.node_id, r.lag_entries, r.lag_bytes) for r in group.replicas] == [
        ("n0", 10, 1000),
        ("n1", 0, 0),
        ("n2", 0, 0),
    ]


def test_registered_replica_that_does_not_answer_is_unreachable() -> None:
    leader = figures("n0", "leader", peers=peers(n1=(100, True)))
    [group] = group_statuses([answer(0, leader), answer(2, None)])
    assert [replica.role for replica in group.replicas if replica.address == "127.0.0.1:10913"] == [UNREACHABLE]


def test_replica_that_hangs_is_shown_once_with_its_node_id() -> None:
    """It used to be there twice: registered as "id 3" with an address, and as n2 from the leader's view."""
    leader = figures("n0", "leader", peers=peers(n1=(100, True), n2=(90, False)))
    [group] = group_statuses([answer(0, leader), answer(2, figures("n1", "follower")), answer(3, None)])
    assert [(each.node_id, each.role == UNREACHABLE) for each in group.replicas] == [
        ("n0", False),
        ("n1", False),
        ("n2", True),
    ]


def test_answering_replica_is_not_confused_with_a_dead_address() -> None:
    """An earlier address of n1 is still registered. Taken for n1, it hid that n1 is well."""
    leader = figures("n0", "leader", peers=peers(n1=(100, True)))
    [group] = group_statuses([answer(0, leader), answer(1, figures("n1", "follower")), answer(2, None)])
    assert [(each.node_id, each.role) for each in group.replicas] == [
        ("id 2", UNREACHABLE),
        ("n0", "leader"),
        ("n1", "follower"),
    ]


def test_unlisted_dead_replica_is_shown_from_the_view_of_the_leader() -> None:
    leader = figures("n1", "leader", peers=peers(n0=(60, False), n2=(100, True)))
    [group] = group_statuses([answer(0, leader), answer(3, figures("n2", "follower"))])
    [dead] = [replica for replica in group.replicas if replica.role == UNREACHABLE]
    assert (dead.node_id, dead.address, dead.lag_entries) == ("n0", None, 40)


def test_of_two_leaders_the_higher_term_leads() -> None:
    old = figures("n0", "leader", term=3, peers=peers())
    new = figures("n1", "leader", term=4, peers=peers())
    [group] = group_statuses([answer(0, old), answer(2, new)])
    assert group.leader == "n1"


def test_group_without_leader_has_no_lag() -> None:
    [group] = group_statuses([answer(1, figures("n0", "follower")), answer(2, figures("n1", "candidate"))])
    assert group.leader is None
    assert {replica.lag_entries for replica in group.replicas} == {None}
    assert "NO LEADER" in shown(group)


def test_unanswered_group_has_an_unknown_leader() -> None:
    refused = BrokerAnswer("c", "broker-a", 0, "h:1", None, "requests must be signed")
    [group] = group_statuses([refused])
    assert group.leader is None
    assert "leader unknown" in shown(group)
    assert "NO LEADER" not in shown(group)


def test_groups_are_distinguished() -> None:
    first = answer(0, figures("n0", "leader", peers=peers()), group="broker-a")
    second = answer(0, figures("n0", "leader", peers=peers()), group="broker-b")
    assert [group.group for group in group_statuses([second, first])] == ["broker-a", "broker-b"]


def test_rocketmq_broker_without_our_figures_is_shown() -> None:
    [group] = group_statuses([answer(0, {"brokerVersionDesc": "V4_9_8"})])
    assert group.leader is None
    assert group.replicas[0].role == "?"


def test_weaker_durability_is_reported_in_the_table() -> None:
    known = figures("n0", "leader", peers=peers()) | {"raftmq.durability": "quorum-memory"}
    [group] = group_statuses([answer(0, known)])
    assert "NOT yet on disk" in shown(group)


def shown(group: GroupStatus) -> str:
    output = io.StringIO()
    Console(width=200, file=output).print(table_of(group))
    return output.getvalue()


def test_status_shows_archive_position_and_lag_of_the_leader() -> None:
    leader = figures(
        "n0", "leader", peers=peers(), archiveIndex="1234", archiveLagBytes="2000000", archiveLagMs="90500"
    )
    [group] = group_statuses([answer(0, leader)])
    assert "archived up to entry 1,234; 2.0 MB wait, for 90 s" in str(table_of(group).caption)
    [group] = group_statuses([answer(0, figures("n0", "leader", peers=peers(), archiveIndex="0", archiveLagBytes="0"))])
    assert "archived" not in str(table_of(group).caption)


def test_learners_priorities_bases_and_disks_are_shown() -> None:
    members = json.dumps({"n0": "voter", "n1": "voter", "n7": "learner"})
    leader = figures("n0", "leader", peers=peers(), members=members, priority="5", diskUsed="0.421", baseIndex="0")
    learner = figures("n7", "follower", baseIndex="41", abstaining="true", diskUsed="0.93")
    [group] = group_statuses([answer(0, leader), answer(1, figures("n1", "follower")), answer(8, learner)])
    assert [(r.node_id, r.member, r.base_index) for r in group.replicas] == [
        ("n0", "voter", 0),
        ("n1", "voter", None),
        ("n7", "learner", 41),
    ]
    lines = shown(group).splitlines()
    assert any(line.startswith("n7") and "learner" in line and "93%" in line for line in lines)
    assert "n0 has priority 5" in shown(group)
    assert "n7 keeps entries from 42 on" in shown(group)
    assert "n7 abstains" in shown(group)
    assert "to the leader" not in shown(group)
    assert "n1 " not in "\n".join(line for line in lines if "priority" in line or "keeps" in line)
    assert "log allow-vote" not in shown(group), "it votes again by itself"


def test_broker_that_refuses_to_answer_is_not_just_unreachable() -> None:
    """It has accounts, and the command has no keys."""
    refused = BrokerAnswer("C", "broker-a", 2, "10.0.0.1:10911", None, "the request is not signed")
    [group] = group_statuses([refused])
    assert "10.0.0.1:10911 refuses to answer: the request is not signed" in shown(group)
    assert group.as_json()["replicas"][0]["refusal"] == "the request is not signed"  # type: ignore[index]


def test_commits_that_did_not_count_are_for_programs() -> None:
    leader = figures("n0", "leader", peers=peers(), fencedCommits="7")
    [group] = group_statuses([answer(0, leader), answer(1, figures("n1", "follower"))])
    shown = json.loads(json.dumps(group.as_json()))
    assert [replica["fenced_commits"] for replica in shown["replicas"]] == [7, None]


def test_requests_that_a_follower_hands_on_are_shown() -> None:
    sums: dict[str, Any] = {
        "forwardedSends": "1200",
        "forwardedOffsets": "30",
        "forwardedOthers": "4",
        "forwardedWaiting": "2",
    }
    quiet: dict[str, Any] = dict.fromkeys(sums, "0")
    [group] = group_statuses(
        [answer(1, figures("n0", "leader", **quiet)), answer(2, figures("n1", "follower", **sums))]
    )
    assert [(r.forwarded, r.forwarding) for r in group.replicas] == [(0, 0), (1234, 2)]
    assert "n1 forwarded 1,234 requests to the leader, 2 wait" in shown(group)
    assert "n0 handed" not in shown(group)


def test_status_shows_waiting_messages_of_the_leader() -> None:
    waiting: dict[str, Any] = {
        "delayedPending": "1200",
        "timersPending": "30",
        "transactionsOpen": "4",
        "popCheckpoints": "5",
    }
    leader = figures("n0", "leader", peers=peers(), **waiting)
    [group] = group_statuses([answer(0, leader), answer(1, figures("n1", "follower", **waiting))])
    text = "waiting at n0: 1,200 delayed, 30 timed, 4 transactions, 5 pops"
    assert text in shown(group)
    assert "waiting at n1" not in shown(group), "a follower knows the same, a little later"
    for_programs = json.loads(json.dumps(group.as_json()))["replicas"][1]
    assert [for_programs[name] for name in ("delayed", "timers", "transactions", "pops")] == [1200, 30, 4, 5]
    nothing: dict[str, Any] = dict.fromkeys(waiting, "0")
    leader = figures("n0", "leader", peers=peers(), **nothing | {"transactionsOpen": "1"})
    [group] = group_statuses([answer(0, leader)])
    assert "waiting at n0: 1 transactions " in shown(group)
    [group] = group_statuses([answer(0, figures("n0", "leader", peers=peers(), **nothing))])
    assert "waiting" not in shown(group)


def test_status_shows_large_client_memory() -> None:
    taken: dict[str, Any] = {
        "unfinishedBytes": "120000000",
        "unreadBytes": "999999",
        "heldBytes": "0",
        "pendingBytes": "2000000",
    }
    [group] = group_statuses([answer(0, figures("n0", "leader", peers=peers(), **taken, connections="7"))])
    text = "memory of clients at n0: 120.0 MB unfinished requests, 2.0 MB uncommitted messages"
    assert text in " ".join(shown(group).split())
    [replica] = json.loads(json.dumps(group.as_json()))["replicas"]
    names = ("unfinished_bytes", "unread_bytes", "held_bytes", "pending_bytes", "connections")
    assert [replica[name] for name in names] == [120_000_000, 999_999, 0, 2_000_000, 7]
    [group] = group_statuses([answer(0, figures("n0", "leader", peers=peers()))])
    assert "memory" not in shown(group)


def test_status_of_a_leaderless_abstaining_replica_names_the_remedy() -> None:
    [group] = group_statuses([answer(1, figures("n1", "follower", abstaining="true"))])
    assert group.leader is None
    assert "see raftmq log allow-vote --help" in shown(group)


def test_status_names_reachable_replicas_without_access_control() -> None:
    answers = [
        BrokerAnswer("C", "broker-a", 0, "10.0.0.1:10911", figures("n0", "leader", accessControl="off")),
        BrokerAnswer("C", "broker-a", 2, "10.0.0.2:10911", figures("n1", "follower", accessControl="on")),
        BrokerAnswer("C", "broker-a", 3, "127.0.0.1:10911", figures("n2", "follower", accessControl="off")),
    ]
    (group,) = group_statuses(answers)
    text = shown(group)
    assert "clients are not authenticated by n0: see acl_file" in text
