"""The outcome as text: a line while it happens, and the page that is kept."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.security import TITLES

ALL = "all"
"""In the place of a scenario's name: all of them."""


@dataclass(frozen=True)
class Outcome:
    """What became of one scenario with one client and one way to secure the servers.

    ``passed`` is None when it was not played; ``note`` says why. ``played`` is the date. ``again``: it was played again
    after the run, for itself.
    """

    client: str
    security: str
    scenario: str
    passed: bool | None
    note: str
    seconds: float = 0.0
    version: str = ""
    played: str = ""
    again: bool = False

    @property
    def subject(self) -> tuple[str, str, str]:
        """What it is the outcome of."""
        return self.client, self.security, self.scenario

    @property
    def word(self) -> str:
        """In a cell of the table."""
        return {True: "yes", False: "**no**", None: "-"}[self.passed]

    def line(self) -> str:
        """For whoever watches."""
        word = self.word.strip("*")
        return f"{self.client} {self.security} {self.scenario}: {word} ({self.seconds:.0f} s) {self.note}".rstrip()


@dataclass(frozen=True)
class Page:
    """A report: its file, its heading, who shares the machine, and what it says before the outcomes."""

    path: Path
    title: str
    shared_by: str
    introduction: str


def table(outcomes: Sequence[Outcome], titles: Mapping[str, str]) -> str:
    """Scenarios by clients, in Markdown. Outcomes of no scenario, such as a failed build, have no row."""
    clients = list(dict.fromkeys(outcome.client for outcome in outcomes if outcome.scenario in titles))
    words = {(outcome.client, outcome.scenario): outcome.word for outcome in outcomes}
    rows = [f"| scenario | {' | '.join(clients)} |", f"|---|{'---|' * len(clients)}"]
    for name, title in titles.items():
        cells = [words.get((client, name)) for client in clients]
        if any(cells):
            rows.append(f"| {title} (`{name}`) | {' | '.join(cell or '' for cell in cells)} |")
    return "\n".join(rows)


def markdown(page: Page, outcomes: Sequence[Outcome], titles: Mapping[str, str], *, machine: str, date: str) -> str:
    """The page. Outcomes come in the order in which they are told."""
    lines = [
        f"# {page.title}",
        "",
        f"Written by `make interop` on {date}.",
        f"Machine: {machine}; {page.shared_by}.",
        "",
        "Each client is the unmodified release from its registry, driven by a small program of ours.",
        "`tests/interop/README.md` describes the scenarios. A dash in a table marks a scenario that the client",
        "does not support (reasons below), an empty cell one that has not run yet.",
        "",
    ]
    if page.introduction:
        lines += [*textwrap.wrap(page.introduction, 120, break_on_hyphens=False), ""]
    versions = {outcome.client: outcome.version for outcome in outcomes if outcome.version}
    lines += [*(f"- {client}: {version}" for client, version in versions.items()), ""]
    for security in dict.fromkeys(outcome.security for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.security == security]
        lines += [f"## {TITLES[security]} (`{security}`)", ""]
        if any(outcome.scenario in titles for outcome in mine):
            lines += [table(mine, titles), "", *textwrap.wrap(_dates(mine, titles), 120), ""]
        lines += _whole(mine)
    for heading, passed in (("Failed", False), ("Not run", None), ("Noted", True)):
        lines += _notes(heading, [each for each in outcomes if each.passed is passed and each.scenario != ALL])
    return "\n".join(lines)


def _dates(outcomes: Sequence[Outcome], titles: Mapping[str, str]) -> str:
    """On which day each client played, and what it played earlier."""
    days: dict[str, dict[str, list[str]]] = {}
    for each in outcomes:
        if each.scenario in titles:
            days.setdefault(each.client, {}).setdefault(each.played.partition(" ")[0], []).append(each.scenario)
    told = []
    for client, played in days.items():
        last, *earlier = sorted(played, reverse=True)
        told.append(f"{client} on {last}" + "".join(f" ({', '.join(played[day])}: on {day})" for day in earlier))
    words = "Dates: " + "; ".join(told) + "."
    if again := [f"{each.client} {each.scenario}" for each in outcomes if each.again]:
        words += f" Run again separately after that, possibly with a newer commit: {', '.join(again)}."
    return words


def _whole(outcomes: Sequence[Outcome]) -> list[str]:
    """The clients that played nothing, and why."""
    lines = [f"- {each.client}: not run: {_flat(each.note)}" for each in outcomes if each.scenario == ALL]
    return [*lines, ""] if lines else []


def _notes(heading: str, outcomes: Sequence[Outcome]) -> list[str]:
    """A section with what is to be said of these outcomes, once for all ways to secure servers if it is the same."""
    security: dict[tuple[str, str, str], list[str]] = {}
    for each in outcomes:
        if each.note:
            security.setdefault((each.client, each.scenario, each.note), []).append(each.security)
    if not security:
        return []
    lines = [
        f"- {client} {scenario} ({', '.join(names)}): {_flat(note)}"
        for (client, scenario, note), names in security.items()
    ]
    return [f"## {heading}", "", *lines, ""]


def _flat(note: str) -> str:
    text = " ".join(note.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 600 else text[:600] + " ..."
