"""`raftmq group upgrade-check`: shows the version of each member, and whether the next one can be replaced now."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.cli.upgrade_verdict import MemberReport, UpgradeReport, upgrade_report
from mq.inspection.cluster import GroupStatus, ask_cluster


def upgrade_check(
    group: Annotated[
        str | None, typer.Option("--group", help="Broker group; not needed if there is only one.", metavar="NAME")
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show whether a member can be upgraded now. It shows the version of each, and whether the next one can be stopped.

    Exit code 1 if not.
    """
    with client_errors():
        report = upgrade_report(_group_named(run_trio(partial(ask_cluster, namesrv)), group))
    if as_json:
        print_json(report.as_json())
    else:
        print_table(table_of(report))
        for line in conclusions(report):
            print(line)
    if not report.safe:
        raise typer.Exit(EXIT_FAILED)


def _group_named(groups: list[GroupStatus], name: str | None) -> GroupStatus:
    matches = [group for group in groups if name in (None, group.group)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = "|".join(sorted(group.group for group in matches))
        raise CommandFailed(f"there are several groups, choose one with --group {names}")
    raise CommandFailed(f"no {f'group {name}' if name else 'broker group'} is registered at the name server")


def table_of(report: UpgradeReport) -> Table:
    """Format the members as a table."""
    leader = f"led by {report.leader}" if report.leader else "NO LEADER"
    headings = ("node", "role", "software", "replication", "levels", "lag", "state")
    title = f"{report.group} in {report.cluster}: {leader}, format level {_or_dash(report.format_level)}"
    table = borderless_table(*headings, title=title)
    for member in report.members:
        style = "red" if member.ailments else "bold" if member.role == "leader" else None
        table.add_row(
            member.node_id,
            member.role if member.member in ("", "voter") else member.member,
            member.software or "-",
            _replication(member),
            _levels(member),
            _or_dash(member.lag_entries),
            ", ".join(member.ailments) or "healthy",
            style=style,
        )
    return table


def conclusions(report: UpgradeReport) -> list[str]:
    """Return the conclusions from the table, as sentences."""
    lines = []
    level, available = report.format_level, report.level_available
    if report.features_on:
        lines.append(f"Features that are on: {', '.join(report.features_on)}.")
    if level is not None and available is not None and available > level:
        features = f" ({', '.join(report.features_available)})" if report.features_available else ""
        lines.append(f"All members understand format level {available}{features}: the leader raises it within seconds.")
    elif report.held_back_by:
        lines.append(f"The format level does not rise further because of {', '.join(report.held_back_by)}.")
    if report.safe:
        lines.append(f"{report.next} can be stopped and replaced now.")
    else:
        lines.append(f"Do not stop a member now: {report.reason}.")
    return lines


def _replication(member: MemberReport) -> str:
    oldest, newest = member.replication_oldest, member.replication_newest
    if oldest is None or newest is None:
        return "-"
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


def _levels(member: MemberReport) -> str:
    if member.level_newest is None or member.level_max is None:
        return "-"
    limit = f", held at {member.level_max}" if member.level_max < member.level_newest else ""
    return f"up to {member.level_newest}{limit}"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
