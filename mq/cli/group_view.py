"""Formats the members of a broker group as a table."""

from __future__ import annotations

from rich.table import Table

from mq.cli.tables import borderless_table
from mq.protocol.requests.raft_group import GroupView, MemberView


def table_of(view: GroupView) -> Table:
    """Format the members as a table, as the responding replica knows them."""
    leader = f"led by {view.leader} in term {view.term}" if view.leader else "NO LEADER"
    entries = f"entries {view.base_index + 1:,} to {view.last_index:,}, committed {view.commit_index:,}"
    disk = f"disk of {view.node_id} {view.disk_used:.0%} used"
    notes = " · ABSTAINING: it does not vote" if view.abstaining else ""
    if view.abstaining and not view.leader:
        notes += "\na majority abstains, so no leader is elected: bring back a replica, "
        notes += "or see raftmq log allow-vote --help"
    for member in view.members:
        if member.reason:
            notes += f"\n{view.node_id} cannot connect to {member.node_id}: {member.reason}"
    headings = ("node", "role", "replication", "state", "lag", "priority")
    title = f"{view.group} in {view.cluster}: {leader}\n{entries} · {disk}{notes}"
    table = borderless_table(*headings, numbers=("lag", "priority"), title=title)
    for member in view.members:
        style = "bold" if member.node_id == view.leader else None if member.active or not view.leader else "red"
        lag = "-" if member.lag_entries < 0 else f"{member.lag_entries:,}"
        table.add_row(
            member.node_id, member.role, member.address or "-", state_of(member), lag, str(member.priority), style=style
        )
    return table


def state_of(member: MemberView) -> str:
    """Describe how far the leader's replication to a member is."""
    if not member.state:
        return "-"
    words = {"probe": "comparing logs", "replicate": "following", "reset": "fetching segments"}
    state = words.get(member.state, member.state) if member.active else "silent"
    return state if member.disk_ok else f"{state}, disk full"
