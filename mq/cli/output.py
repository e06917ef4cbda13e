"""The output conventions of all commands: JSON, and the format of times.

``--json`` prints one indented document with snake_case names; lists are arrays. A command that runs until it is stopped
prints one object per line instead. A time is ISO 8601 in UTC with milliseconds, in text and in JSON, and commands
accept the same format as input.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def print_json(value: object) -> None:
    """Print ``value`` as one document on standard output."""
    print(json.dumps(value, indent=2))


def print_json_array(rows: Iterable[object]) -> None:
    """Print ``rows`` as one JSON array, row by row, since all together may not fit into memory."""
    before = "["
    for row in rows:
        text = json.dumps(row, indent=2).replace("\n", "\n  ")
        print(f"{before}\n  {text}", end="")
        before = ","
    print("[]" if before == "[" else "\n]")


def parse_time(text: str) -> dt.datetime:
    """Parse an ISO 8601 time such as ``2026-03-01T09:30:00.000Z``; without a time zone it is local.

    Raises `typer.BadParameter` for anything else.
    """
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-03-01T09:30 or 2026-03-01T09:30Z") from error
