"""Formats numbers, times and the texts of applications for pages. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rich.filesize import decimal

PER_PAGE: Final = 50

T = TypeVar("T")


def number(value: int | float | None) -> str:
    """Format a number with groups of three digits; a dash if it is not known."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(value: int | None) -> str:
    """Format bytes in kB, MB and so on; a dash if unknown."""
    return "-" if value is None else decimal(value)


def percent(value: float | None) -> str:
    """Format a fraction of 1 as a percentage."""
    return "-" if value is None else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """Format a duration: ``3 s``, ``4 min``, ``2 h 5 min``, ``3 days``; a dash if not known."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{round(hours / 24)} days"


def visible(text: object) -> str:
    """Return a text on one line, with escapes for characters that are invisible or change its direction.

    It is not HTML: templates escape it.
    """
    return "".join(_format(each) for each in str(text))


def _format(each: str) -> str:
    if each.isprintable() and unicodedata.category(each) != "Cf":
        return each
    return each.encode("unicode_escape", "surrogatepass").decode()


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list. ``number`` begins at 1; ``total`` and ``pages`` count the matching rows."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int


def list_page(rows: Sequence[T], page_number: int, per_page: int = PER_PAGE) -> ListPage[T]:
    """Return page ``page_number`` of the rows, or the nearest page that exists."""
    pages = max(1, -(-len(rows) // per_page))
    page = min(max(1, page_number), pages)
    return ListPage(rows[(page - 1) * per_page : page * per_page], page, pages, len(rows))


def names_with(names: Iterable[str], part: str) -> list[str]:
    """Return the sorted names that contain ``part``, in any letter case."""
    folded_part = part.casefold()
    return sorted(name for name in names if folded_part in name.casefold())
