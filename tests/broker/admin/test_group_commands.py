"""Operators' commands at a broker that leads alone: what is done is said so, what is not is said with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.raft_group import GroupAction, GroupAnswer, GroupCommand
from tests.support.running_broker import Client, broker_client, running


async def command(client: Client, action: GroupAction, node: str = "", address: str = "", old: str = "") -> GroupAnswer:
    body = GroupCommand(action=action, node=node, address=address, replaced=old).encode()
    answer = await client.request(RequestCode.MANAGE_GROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer
    return GroupAnswer.decode(answer.body)


async def test_leader_reports_role_and_lag_of_each_member(tmp_path: Path) -> None:
    async with running(tmp_path, priority=3) as broker:
        view = (await command(await broker.connect(), "status")).view
        assert (view.node_id, view.role, view.leader, view.group) == ("n0", "leader", "n0", "broker-a")
        assert (view.base_index, view.abstaining) == (0, False)
        assert view.last_index == view.commit_index >= 2
        assert 0 < view.disk_used < 1
        [member] = view.members
        assert (member.node_id, member.role, member.active, member.lag_entries, member.priority) == (
            "n0",
            "voter",
            True,
            0,
            3,
        )


async def test_learner_is_added_and_removed_while_messages_are_stored(client: Client) -> None:
    added = await command(client, "add", "n7", "127.0.0.1:1")
    assert (added.done, added.code, added.text) == (True, "", "n7 at 127.0.0.1:1 is a learner now")
    learner = added.view.member("n7")
    assert learner is not None
    assert (learner.role, learner.address, learner.match_index) == ("learner", "127.0.0.1:1", 0)
    assert (await client.send()).code == 0
    early = await command(client, "promote", "n7")
    assert (early.done, early.code) == (False, "NOT_CAUGHT_UP")
    assert re.search(r"^n7 .*lacks \d+ of \d+ entries$", early.text)
    assert (await command(client, "transfer", "n7")).code == "UNKNOWN_NODE"
    removed = await command(client, "remove", "n7")
    assert (removed.done, removed.text) == (True, "n7 is no longer a member")
    assert [member.node_id for member in removed.view.members] == ["n0"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("add", "n0", "h:1"), "n0 is a member already"),
        (("add", "seven", "h:1"), "'seven' is not a node id"),
        (("add", "n" + 9 * "1", "h:1"), "'n111111111' is not a node id"),
        (("add", "n1", "h"), "'h' is not HOST:PORT"),
        (("add", "n1", "10.0.0..5:1"), "no host can have this name"),
        (("add", "n1", "h\0:1"), "no host can have this name"),
        (("add", "n1", "x" * 64 + ":1"), "no host can have this name"),
        (("add", "n1", ".".join(40 * ["name-of-a-part-of-a-host-name"]) + ":1"), "would be too large"),
        (("promote", "n0"), "n0 is not a learner"),
        (("remove", "n5"), "n5 is not a member"),
        (("remove", "n0"), "n0 is the only voter"),
        (("replace", "n1", "", "n0"), "n1 is not a learner"),
    ],
)
async def test_invalid_group_change_is_refused_with_a_reason(
    tmp_path: Path, given: tuple[GroupAction, str], words: str
) -> None:
    async with running(tmp_path) as broker:
        answer = await command(await broker.connect(), *given)
        assert (answer.done, answer.code) == (False, "INVALID_CHANGE")
        assert words in answer.text


async def test_learners_are_bounded(client: Client) -> None:
    """All members stand in the notes of the log, which are small; a configuration that does not fit ends all nodes."""
    for number in range(1, 16):
        assert (await command(client, "add", f"n{number}", f"127.0.0.1:{number}")).done
    answer = await command(client, "add", "n16", "127.0.0.1:16")
    assert (answer.done, answer.code) == (False, "INVALID_CHANGE")
    assert len(answer.view.members) == 16


async def test_transfer_without_a_suitable_peer_is_refused(client: Client) -> None:
    assert (await command(client, "transfer", "n0")).text == "n0 leads already"
    alone = await command(client, "transfer")
    assert (alone.done, alone.code, alone.text) == (False, "NOT_CAUGHT_UP", "n0 has no peer")


async def test_unreadable_command_is_refused(client: Client) -> None:
    for body in (b"", b"{", b'{"action":"explode"}'):
        assert (await client.request(RequestCode.MANAGE_GROUP, body=body)).code == ResponseCode.INVALID_PARAMETER
    assert await client.alive()


@pytest.mark.parametrize(
    ("networks", "allowed"), [("", False), ("192.0.2.0/24", False), ("192.0.2.0/24,10.0.0.0/8", True)]
)
async def test_strangers_may_not_change_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, networks: str, allowed: bool
) -> None:
    from mq.broker.admin.raft_group_members import RaftMembers

    real = RaftMembers.is_allowed
    monkeypatch.setattr(RaftMembers, "is_allowed", lambda self, peer: real(self, "10.1.2.3:4000"))
    async with broker_client(tmp_path, admin_networks=networks) as client:
        answer = await client.request(RequestCode.MANAGE_GROUP, body=GroupCommand(action="status").encode())
        assert answer.code == (ResponseCode.SUCCESS if allowed else ResponseCode.NO_PERMISSION)
        assert allowed or "admin_networks" in (answer.remark or "")
