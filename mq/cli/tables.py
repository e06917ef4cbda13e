"""Formats the tables of commands: without borders, and never cut off at the width of a terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text


class BorderlessTable(Table):
    """A table whose cells are shown as they are.

    Rich reads "[red]" in a string as markup, and ends with an error at "[/etc]"; cells have texts of applications.
    """

    def add_row(
        self,
        *renderables: RenderableType | None,
        style: str | Style | None = None,
        end_section: bool = False,
    ) -> None:
        """Add a row."""
        cells = (Text(visible(each)) if isinstance(each, str) else each for each in renderables)
        super().add_row(*cells, style=style, end_section=end_section)


def visible(text: str) -> str:
    """Return the text with control characters as escapes: a terminal would change its colors, title or lines."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def borderless_table(*headings: str, numbers: Collection[str] = (), title: str | None = None) -> Table:
    """Return an empty table, in which the columns in ``numbers`` are aligned to the right."""
    table = BorderlessTable(box=None, padding=(0, 1, 0, 0), title_justify="left")
    if title is not None:
        table.title = table_title(title)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    return table


def table_title(text: str) -> Text:
    """Return a title that may be longer than its table."""
    return Text(text, style="italic", no_wrap=True, overflow="ignore")


def print_table(table: Table) -> None:
    """Print a table as wide as its content. A narrower terminal wraps the lines; rich would shorten addresses and
    times.
    """
    console = Console(highlight=False)
    content = Console(width=10_000).measure(table).maximum
    Console(width=max(console.width, content), highlight=False).print(table, crop=False)
