"""The walks of a message in ARCHITECTURE.md name functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SUFFIXES = {".py", ".pyx", ".pxi"}


def called(text: str) -> set[str]:
    """The functions and classes in the tables of stations; those in the right columns, without their packages."""
    rows = [row for table in text.split("\n| station |")[1:] for row in table.split("\n\n")[0].splitlines()[2:]]
    names = re.findall(r"`([\w.]+)`", "\n".join(row.split("|", 2)[2] for row in rows))
    return {name.rpartition(".")[2] for name in names} - {"raftlog"}


def test_walks_name_functions_that_exist() -> None:
    names = called((ROOT / "ARCHITECTURE.md").read_text())
    assert len(names) > 60
    paths = [path for package in ("mq", "raftlog") for path in (ROOT / package).rglob("*") if path.suffix in SUFFIXES]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text())}
    assert not names - words, "ARCHITECTURE.md names what no module has any more"


def test_parser_finds_names_of_a_walk() -> None:
    table = "\n| station | Python |\n|---|---|\n| turn | `Reactor.run`, C `_take` (`raftlog`) |\n\n`other`"
    assert called(table) == {"run", "_take"}
