"""Sends membership commands to a broker group: any member names the leader, and the leader executes them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.protocol.requests.raft_group import GroupAction, GroupAnswer, GroupCommand, MemberView

LEADER_SECONDS_MAX = 10.0
CHANGE_SECONDS_MAX = 35.0
"""A broker answers within 30 s, if only that the outcome is unknown."""
HEARTBEATS_SECONDS_MAX = 2.0
"""Some heartbeats: before a new member has answered one, its leader does not let it take over."""
POLL_SECONDS = 0.1
PROGRESS_SECONDS = 1.0

NEAR_ENTRIES = 256


class GroupNotReached(ClientError):
    """The broker group does not exist, or its leader does not answer. Nothing was changed."""


class GroupSession:
    """A session with a broker group. Calls ``on_progress`` with a text that says what it waits for.

    Args:
        group: the name of the broker group; None if there is only one.

    All methods raise ClientError, and ValueError if no group is named and there are several.
    """

    def __init__(self, admin: Admin, group: str | None, on_progress: Callable[[str], None]) -> None:
        self._admin = admin
        self._group = group
        self._on_progress = on_progress

    async def status(self) -> GroupAnswer:
        """Return the group as its leader sees it; without a leader, as some member does, with ``done`` False."""
        answers = await self._ask_members()
        leader = max((a for a in answers.values() if a.view.role == "leader"), key=lambda a: a.view.term, default=None)
        if leader is not None:
            return leader
        if not answers:
            raise GroupNotReached(f"no member of group {self._group} answers")
        # A replica that waits to be added knows nothing about the group.
        answer = max(answers.values(), key=lambda a: (a.view.term, a.view.last_index))
        return GroupAnswer(done=False, code="NO_LEADER", text="the group has no leader", view=answer.view)

    async def change(
        self, action: GroupAction, node: str = "", *, address: str = "", replaced_node: str = ""
    ) -> GroupAnswer:
        """Send a command to the leader. Tries again at a new leader, and for a moment if a member with the whole log is
        to lead but has not answered a heartbeat yet.
        """
        command = GroupCommand(action=action, node=node, address=address, replaced=replaced_node)
        begin = trio.current_time()
        until = begin + LEADER_SECONDS_MAX
        while True:
            response = await self._admin.manage_group(await self._leader(until), command, timeout=CHANGE_SECONDS_MAX)
            is_new = action == "transfer" and response.code == "NOT_CAUGHT_UP" and _is_fit(response.view.member(node))
            is_retried = is_new or response.code in ("NOT_LEADER", "NOT_READY")
            if not is_retried or trio.current_time() > (begin + HEARTBEATS_SECONDS_MAX if is_new else until):
                return response
            await trio.sleep(POLL_SECONDS)

    async def add(self, node: str, address: str, *, voter: bool, patience: float) -> GroupAnswer:
        """Add a learner. With ``voter``, wait up to ``patience`` seconds until it has caught up, and promote it."""
        member = (await self.status()).view.member(node)
        if voter and _is_learner_at(member, address):
            self._on_progress(f"{node} is a learner already")
        else:
            answer = await self.change("add", node, address=address)
            if not answer.done or not voter:
                return answer
            self._on_progress(answer.text)
        return await self._once_caught_up("promote", node, patience)

    async def remove(self, node: str) -> GroupAnswer:
        """Remove a member. A leader transfers leadership first, which avoids an election."""
        await self._hand_over(node)
        return await self.change("remove", node)

    async def replace(self, old: str, node: str, address: str, *, patience: float) -> GroupAnswer:
        """Add a learner if necessary, wait until it has caught up, and exchange it for ``old``."""
        answer = await self.status()
        if not answer.done:
            return answer
        view = answer.view
        member, leaves = view.member(node), view.member(old)
        if leaves is None or leaves.role == "learner":
            return GroupAnswer(
                done=False, code="UNKNOWN_NODE", text=f"{old} is not a voter of group {view.group}", view=view
            )
        if not _is_learner_at(member, address):
            answer = await self.change("add", node, address=address)
            if not answer.done:
                return answer
            self._on_progress(answer.text)
        return await self._once_caught_up("replace", node, patience, replaced_node=old)

    async def _hand_over(self, leaver: str) -> None:
        """Transfer leadership to another voter if ``leaver`` leads; if no voter takes over, an election follows."""
        answer = await self.status()
        if answer.done and answer.view.leader == leaver:
            answer = await self.change("transfer")
            self._on_progress(answer.text if answer.done else f"{leaver} cannot transfer leadership: {answer.text}")

    async def _once_caught_up(
        self, action: GroupAction, node: str, patience: float, *, replaced_node: str = ""
    ) -> GroupAnswer:
        until = trio.current_time() + patience
        reported_at = -PROGRESS_SECONDS
        while True:
            answer = await self.status()
            member = answer.view.member(node)
            if answer.done and member is None:
                return GroupAnswer(done=False, code="UNKNOWN_NODE", text=f"{node} was removed", view=answer.view)
            if _is_near(member):
                if replaced_node:
                    await self._hand_over(replaced_node)
                answer = await self.change(action, node, replaced_node=replaced_node)
                if answer.code != "NOT_CAUGHT_UP":
                    return answer
            now = trio.current_time()
            if member is not None and now - reported_at >= PROGRESS_SECONDS:
                reported_at = now
                self._on_progress(_progress(member, answer.view.last_index))
            if now > until:
                text = f"{node} has not caught up within {patience:g} s; it stays a learner"
                return GroupAnswer(done=False, code="NOT_CAUGHT_UP", text=text, view=answer.view)
            await trio.sleep(POLL_SECONDS)

    async def _leader(self, until: float) -> str:
        while True:
            answers = await self._ask_members()
            leaders = [(a.view.term, address) for address, a in answers.items() if a.view.role == "leader"]
            if leaders:
                return max(leaders)[1]
            if trio.current_time() > until:
                raise GroupNotReached(f"group {self._group} has no reachable leader")
            await trio.sleep(POLL_SECONDS)

    async def _ask_members(self) -> dict[str, GroupAnswer]:
        """Ask each registered replica for its view; returns the answers by address."""
        info = await self._admin.cluster_info()
        if self._group is None:
            if len(info.brokers) > 1:
                raise ValueError(f"there are several groups, choose one with --group {'|'.join(sorted(info.brokers))}")
            self._group = next(iter(info.brokers), None)
        data = info.brokers.get(self._group or "")
        if data is None:
            group_text = f"group {self._group}" if self._group else "broker group"
            raise GroupNotReached(f"no {group_text} is registered at the name server")
        answers: dict[str, GroupAnswer] = {}
        refusals: list[ClientError] = []

        async def ask(address: str) -> None:
            try:
                answers[address] = await self._admin.manage_group(address, GroupCommand(action="status"))
            except ClientError as error:
                refusals.append(error)  # only matters if no other replica answers

        async with trio.open_nursery() as nursery:
            for address in data.broker_addrs.values():
                nursery.start_soon(ask, address)
        if refusals and not answers:
            raise refusals[0]
        return answers


def _is_near(member: MemberView | None) -> bool:
    """Whether a member gets the rest of the log within a moment."""
    return member is not None and member.state == "replicate" and 0 <= member.lag_entries <= NEAR_ENTRIES


def _is_fit(member: MemberView | None) -> bool:
    """Whether nothing that is known of a member keeps it from leading soon."""
    return member is not None and member.disk_ok and _is_near(member)


def _is_learner_at(member: MemberView | None, address: str) -> bool:
    return member is not None and member.role == "learner" and member.address == address


def _progress(member: MemberView, last_index: int) -> str:
    if not member.active or member.match_index < 0:
        return f"waiting for {member.node_id} to be started"
    if member.state == "reset":
        return f"{member.node_id} fetches whole segments, {member.lag_entries:,} entries to go"
    return f"{member.node_id} has {member.match_index:,} of {last_index:,} entries"
