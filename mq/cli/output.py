"""Output conventions of all commands: JSON, and the format of times.

``--json`` prints one indented document with snake_case names; lists are arrays. A command that runs until it is stopped
prints one object per line instead. A time is ISO 8601 in UTC with milliseconds, in text and in JSON, and commands
accept the same format as input.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def print_json(value: object) -> None:
    """Print ``value`` as one document on standard output."""
    print(json.dumps(value, indent=2))


def print_json_array(rows: Iterable[object]) -> None:
    """Print ``rows`` as one array, row by row: they may not fit into memory."""
    before = "["
    for row in rows:
        indented = json.dumps(row, indent=2).replace("\n", "\n  ")
        print(f"{before}\n  {indented}", end="")
        before = ","
    print("[]" if before == "[" else "\n]")


def time_of(milliseconds: int | None) -> str | None:
    """Milliseconds since 1970 as a time, ``2026-03-01T09:30:00.000Z``. None for "never": None, 0 or less.

    Also None after the year 9999.
    """
    if milliseconds is None or milliseconds <= 0:
        return None
    seconds, millis = divmod(milliseconds, 1000)
    try:
        at = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{at:%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def parse_time(text: str) -> dt.datetime:
    """Parse an ISO 8601 time, local without a time zone: ``2026-03-01T09:30``, ``2026-03-01T09:30:00.000Z``.

    Raises `typer.BadParameter` for anything else.
    """
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-03-01T09:30 or 2026-03-01T09:30Z") from error


def some_of(words: Sequence[str], shown_max: int = 5) -> str:
    """The first words and how many more there are: ``a, b and 298 more``."""
    more = len(words) - shown_max
    return ", ".join(words[:shown_max]) + (f" and {more:,} more" if more > 0 else "")
