"""What `raftmq group upgrade-check` makes of the replicas' answers: which member can be stopped now, and why not."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mq.cli import upgrade_check
from mq.cli.group import app
from mq.cli.upgrade_verdict import UpgradeReport, upgrade_report
from mq.inspection.cluster import BrokerAnswer, GroupStatus, group_statuses

NEW: dict[str, Any] = {
    "softwareVersion": "0.2.0",
    "replicationVersions": "3-4",
    "formatLevelNewest": "2",
    "formatLevelMax": "2",
}
OLD: dict[str, Any] = {}
"""Of a replica from before replicas told what they run."""
VOTERS = {"n0": "voter", "n1": "voter", "n2": "voter"}


def figures(node: str, role: str = "follower", *, applied: int = 1000, level: int = 1, **more: str) -> dict[str, str]:
    known = {
        "nodeId": node,
        "role": role,
        "term": "3",
        "lastIndex": "1000",
        "commitIndex": "1000",
        "appliedIndex": str(applied),
        "commitPosition": "5000",
        **more,
    }
    if "softwareVersion" in more:
        known["formatLevel"] = str(level)
    return {f"raftmq.{name}": value for name, value in known.items()}


def group_of(
    *answers: dict[str, str] | None, members: dict[str, str] | None = None, match: dict[str, int] | None = None
) -> GroupStatus:
    """A group from its replicas' figures; None for one that is registered and does not answer."""
    members = VOTERS if members is None else members
    found = []
    for number, each in enumerate(answers):
        if each is not None and each["raftmq.role"] == "leader":
            peers: dict[str, Any] = {
                node: {"matchIndex": (match or {}).get(node, 1000), "active": True}
                for node in members
                if node != each["raftmq.nodeId"]
            }
            each = each | {"raftmq.members": json.dumps(members), "raftmq.peers": json.dumps(peers)}
        found.append(BrokerAnswer("C", "broker-a", number, f"10.0.0.{number}:10911", each))
    [group] = group_statuses(found)
    return group


def report_of(*answers: dict[str, str] | None, **more: Any) -> UpgradeReport:
    return upgrade_report(group_of(*answers, **more))


def keep_reasons(report: UpgradeReport) -> dict[str, str]:
    return {member.node_id: member.keep_reason for member in report.members}


def test_healthy_group_is_upgraded_followers_first_and_the_leader_last() -> None:
    order = []
    software = {"n0": OLD, "n1": OLD, "n2": OLD}
    for _ in range(3):
        replicas = [figures(node, "leader" if node == "n0" else "follower", **each) for node, each in software.items()]
        report = report_of(*replicas)
        assert report.safe
        assert report.next is not None
        order.append(report.next)
        software[report.next] = NEW
    assert order == ["n1", "n2", "n0"]


def test_upgrade_check_reports_versions_of_members() -> None:
    report = report_of(figures("n0", "leader", **NEW, level=2), figures("n1", **NEW, level=2), figures("n2", **OLD))
    by_node = {member.node_id: member for member in report.members}
    assert (by_node["n0"].software, by_node["n0"].replication_oldest, by_node["n0"].replication_newest) == (
        "0.2.0",
        3,
        4,
    )
    assert (by_node["n2"].software, by_node["n2"].level_newest, by_node["n2"].format_level) == ("earlier", 1, 1)
    assert (report.format_level, report.level_available, report.held_back_by) == (2, 1, ("n2",))


def test_features_are_named_by_level() -> None:
    report = report_of(*(figures(node, "leader" if node == "n0" else "follower", **NEW) for node in VOTERS))
    assert (report.features_on, report.features_available) == ((), ("topic-identities", "users", "bound-proofs"))
    assert (
        "level 2 (topic-identities, users, bound-proofs): the leader raises it" in upgrade_check.conclusions(report)[0]
    )
    report = report_of(*(figures(node, "leader" if node == "n0" else "follower", **NEW, level=2) for node in VOTERS))
    assert (report.features_on, report.features_available) == (("topic-identities", "users", "bound-proofs"), ())
    assert upgrade_check.conclusions(report)[0] == "Features that are on: topic-identities, users, bound-proofs."


def test_setting_that_holds_the_level_back_is_reported() -> None:
    held = NEW | {"formatLevelMax": "1"}
    report = report_of(figures("n0", "leader", **NEW), figures("n1", **held), figures("n2", **NEW))
    assert report.held_back_by == ("n1",)
    assert upgrade_check.conclusions(report)[0] == "The format level does not rise further because of n1."


