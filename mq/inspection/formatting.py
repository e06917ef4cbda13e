"""Formats times and lists as text, the same for all commands and pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from rich.filesize import decimal

from mq.inspection.cluster import GroupStatus


def time_of(milliseconds: int | None) -> str | None:
    """Format milliseconds since 1970 as ``2026-03-01T09:30:00.000Z``; None for None, 0 or less, which mean never.

    Returns None also for times after the year 9999.
    """
    if milliseconds is None or milliseconds <= 0:
        return None
    seconds, millis = divmod(milliseconds, 1000)
    try:
        at = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{at:%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def some_of(words: Sequence[str], shown_max: int = 5) -> str:
    """Join the first words, and say how many more there are: ``a, b and 298 more``."""
    more = len(words) - shown_max
    return ", ".join(words[:shown_max]) + (f" and {more:,} more" if more > 0 else "")


def different_archive_limits(group: GroupStatus) -> str:
    """Describe the archive retention (time and size) of each replica if they differ; empty if they agree."""
    limits_by_node = {
        each.node_id: (each.archive_kept_seconds or 0, each.archive_kept_bytes or 0)
        for each in group.replicas
        if each.archive_kept_seconds is not None
    }
    if len(set(limits_by_node.values())) < 2:
        return ""
    return ", ".join(
        f"{node}: {f'{seconds / 3600:g} h' if seconds else 'no time'}, {decimal(nbytes) if nbytes else 'no size'}"
        for node, (seconds, nbytes) in limits_by_node.items()
    )
