"""`raftmq status`: every broker group, its replicas, and how far each of them is."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mq.cli.cluster_view import UNREACHABLE, GroupStatus, ask_cluster, client_errors
from mq.cli.errors import EXIT_FAILED, run_trio
from mq.cli.topics import NAMESRV, Namesrv


def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False, namesrv: Namesrv = NAMESRV
) -> None:
    """Show groups, roles, terms, commit positions and the lag of each replica. Exit code 1 if a group has no leader."""
    with client_errors():
        groups = run_trio(partial(ask_cluster, namesrv))
    if as_json:
        print(json.dumps([group.as_json() for group in groups], indent=2))
    else:
        console = Console()
        for group in groups:
            console.print(table_of(group))
        if not groups:
            console.print(f"no broker is registered at {namesrv}")
    if not groups or any(group.leader is None for group in groups):
        raise typer.Exit(EXIT_FAILED)


def table_of(group: GroupStatus) -> Table:
    """A group as a table for people."""
    acknowledged = {
        "quorum-fsync": "acknowledged = on disk on a majority (quorum-fsync)",
        "quorum-memory": "acknowledged = in memory of a majority, NOT yet on disk (quorum-memory)",
    }.get(group.durability or "", f"durability {group.durability or 'unknown'}")
    leader = f"led by {group.leader}" if group.leader else "NO LEADER"
    table = Table(title=f"{group.group} in {group.cluster}: {leader}; {acknowledged}", title_justify="left")
    table.add_column("replica")
    table.add_column("address")
    table.add_column("role")
    for heading in ("term", "last index", "committed", "applied", "commit position", "lag entries", "lag bytes"):
        table.add_column(heading, justify="right")
    for replica in group.replicas:
        numbers = (
            replica.term,
            replica.last_index,
            replica.commit_index,
            replica.applied_index,
            replica.commit_position,
            replica.lag_entries,
            replica.lag_bytes,
        )
        style = {"leader": "bold", UNREACHABLE: "red"}.get(replica.role)
        cells = [f"{number:,}" if number is not None else "-" for number in numbers]
        table.add_row(replica.node_id, replica.address or "-", replica.role, *cells, style=style)
    return table