def test_member_is_restarted_before_the_next_member_is_stopped() -> None:
    report = report_of(figures("n0", "leader", **NEW), figures("n1", **NEW))
    assert (report.safe, report.next) == (False, "n2")
    assert report.reason.startswith("n2 does not answer; start it")
    assert keep_reasons(report)["n2"] == ""
    words = "n2 does not answer: without n0, only 1 healthy voters are left, and a majority is 2"
    assert keep_reasons(report)["n0"] == words


@pytest.mark.parametrize(
    ("third", "match", "words"),
    [
        (figures("n2", **NEW), {"n2": 400}, "n2 lacks 600 entries"),
        (figures("n2", applied=100, **NEW), {}, "n2 has not applied 900 entries"),
        (figures("n2", abstaining="true", **NEW), {}, "n2 does not vote until it has caught up"),
    ],
)
def test_upgrade_check_waits_for_a_member_that_just_returned(
    third: dict[str, str], match: dict[str, int], words: str
) -> None:
    report = report_of(figures("n0", "leader", **NEW), figures("n1", **NEW), third, match=match)
    assert words in keep_reasons(report)["n1"]
    assert words in keep_reasons(report)["n0"]


def test_no_member_can_be_stopped_without_a_leader() -> None:
    report = report_of(figures("n0", **NEW), figures("n1", **NEW))
    assert (report.safe, report.next, report.reason) == (False, None, "the group has no leader")


def test_no_member_can_be_stopped_while_voters_change() -> None:
    members = VOTERS | {"n2": "outgoing", "n3": "incoming"}
    report = report_of(
        figures("n0", "leader", **NEW), *(figures(node, **NEW) for node in ("n1", "n2", "n3")), members=members
    )
    assert (report.safe, report.reason) == (False, "the voters of the group are being changed")


@pytest.mark.parametrize("voters", [1, 2])
def test_upgrade_check_reports_that_a_small_group_stops_accepting_writes(voters: int) -> None:
    members = {f"n{number}": "voter" for number in range(voters)}
    replicas = [figures(node, "leader" if node == "n0" else "follower", **NEW) for node in members]
    report = report_of(*replicas, members=members)
    assert not report.safe
    assert report.reason == f"the group has {voters} voters: it accepts no writes while one of them is stopped"


def test_learner_can_always_be_stopped() -> None:
    members = VOTERS | {"n3": "learner"}
    report = report_of(
        figures("n0", "leader", **NEW), figures("n1", **NEW), figures("n3", **NEW), members=members, match={"n1": 1}
    )
    assert keep_reasons(report)["n3"] == ""


def test_five_voters_survive_the_loss_of_one() -> None:
    members = {f"n{number}": "voter" for number in range(5)}
    replicas = [figures(node, "leader" if node == "n0" else "follower", **NEW) for node in list(members)[:4]]
    report = report_of(*replicas, members=members)
    assert not any(keep_reasons(report).values())


# -- the command -------------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, groups: list[GroupStatus], *arguments: str) -> tuple[int, str]:
    async def asked(namesrv: str) -> list[GroupStatus]:
        return groups

    monkeypatch.setattr(upgrade_check, "ask_cluster", asked)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["upgrade-check", *arguments])
    return result.exit_code, result.output


def test_upgrade_check_exits_with_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = group_of(figures("n0", "leader", **NEW), figures("n1", **OLD), figures("n2", **NEW))
    code, text = run(monkeypatch, [healthy])
    assert code == 0
    assert "n1 can be stopped and replaced now." in text
    assert "The format level does not rise further because of n1." in text
    code, text = run(monkeypatch, [group_of(figures("n0"), figures("n1"))])
    assert code == 1
    assert "Do not stop a member now: the group has no leader." in text


def test_command_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(figures("n0", "leader", **NEW), figures("n1", **NEW), None)
    code, text = run(monkeypatch, [group], "--json")
    report = json.loads(text)
    assert code == 1
    assert (report["safe"], report["next"], report["leader"]) == (False, "n2", "n0")
    assert report["members"][2]["software"] is None
    assert report["members"][0]["level_newest"] == 2


def test_table_shows_every_member() -> None:
    out = io.StringIO()
    report = report_of(figures("n0", "leader", **NEW), figures("n1", **OLD), figures("n2", **NEW))
    Console(file=out, width=200).print(upgrade_check.table_of(report))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["n1", "follower", "earlier", "3", "up", "to", "1", "0", "healthy"] in rows
    assert ["n0", "leader", "0.2.0", "3", "to", "4", "up", "to", "2", "0", "healthy"] in rows
