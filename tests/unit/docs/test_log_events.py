"""`docs/log-events.md` against the code: every event of a server is there, with its levels, its fields and a meaning.

With REWRITE=1 everything but the meanings is written anew; a new event comes without one, which fails until somebody
writes it.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "log-events.md"
BEGIN, END = "<!-- events -->", "<!-- end of events -->"
SERVERS = (
    "raftlog",
    "mq/broker",
    "mq/namesrv",
    "mq/proxy",
    "mq/filter_server",
    "mq/console",
    "mq/monitoring",
    "mq/accounts.py",
    "mq/certificate.py",
)
LEVELS = ("debug", "info", "warning", "error")
ROW = re.compile(r"\| `(\w+)` \| [^|]* \| [^|]* \| (.*) \|")


class Event(NamedTuple):
    """Where one event is logged."""

    level: str
    package: str
    fields: frozenset[str]


def logged(path: Path) -> Iterator[tuple[str, Event]]:
    """The events that a module logs by a constant name."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:3])
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        level, name = node.func.attr, node.args[0]
        if level in (*LEVELS, "exception"):
            names = [name] if not isinstance(name, ast.IfExp) else [name.body, name.orelse]
            fields = frozenset(each.arg for each in node.keywords if each.arg is not None and each.arg != "exc_info")
            for each in names:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.value, Event("error" if level == "exception" else level, package, fields)


def events() -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for place in SERVERS:
        paths = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
        for path in paths:
            for name, event in logged(path):
                found.setdefault(name, []).append(event)
    return found


def table(meanings: dict[str, str]) -> str:
    rows = ["| event | level | fields | what happened |", "|---|---|---|---|"]
    for name, places in sorted(events().items()):
        levels = ", ".join(level for level in LEVELS if any(place.level == level for place in places))
        fields = ", ".join(f"`{field}`" for field in sorted(frozenset().union(*(place.fields for place in places))))
        rows.append(f"| `{name}` | {levels} | {fields or ' '} | {meanings.get(name, '')} |")
    return "\n".join(rows)


def test_guide_has_every_event_with_its_fields_and_a_meaning() -> None:
    text = GUIDE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    meanings = {found[1]: found[2] for found in ROW.finditer(text[begin:end])}
    wanted = f"{text[:begin]}\n\n{table(meanings)}\n\n{text[end:]}"
    if os.environ.get("REWRITE"):
        GUIDE.write_text(wanted)
    assert GUIDE.read_text() == wanted, "docs/log-events.md: REWRITE=1"
    without = sorted(name for name in events() if not meanings.get(name, "").strip())
    assert not without, "these events have no meaning in docs/log-events.md"
