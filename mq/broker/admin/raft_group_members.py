"""Request code 9001: operators show and change the members of a Raft group.

A change is answered when it is complete: committed, and for a change of voters both steps committed. If this replica
can no longer learn the outcome, it answers that the outcome is unknown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.requests.raft_group import GroupAnswer, GroupCommand, GroupView, ManageGroup, MemberRole, MemberView
from raftlog import (
    CauseKind,
    ConfChange,
    ConfChangeKind,
    ConfState,
    NodeId,
    Refusal,
    Role,
    RoleChange,
    parse_address,
    why_invalid,
)
from raftlog.log_numbers import NO_INDEX, LogIndex

CHANGE_SECONDS_MAX = 30.0
"""After this time, an uncommitted change is answered as one of unknown outcome; the change itself continues."""

_NODE_ID = re.compile(r"[a-z][0-9]{1,8}")

_KINDS = {
    "add": ConfChangeKind.ADD_LEARNER,
    "promote": ConfChangeKind.PROMOTE,
    "remove": ConfChangeKind.REMOVE,
    "replace": ConfChangeKind.REPLACE,
}


_EXPIRE_SECONDS = 0.1


class _MembershipCall(NamedTuple):
    """A request that waits for the change that begins with entry ``first_index``; 0 for a leadership transfer."""

    first_index: LogIndex
    since: float
    text: str
    respond: Callable[[bool, str, str], None]


class RaftMembers(Service):
    """Shows and changes the members of the Raft group for operators."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._replica = context.replica
        self._disk_used = context.disk_used
        self._connect_failure = context.environment.connect_failure
        self._clock = context.clock
        self._log = context.log
        self._calls: list[_MembershipCall] = []

    def routes(self) -> Iterator[Route]:
        yield Route(ManageGroup, self.handle)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.expire, lambda: now_if(self._calls))

    def handle(self, call: Call[ManageGroup]) -> bytes | None:
        """Request code 9001: show or change the members of the Raft group. Raises RequestRefused."""
        if not self.is_allowed(call.connection.peer):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"group commands are not accepted from {call.connection.peer}, see the setting admin_networks",
            )
        try:
            command = GroupCommand.decode(call.body)
        except BodyError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error

        def respond(done: bool, code: str, text: str) -> bytes:
            if command.action != "status":
                self._log.info("group_command", command=command.action, node_id=command.node, code=code, outcome=text)
            body = GroupAnswer(done=done, code=code, text=text, view=self.view())
            return call.response(body=body.encode())

        def respond_later(done: bool, code: str, text: str) -> None:
            call.connection.send(respond(done, code, text))

        if command.action == "status":
            return respond(True, "", "")
        outcome = self._transfer(command) if command.action == "transfer" else self._change(command)
        if isinstance(outcome, _MembershipCall):
            assert outcome.first_index <= self._replica.core.last_index, (
                f"a change waits for entry {outcome.first_index}, {self._replica.core.last_index} is the last"
            )
            self._calls.append(outcome._replace(respond=respond_later))
            return None
        return respond(*outcome)

    # -- commands ----------------------------------------------------------------------------------------------------

    def _change(self, command: GroupCommand) -> _MembershipCall | tuple[bool, str, str]:
        change = ConfChange(
            _KINDS[command.action],
            NodeId(command.node),
            address=command.address,
            replaced=NodeId(command.replaced) if command.replaced else None,
        )
        if _NODE_ID.fullmatch(change.node) is None:
            text = f"{change.node[:40]!r} is not a node id: a letter and a number of up to 8 digits"
            return False, Refusal.INVALID_CHANGE.name, text
        if change.kind is ConfChangeKind.ADD_LEARNER:
            try:
                parse_address(change.address)
            except ValueError as error:
                return False, Refusal.INVALID_CHANGE.name, str(error)
        index = self._replica.change(change)
        if isinstance(index, Refusal):
            return False, index.name, self._refusal_text(index, change)
        assert index > NO_INDEX, f"entry {index} changes the members, as if it were a transfer"
        replies = {
            ConfChangeKind.ADD_LEARNER: f"{change.node} at {change.address} is a learner now",
            ConfChangeKind.PROMOTE: f"{change.node} is a voter now",
            ConfChangeKind.REMOVE: f"{change.node} is no longer a member",
            ConfChangeKind.REPLACE: f"{change.node} is a voter now, in place of {change.replaced}",
        }[change.kind]
        return _MembershipCall(index, self._clock(), replies, _no_reply)

    def _transfer(self, command: GroupCommand) -> _MembershipCall | tuple[bool, str, str]:
        to = NodeId(command.node) if command.node else None
        status = self._replica.core.status()
        if to == status.node_id and status.role is Role.LEADER:
            return True, "", f"{to} leads already"
        refusal = self._replica.transfer(to)
        if refusal is not None:
            return (
                False,
                refusal.name,
                self._refusal_text(refusal, None if to is None else ConfChange(_KINDS["promote"], to)),
            )
        return _MembershipCall(NO_INDEX, self._clock(), "", _no_reply)

    def _refusal_text(self, refusal: Refusal, change: ConfChange | None) -> str:
        """Return the reason for a refusal as text with its figures."""
        status = self._replica.core.status()
        if refusal is Refusal.NOT_LEADER:
            leader = f"{status.leader_id} does" if status.leader_id else "it knows no leader"
            return f"{status.node_id} does not lead the group; {leader}"
        if refusal is Refusal.NOT_READY:
            return f"{status.node_id} has just become the leader; try again"
        if refusal is Refusal.INVALID_CHANGE and change is not None:
            return why_invalid(status.conf, change) or f"{refusal.value}: the configuration would be too large"
        if refusal is Refusal.UNKNOWN_NODE and change is not None:
            return f"{change.node} is not a voter; voters are {', '.join(status.conf.voters)}"
        if refusal is Refusal.NOT_CAUGHT_UP:
            peers = [peer for peer in status.peers if change is None or peer.peer == change.node]
            facts = [
                f"{peer.peer} {'lacks' if peer.active else 'is silent and lacks'} "
                f"{max(0, status.last.index - peer.match):,} of {status.last.index:,} entries"
                + ("" if peer.disk_ok else ", and its disk is full")
                for peer in peers
            ]
            return "; ".join(facts) or f"{status.node_id} has no peer"
        return str(refusal.value)

    # -- events from the log -------------------------------------------------------------------------------------------

    def members_changed(self, index: LogIndex, conf: ConfState, connections: Iterable[ClientConnection]) -> None:
        """Answer the requests that wait for this committed configuration, unless it is the first of two steps."""
        assert index > NO_INDEX, f"entry {index} has the members {sorted(conf.members)}"
        if not conf.is_joint:
            self._answer(lambda call: 0 < call.first_index <= index, True, "", None)

    def role_changed(self, change: RoleChange) -> None:
        """Answer waiting requests if another replica leads, or leadership was lost before a change was committed."""
        if change.role is Role.LEADER or not self._calls:
            return
        if change.cause is None or change.cause.kind is not CauseKind.NOT_A_VOTER:
            text = "leadership was lost before the change was committed; it may or may not happen"
            self._answer(lambda call: call.first_index > 0, False, "OUTCOME_UNKNOWN", text)
        # Otherwise this replica stops leading because the change is committed; `configured` runs next and answers.
        if change.leader_id is not None and change.leader_id != self._replica.core.node_id:
            took = max((self._clock() - call.since for call in self._calls), default=0.0)
            text = f"{change.leader_id} leads in term {change.term}, after {took * 1000:.0f} ms"
            self._answer(lambda call: call.first_index == 0, True, "", text)

    def expire(self) -> None:
        """Answer requests whose change or transfer timed out. A timer calls this."""
        if not self._calls:
            return
        now = self._clock()
        core = self._replica.core
        if core.role is Role.LEADER and not core.transferring:
            text = f"the other node did not take over in time; {core.node_id} is still the leader"
            self._answer(lambda call: call.first_index == 0, False, "TRANSFER_FAILED", text)
        text = f"not finished after {CHANGE_SECONDS_MAX:g} s; it is still under way"
        self._answer(lambda call: now - call.since > CHANGE_SECONDS_MAX, False, "OUTCOME_UNKNOWN", text)

    def _answer(self, matches: Callable[[_MembershipCall], bool], done: bool, code: str, text: str | None) -> None:
        calls = [call for call in self._calls if matches(call)]
        self._calls = [call for call in self._calls if not matches(call)]
        for call in calls:
            call.respond(done, code, call.text if text is None else text)

    # -- showing the group ---------------------------------------------------------------------------------------------

    def view(self) -> GroupView:
        """Describe the group as this replica sees it."""
        status = self._replica.core.status()
        peers = {peer.peer: peer for peer in status.peers}
        base, commit, last = status.base.index, status.commit, status.last.index
        assert base <= commit <= last, f"entry {commit} is committed, of a log from {base} to {last}"
        addresses = dict(status.conf.addresses)
        members = []
        for name, role in member_roles(status.conf).items():
            node = NodeId(name)
            member = MemberView(node_id=node, role=role, address=addresses.get(node, ""))
            if node == status.node_id:
                member.active, member.state, member.priority = True, status.role.value, self._settings.priority
                member.match_index, member.lag_entries = status.last.index, 0
            elif (peer := peers.get(node)) is not None and status.role is Role.LEADER:
                member.active, member.state, member.disk_ok = peer.active, peer.state.value, peer.disk_ok
                member.match_index, member.priority = peer.match, peer.priority or 0
                member.lag_entries = max(0, status.last.index - peer.match)
            if node != status.node_id:
                member.reason = self._connect_failure(node)
            members.append(member)
        assert len(members) == len(status.conf.members), f"{len(members)} of {sorted(status.conf.members)} are shown"
        return GroupView(
            node_id=status.node_id,
            cluster=self._settings.cluster,
            group=self._settings.group,
            role=status.role.value,
            term=status.term,
            leader=status.leader_id or "",
            base_index=status.base.index,
            last_index=status.last.index,
            commit_index=status.commit,
            abstaining=status.abstaining,
            disk_used=round(self._disk_used(), 4),
            members=members,
        )

    def is_allowed(self, peer: str) -> bool:
        """Return whether the client at ``peer``, an address with port, may change the group."""
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback or any(address in network for network in self._settings.admin_network_list)


def _no_reply(done: bool, code: str, text: str) -> None:
    raise AssertionError("the answer has no receiver yet")


def member_roles(conf: ConfState) -> dict[str, MemberRole]:
    """Map each member of a configuration to its role."""
    return {node: _role(conf, node) for node in sorted(conf.members)}


def _role(conf: ConfState, node: NodeId) -> MemberRole:
    if node in conf.learners:
        return "learner"
    if conf.is_joint and node not in conf.outgoing:
        return "incoming"
    if node in conf.voters:
        return "voter"
    assert node in conf.outgoing, f"{node} has no role among {sorted(conf.members)}"
    return "outgoing"
