"""`raftmq status`: shows every broker group, its replicas, and the progress of each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, run_trio
from mq.cli.figures import figures_table
from mq.cli.output import Json, print_json
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ReplicaStatus, ask_cluster
from mq.inspection.formatting import different_archive_limits
from mq.protocol.access.address_patterns import is_loopback

_MEMORY_BYTES_MIN = 1_000_000


def status(
    everything: Annotated[
        bool, typer.Option("--all", help="Show all statistics of every replica, with units.")
    ] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the leader, terms and lag of each group.

    It shows the role, the term, the commit position and the lag of each replica. Exit code 1 if a group has no leader.
    """
    with client_errors():
        groups = run_trio(partial(ask_cluster, namesrv))
    if as_json:
        print_json([group.as_json(with_figures=everything) for group in groups])
    else:
        for group in groups:
            print_table(table_of(group))
            if everything:
                Console().print(figures_table({each.node_id: each.figures for each in group.replicas if each.figures}))
        if not groups:
            print(f"no broker is registered at {namesrv}")
    if not groups or any(group.leader is None and not group.is_stock for group in groups):
        raise typer.Exit(EXIT_FAILED)


def table_of(group: GroupStatus) -> Table:
    """Format a broker group as a table."""
    durability = {
        "quorum-fsync": "acknowledged = on disk on a majority (quorum-fsync)",
        "quorum-memory": "acknowledged = in memory of a majority, NOT yet on disk (quorum-memory)",
    }.get(group.durability or "", f"durability {group.durability or 'unknown'}")
    leader = f"led by {group.leader}" if group.leader else _without_leader(group)
    numbers = ("term", "committed", "position", "lag", "disk")
    title = f"{group.group} in {group.cluster}: {leader}\n{durability}"
    table = borderless_table("replica", "address", "role", *numbers, numbers=numbers, title=title)
    for replica in group.replicas:
        style = {"leader": "bold", UNREACHABLE: "red"}.get(replica.role)
        term, commit_index = ("-" if n is None else f"{n:,}" for n in (replica.term, replica.commit_index))
        position = "-" if replica.commit_position is None else decimal(replica.commit_position)
        address = replica.address or "-"
        disk = "-" if replica.disk_used is None else f"{replica.disk_used:.0%}"
        table.add_row(
            replica.node_id, address, role_of(replica), term, commit_index, position, _lag(replica), disk, style=style
        )
    notes = [note for replica in group.replicas for note in _notes(replica)]
    notes += _archive_notes(group)
    notes += _access_notes(group)
    if group.leader is None and any(replica.abstaining for replica in group.replicas):
        notes.append(
            "no leader is elected while a majority abstains: bring back a replica, or see raftmq log allow-vote --help"
        )
    if notes:
        table.caption, table.caption_justify = "\n".join(notes), "left"
    return table


def _without_leader(group: GroupStatus) -> str:
    """Say that a group has no leader; only a replica that answers knows whether there is one."""
    if group.is_stock:
        return "a broker of Apache RocketMQ"
    return "NO LEADER" if any(replica.role != UNREACHABLE for replica in group.replicas) else "leader unknown"


def role_of(replica: ReplicaStatus) -> str:
    """The state of a replica: its Raft role, or its membership if that is more informative."""
    if replica.role in (UNREACHABLE, "leader") or replica.member in (None, "voter"):
        return replica.role
    return replica.member or replica.role


def _notes(replica: ReplicaStatus) -> Iterator[str]:
    if replica.role == "leader" and (text := _waiting_text(replica)):
        yield f"waiting at {replica.node_id}: {text}"
    if memory := _memory(replica):
        yield f"memory of clients at {replica.node_id}: {memory}"
    if replica.priority:
        yield f"{replica.node_id} has priority {replica.priority}"
    if replica.forwarded:
        text = f", {replica.forwarding:,} wait" if replica.forwarding else ""
        yield f"{replica.node_id} forwarded {replica.forwarded:,} requests to the leader{text}"
    if replica.base_index:
        yield f"{replica.node_id} keeps entries from {replica.base_index + 1:,} on"
    if replica.refusal:
        yield f"{replica.address} refuses to answer: {replica.refusal}"
    if replica.abstaining:
        yield f"{replica.node_id} abstains: it lost acknowledged entries, and fetches them"


def _archive_notes(group: GroupStatus) -> Iterator[str]:
    """Describe the archived part of the log, as the leader knows it."""
    for replica in group.replicas:
        if replica.role == "leader" and (replica.archived_index or replica.archive_lag_bytes):
            waits = ""
            if replica.archive_lag_bytes:
                waits = f"; {decimal(replica.archive_lag_bytes)} wait, for {(replica.archive_lag_ms or 0) // 1000:,} s"
            begin = (
                f", served from {decimal(replica.archive_begin_pos)} of the log on" if replica.archive_begin_pos else ""
            )
            yield f"archived up to entry {replica.archived_index:,}{begin}{waits}"
    if difference := different_archive_limits(group):
        yield f"archive_retention_* differs ({difference}): the longest time and the largest size count"
    for replica in group.replicas:
        if replica.archive_refill_bytes_left:
            rest = decimal(replica.archive_refill_bytes_left)
            yield f"{replica.node_id} reads queue entries of old messages from the archive: {rest} left"


def _access_notes(group: GroupStatus) -> Iterator[str]:
    """Names replicas without access control."""
    nodes = [
        replica.node_id
        for replica in group.replicas
        if (replica.figures or {}).get("raftmq.accessControl") == "off"
        and not is_loopback((replica.address or "localhost").rpartition(":")[0])
    ]
    if nodes:
        yield f"clients are not authenticated by {', '.join(nodes)}: see acl_file in the guide to security"


def _waiting_text(replica: ReplicaStatus) -> str:
    """Messages that wait in the broker for a time or an event."""
    kinds = (
        (replica.delayed, "delayed"),
        (replica.timers, "timed"),
        (replica.transactions, "transactions"),
        (replica.pops, "pops"),
    )
    return ", ".join(f"{count:,} {kind}" for count, kind in kinds if count)


def _memory(replica: ReplicaStatus) -> str:
    """Memory that clients use in a broker, if it is worth mentioning."""
    kinds = (
        (replica.unfinished_bytes, "unfinished requests"),
        (replica.unread_bytes, "unread answers"),
        (replica.held_bytes, "waiting pulls and pops"),
        (replica.pending_bytes, "uncommitted messages"),
    )
    return ", ".join(f"{decimal(nbytes)} {kind}" for nbytes, kind in kinds if nbytes and nbytes >= _MEMORY_BYTES_MIN)


def _lag(replica: ReplicaStatus) -> str:
    """The lag of a replica behind the leader's log, in entries and, if there are any, in bytes."""
    if replica.lag_entries is None:
        return "-"
    entries = f"{replica.lag_entries:,}"
    return f"{entries}, {decimal(replica.lag_bytes)}" if replica.lag_entries and replica.lag_bytes else entries
