"""Describes what a change of a broker group's members would do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq.protocol.requests.raft_group import GroupAction, GroupView, MemberView


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the members. ``confirmation`` is the text that the operator has to type; empty for none."""

    action: GroupAction
    node: str
    address: str
    replaced: str

    @property
    def title(self) -> str:
        """The change as a heading."""
        match self.action:
            case "add":
                return f"Add {self.node} at {self.address}"
            case "replace":
                return f"Replace {self.replaced} by {self.node} at {self.address}"
            case _:
                return f"{self.action.capitalize()} {self.node}"

    @property
    def confirmation(self) -> str:
        """The id of the leaving member, which the operator types to confirm."""
        return {"remove": self.node, "replace": self.replaced}.get(self.action, "")


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member, as the leader knows it."""

    node: str
    address: str
    role: str
    state: str
    lag: str
    note: str


def member_rows(view: GroupView) -> list[MemberRow]:
    """Return a row for each member, as the leader knows it."""
    return [
        MemberRow(
            node=each.node_id,
            address=each.address or "-",
            role="leader" if each.node_id == view.leader else each.role,
            state=("connected, " if each.active else "NOT CONNECTED, ") + (each.state or "-"),
            lag=f"{each.lag_entries:,}" if each.lag_entries >= 0 else "-",
            note=", ".join(filter(None, (each.reason, "" if each.disk_ok else "its disk is slow or full"))),
        )
        for each in view.members
    ]


def consequences(change: Change, view: GroupView) -> list[str]:
    """Describe what the change does to the group, in sentences. Brokers give their own warnings when it is made."""
    voters = [each for each in view.members if each.role == "voter"]
    texts = []
    after = list(voters)
    match change.action:
        case "add":
            texts.append(f"{change.node} receives the log, and does not vote until it is promoted.")
            texts.append("Start it with raftmq broker --join; it may be started before or after.")
        case "promote":
            after.append(MemberView(change.node, "voter"))
            texts.append(f"{change.node} votes and counts for majorities from then on; it has to have caught up.")
        case "remove":
            after = [each for each in voters if each.node_id != change.node]
            texts.append(f"{change.node} gets no more messages. Stop it afterwards; it cannot come back with its data.")
        case "replace":
            texts.append(
                f"{change.node} is added, receives the log, and takes the place of {change.replaced} in one step when "
                "it has caught up. That may take long; it goes on when you leave the page."
            )
            texts.append(f"Stop {change.replaced} afterwards; it cannot come back with its data.")
        case _:
            pass
    if (leaver := change.confirmation) and leaver == view.leader:
        texts.append(f"{leaver} leads now: it hands over first.")
    texts += _majority(voters, after)
    return texts


def _majority(before: Sequence[MemberView], after: Sequence[MemberView]) -> list[str]:
    """Say how many voters may fail, and whether a majority is connected."""
    texts = []
    if len(after) != len(before):
        texts.append(
            f"The group has {len(after)} voters then, instead of {len(before)}: {_may_fail(len(after))} "
            f"({_may_fail(len(before))} now)."
        )
        if len(after) and len(after) % 2 == 0:
            texts.append("An even number of voters is no safer than one less.")
    node_ids = {each.node_id for each in before}
    silent = [each.node_id for each in after if each.node_id in node_ids and not each.active]
    if len(after) and len(after) - len(silent) <= len(after) // 2:
        texts.append(f"DANGER: {', '.join(silent)} do not answer the leader, so there would be no majority then.")
    if not after:
        texts.append("DANGER: no voter would be left.")
    return texts


def _may_fail(voters: int) -> str:
    count = max(0, (voters - 1) // 2)
    return f"{'none' if count == 0 else count} of them may fail"
