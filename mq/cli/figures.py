"""Units of a broker's figures (request code 28), and their formatting. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from rich.table import Table

from mq.cli.tables import BorderlessTable
from mq.inspection.formatting import time_of

OWN_PREFIX: Final = "raftmq."

_BYTES: Final = "bytes"
_RATES: Final = "per second, over 10 s, 1 min, 10 min"
_RATIO: Final = "of 1"
_TIME: Final = "UTC"

_UNITS: Final = tuple(
    (re.compile(pattern), unit)
    for pattern, unit in (
        (r"Tps$", _RATES),
        (r"(Ms|TimeMills)$", "ms"),
        (r"Time[sS]tamp$", _TIME),
        (r"(diskUsed|Ratio)$", _RATIO),
        (r"(Bytes|Position|SizeTotal|AverageSize|commitLogM(in|ax)Offset|sendThreadPoolQueueCapacity)$", _BYTES),
        (r"\.bulkBytesAs", _BYTES),
        (r"\.bulkRowsAs", "messages"),
        (r"\.bulkReads", "requests"),
        (r"\.logLeases$", "leases"),
        (r"Index$", "entries"),
        (r"(scheduleMessageOffset_\d+)$", "messages delivered, stored"),
        (r"QueueSize$|^pullThreadPoolQueueCapacity$|held(Pops|LitePops|Pulls)$|forwarded\w+$", "requests"),
        (r"\.scheduleTicks", "ticks"),
        (r"\.archive(Read)?Failures$", "attempts"),
        (r"\.archiveReads", "requests"),
        (r"\.schedules", "schedules"),
        (r"\.lite(Topics|Expired)$", "lite topics"),
        (r"\.liteSubscriptions$", "subscriptions"),
        (r"\.topicMessagesExpired$|\.compactedMessages", "messages"),
        (r"\.compactedKeys$", "keys"),
        (r"\.transactionChecks", "questions"),
        (r"\.transactions", "transactions"),
        (r"\.replies", "replies"),
        (r"\.popCheckpoints$", "pops"),
        (r"\.connections$", "connections"),
        (r"\.lockedQueues$", "queues"),
        (r"\.fencedCommits$", "commits"),
        (r"\.repeatedSends$", "sends"),
        (r"\.(messages(Compiled)?|delayed\w+|timers\w+|pop(Lost|Revived))$", "messages"),
        (r"^msg(Put|Get)Total|^putMessageTimesTotal$", "messages"),
    )
)


def unit_of(name: str) -> str:
    """Return the unit of a figure; empty for texts and if the name does not tell the unit."""
    return next((unit for pattern, unit in _UNITS if pattern.search(name)), "")


def readable(name: str, text: str) -> str:
    """Format a figure for people: digits in groups of three, times as dates."""
    unit = unit_of(name)
    if unit == _TIME:
        # Brokers report 0 or -1 for "never".
        return (time_of(int(text)) if text.isdigit() else None) or "none"
    if text.lstrip("-").isdigit() and name not in ("brokerVersion", OWN_PREFIX + "term"):
        return f"{int(text):,}"
    if text.startswith("{"):
        return ", ".join(f"{key}: {_as_text(value)}" for key, value in json.loads(text).items())
    return text


def figures_table(figures: Mapping[str, Mapping[str, str]]) -> Table:
    """Format the figures of replicas as a table: one column per node id, raftmq's own figures first."""
    table = BorderlessTable(box=None, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("unit")
    for node_id in figures:  # some texts are long: they wrap within their column
        table.add_column(node_id, justify="right", overflow="fold")
    for name in _names(figures.values()):
        values = [readable(name, each[name]) if name in each else "-" for each in figures.values()]
        table.add_row(name, unit_of(name), *values)
    return table


def _names(figures: Iterable[Mapping[str, str]]) -> list[str]:
    names = {name for each in figures for name in each}
    return sorted(names, key=lambda name: (not name.startswith(OWN_PREFIX), name))


def _as_text(value: object) -> str:
    return " ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
