"""`raftmq top`: shows rates, lag and leaders of all broker groups, and refreshes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import trio
import typer
from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table

from mq.cli.client_errors import client_errors
from mq.cli.errors import run_trio
from mq.cli.output import JsonLines
from mq.cli.status import role_of
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ReplicaStatus, ask_cluster

GROUPS_SHOWN = 20
LAG_SECONDS = 5.0
"""Interval of consumer group queries: they take a request per group."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one replica, per second since the previous query; None if unknown."""

    stored: float | None = None
    consumed: float | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a consumer group in a topic, in messages."""

    group: str
    topic: str
    messages: int


def top(
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Take two samples, print the rates, and exit.")] = False,
    as_json: JsonLines = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show rates, lag and leaders live, until ctrl-C."""

    async def main() -> None:
        view = _View(namesrv)
        await view.refresh()
        await trio.sleep(interval)
        await view.refresh()
        while as_json:
            print(json.dumps(view.as_json()), flush=True)
            if once:
                return
            await trio.sleep(interval)
            await view.refresh()
        console = Console()
        if once:
            console.print(view.page())
            return
        while not console.is_terminal:  # a live view would print nothing into a pipe or a file
            console.print(view.page())
            print(flush=True)
            await trio.sleep(interval)
            await view.refresh()
        with Live(view.page(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                await trio.sleep(interval)
                await view.refresh()
                live.update(view.page(), refresh=True)

    with client_errors():
        run_trio(main)


class _View:
    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._groups: list[GroupStatus] = []
        self._lags: list[Lag] = []
        self._rates: dict[tuple[str, str], Rates] = {}
        self._counts: dict[tuple[str, str], tuple[float, int, int]] = {}
        self._lags_at = float("-inf")
        self._fault = ""

    async def refresh(self) -> None:
        """Query everything. Raises ClientError the first time; later errors are displayed."""
        try:
            self._groups = await ask_cluster(self._namesrv)
            self._fault = ""
        except ClientError as error:
            if not self._groups:
                raise
            self._fault = str(error)
            return
        now = trio.current_time()
        for group in self._groups:
            for replica in group.replicas:
                self._count(now, (group.group, replica.node_id), replica.figures or {})
        if now >= self._lags_at + LAG_SECONDS:
            self._lags_at = now
            self._lags = await lags_of(self._namesrv)

    def _count(self, now: float, key: tuple[str, str], figures: Mapping[str, str]) -> None:
        if "raftmq.messages" not in figures:
            self._rates[key] = Rates()
            self._counts.pop(key, None)
            return
        # Messages appended as the leader, and messages delivered to consumers.
        stored_count, consumed_count = int(figures["raftmq.messages"]), int(figures["msgGetTotalTodayNow"])
        before = self._counts.get(key)
        self._counts[key] = now, stored_count, consumed_count
        if before is None or stored_count < before[1] or now <= before[0]:  # it was restarted
            self._rates[key] = Rates()
            return
        seconds = now - before[0]
        self._rates[key] = Rates((stored_count - before[1]) / seconds, (consumed_count - before[2]) / seconds)

    def as_json(self) -> dict[str, object]:
        """The page as JSON."""
        return {
            "groups": [
                {
                    **group.as_json(),
                    "rates": {
                        replica.node_id: asdict(self._rates.get((group.group, replica.node_id), Rates()))
                        for replica in group.replicas
                    },
                }
                for group in self._groups
            ],
            "lag": [asdict(lag) for lag in self._lags],
        }

    def page(self) -> Group:
        """The page as text."""
        tables = [self._replicas(group) for group in self._groups]
        notes = [f"cannot ask: {self._fault}"] if self._fault else []
        if not self._groups:
            notes.append(f"no broker is registered at {self._namesrv}")
        return Group(*tables, _lag_table(self._lags), *notes)

    def _replicas(self, group: GroupStatus) -> Table:
        leader = f"led by {group.leader}" if group.leader else "NO LEADER"
        table = Table(title=f"{group.group}: {leader}", title_justify="left", box=None, padding=(0, 1, 0, 0))
        table.add_column("replica", no_wrap=True)
        table.add_column("role", no_wrap=True)
        for heading in ("stored/s", "consumed/s", "term", "lag", "clients", "memory waiting", "disk"):
            table.add_column(heading, justify="right", no_wrap=True)
        for replica in group.replicas:
            rates = self._rates.get((group.group, replica.node_id), Rates())
            waiting_count = sum(
                each or 0
                for each in (replica.unfinished_bytes, replica.unread_bytes, replica.held_bytes, replica.pending_bytes)
            )
            table.add_row(
                replica.node_id,
                role_of(replica),
                _format_number(rates.stored),
                _format_number(rates.consumed),
                _format_number(replica.term),
                _format_number(replica.lag_entries),
                _format_number(replica.connections),
                decimal(waiting_count),
                "-" if replica.disk_used is None else f"{replica.disk_used:.0%}",
                style=_style(replica),
            )
        return table


async def lags_of(namesrv: str) -> list[Lag]:
    """Return the lags of consumer groups, the largest first. Raises ClientError."""
    lags: dict[tuple[str, str], int] = {}
    async with Admin(namesrv) as admin:
        for name in await admin.consumer_groups():
            for queue, progress in (await admin.group_progress(name)).items():
                key = (name, queue.topic)
                lags[key] = lags.get(key, 0) + max(0, progress.end - progress.offset)
    rows = [Lag(group, topic, messages) for (group, topic), messages in lags.items()]
    return sorted(rows, key=lambda lag: (-lag.messages, lag.group, lag.topic))


def _lag_table(lags: list[Lag]) -> Table:
    table = Table(title="consumer groups", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("group", no_wrap=True)
    table.add_column("topic", no_wrap=True)
    table.add_column("messages to consume", justify="right")
    for lag in lags[:GROUPS_SHOWN]:
        table.add_row(lag.group, lag.topic, f"{lag.messages:,}")
    if len(lags) > GROUPS_SHOWN:
        table.caption, table.caption_justify = f"and {len(lags) - GROUPS_SHOWN} more", "left"
    return table


def _style(replica: ReplicaStatus) -> str | None:
    return {"leader": "bold", UNREACHABLE: "red"}.get(replica.role)


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
