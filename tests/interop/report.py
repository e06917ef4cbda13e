"""The outcome as text: a line while it happens, and the page that is kept."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What became of one scenario with one client. ``passed`` is None when it was not played; ``note`` says why.

    ``again``: it was played again after the run, for itself.
    """

    client: str
    scenario: str
    passed: bool | None
    note: str
    seconds: float
    version: str
    again: bool = False

    @property
    def word(self) -> str:
        """In a cell of the table."""
        return {True: "yes", False: "**no**", None: "-"}[self.passed]

    def line(self) -> str:
        """For whoever watches."""
        return f"{self.client} {self.scenario}: {self.word.strip('*')} ({self.seconds:.0f} s) {self.note}".rstrip()


@dataclass(frozen=True)
class Page:
    """A report: its file, its heading, who shares the machine, and what it says before the outcomes."""

    path: Path
    title: str
    shared_by: str
    introduction: str


def table(outcomes: Sequence[Outcome], titles: Mapping[str, str]) -> str:
    """Scenarios by clients, in Markdown. Outcomes of no scenario, such as a failed build, have no row."""
    clients = list(dict.fromkeys(outcome.client for outcome in outcomes))
    words = {(outcome.client, outcome.scenario): outcome.word for outcome in outcomes}
    rows = [f"| scenario | {' | '.join(clients)} |", f"|---|{'---|' * len(clients)}"]
    for name, title in titles.items():
        cells = [words.get((client, name)) for client in clients]
        if any(cells):
            rows.append(f"| {title} (`{name}`) | {' | '.join(cell or '' for cell in cells)} |")
    return "\n".join(rows)


def markdown(page: Page, outcomes: Sequence[Outcome], titles: Mapping[str, str], *, machine: str, date: str) -> str:
    """The page."""
    lines = [
        f"# {page.title}",
        "",
        f"Written by `make interop` on {date}.",
        f"Machine: {machine}; {page.shared_by}.",
        "",
        "Each client comes unmodified from its registry in the version given here and is driven by a small program of",
        "ours; what a scenario asks for is told in `tests/interop/README.md`.",
        "",
    ]
    if page.introduction:
        lines += [*textwrap.wrap(page.introduction, 120, break_on_hyphens=False), ""]
    clients = list(dict.fromkeys(outcome.client for outcome in outcomes))
    order = {name: number for number, name in enumerate(titles)}
    versions = {outcome.client: outcome.version for outcome in outcomes if outcome.version}
    lines += [f"- {client}: {version}" for client, version in versions.items()]
    lines += ["", table(outcomes, titles), ""]
    if again := [f"{each.client} {each.scenario}" for each in outcomes if each.again]:
        lines += [f"Played again after the run, each for itself, perhaps by a newer commit: {', '.join(again)}.", ""]
    for heading, passed in (("Failed", False), ("Not played", None), ("Noted", True)):
        notes = [each for each in outcomes if each.passed is passed and each.note]
        notes.sort(key=lambda each: (clients.index(each.client), order.get(each.scenario, -1)))
        if notes:
            lines += [f"## {heading}", ""]
            lines += [f"- {each.client} {each.scenario}: {_flat(each.note)}" for each in notes]
            lines.append("")
    return "\n".join(lines)


def _flat(note: str) -> str:
    text = " ".join(note.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 600 else text[:600] + " ..."
