"""The result of a series of runs, as text for people and as JSON for programs."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from chaos.buggify import POINTS
from chaos.log_sim.cluster import RunResult


def written_at() -> list[str]:
    """Return lines for a page that name the commit of the run; none outside of a repository."""
    command = ["git", "log", "-1", "--date=short", "--format=%h of %ad"]
    process = subprocess.run(command, cwd=Path(__file__).parent, check=False, capture_output=True, text=True)
    if process.returncode:
        return []
    return [f"Run at commit {process.stdout.strip()}; names of faults and classes may have changed since.", ""]


@dataclass(slots=True)
class Totals:
    """The sums over all runs so far. ``broken`` has the seed and the violation of each run that broke a promise."""

    workload: str = "log"
    seeds: int = 0
    seconds: float = 0.0
    events: int = 0
    committed: int = 0
    acknowledged: int = 0
    reads: int = 0
    terms: int = 0
    elections: int = 0
    repairs: int = 0
    resets: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    effective: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, outcome: RunResult) -> None:
        """Add the result of one run."""
        self.seeds += 1
        self.seconds += outcome.seconds
        self.events += outcome.steps
        self.committed += outcome.committed
        self.acknowledged += outcome.acknowledged
        self.reads += outcome.reads
        self.terms += outcome.terms
        self.elections += outcome.elections
        self.repairs += outcome.repairs
        self.resets += outcome.resets
        self.injected.update(outcome.injected)
        self.effective.update(outcome.effective)
        self.asked.update(outcome.asked)
        self.happened.update(outcome.happened)
        self.counts.update(outcome.counts)
        if outcome.broke is not None:
            self.broken.append((outcome.seed, outcome.broke))

    @property
    def _option(self) -> str:
        return "" if self.workload == "log" else f" --workload {self.workload}"

    @property
    def never_hit(self) -> list[str]:
        """Points that never triggered."""
        return sorted(name for name in POINTS if not self.happened[name])

    def summary(self, cpu_seconds: float) -> str:
        """Return a line that sums up the runs."""
        violations = f"violations: {[seed for seed, _ in self.broken]}" if self.broken else "no violations"
        return (
            f"{self.seeds} seeds, {self.seconds / 3600:.2f} simulated hours, {self.events} events, "
            f"{self.acknowledged} acknowledged of {self.committed} committed entries, {self.reads} reads, "
            f"{self.elections} elections, {self.repairs} repairs, {self.resets} resets, "
            f"{sum(self.effective.values())} faults of {sum(self.injected.values())} took effect, "
            f"{cpu_seconds:.1f} s CPU ({self.seconds / max(cpu_seconds, 1e-9):.0f} simulated s per CPU s); "
            f"{violations}"
        )

    def as_json(self) -> str:
        """Return all figures as one JSON object."""
        values = {item.name: getattr(self, item.name) for item in fields(self)} | {"never_hit": self.never_hit}
        return json.dumps(values, indent=1, sort_keys=True) + "\n"

    def _counts_table(self) -> list[str]:
        if not self.counts:
            return []
        rows = [f"| {name} | {count:,} |" for name, count in sorted(self.counts.items())]
        return ["## Client operations and outcomes", "", "| | |", "| --- | ---: |", *rows, ""]

    def as_markdown(self, cpu_seconds: float, command: str) -> str:
        """Return a page for people."""
        lines = [
            "# Simulation" if self.workload == "log" else f"# Simulation of brokers: {self.workload}",
            "",
            f"`{command}`",
            "",
            *written_at(),
            "| | |",
            "| --- | ---: |",
            *_rows(
                {
                    "seeds": self.seeds,
                    "simulated hours": round(self.seconds / 3600, 2),
                    "CPU seconds": round(cpu_seconds, 1),
                    "events": self.events,
                    "committed entries": self.committed,
                    "acknowledged appends": self.acknowledged,
                    "linearizable reads": self.reads,
                    "elections": self.elections,
                    "damaged logs repaired": self.repairs,
                    "logs replaced by fetched files": self.resets,
                    "violations": len(self.broken),
                }
            ),
            "",
            *self._counts_table(),
            "## Faults",
            "",
            "| fault | injected | took effect |",
            "| --- | ---: | ---: |",
            *[f"| {name} | {count} | {self.effective[name]} |" for name, count in sorted(self.injected.items())],
            "",
            "## Points",
            "",
            "Rare but legal behaviour of disk, network and scheduler. Each point is enabled in half of the runs.",
            "",
            "| point | evaluated | triggered |",
            "| --- | ---: | ---: |",
            *[f"| {name} | {self.asked[name]} | {self.happened[name]} |" for name in sorted(POINTS)],
            "",
            f"Never triggered: {', '.join(self.never_hit) or 'none'}.",
            "",
        ]
        if self.broken:
            lines += ["## Violations", ""]
            lines += [
                f"- `python -m chaos{self._option} --seed {seed} --trace`: {broke}" for seed, broke in self.broken
            ]
            lines.append("")
        return "\n".join(lines)


def _rows(values: Mapping[str, float]) -> list[str]:
    return [f"| {name} | {value:,} |" for name, value in values.items()]


def write(path: Path, totals: Totals, cpu_seconds: float, command: str) -> None:
    """Write the page to ``path`` with the suffix ``.md``, and the JSON beside it. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(totals.as_markdown(cpu_seconds, command))
    path.with_suffix(".json").write_text(totals.as_json())


def format_command(arguments: Sequence[str]) -> str:
    """Return the command line of a run, for a report."""
    return " ".join(["python -m chaos", *arguments])
