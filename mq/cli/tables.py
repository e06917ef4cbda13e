"""Tables of commands: without borders, and never cut off at the width of a terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.table import Table
from rich.text import Text


def plain_table(*headings: str, numbers: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table; the columns in ``numbers`` are aligned to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), title_justify="left")
    if title is not None:
        table.title = table_title(title)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    return table


def table_title(text: str) -> Text:
    """A title that may be longer than its table."""
    return Text(text, style="italic", no_wrap=True, overflow="ignore")


def print_table(table: Table) -> None:
    """Print a table as wide as its content: rich would shorten addresses and times to fit them into 80 columns, also
    in a pipe. A narrower terminal wraps the lines.
    """
    console = Console(highlight=False)
    content = Console(width=10_000).measure(table).maximum
    Console(width=max(console.width, content), highlight=False).print(table, crop=False)
