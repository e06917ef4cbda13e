"""Reports on the runs of a profile: a table, the worst verdict, and a page in docs/reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from checkers.send_path import BY_COMPILED
from checkers.verdict import EXIT_BROKEN, EXIT_CANNOT_RUN, EXIT_UNKNOWN, EXIT_VALID, Verdict, in_words
from jepsen.profiles import NIGHTLY, PROFILES, Cell
from jepsen.report.promises import promise_lines
from jepsen.report.rare_states import IN_LOGS, STATES

REPORTS = Path(__file__).parents[2] / "docs" / "reports"
NOT_RUN = "not run"
_OF_ROW = ("coverage", "send-path")
"""Checkers whose counts are in a row."""
_BROKEN, _UNKNOWN, _VALID = in_words(False), in_words("unknown"), in_words(True)


class Row(msgspec.Struct, frozen=True):
    """One run. ``told``: each violation, or why a verdict is missing. ``met``: states of `jepsen.report.rare_states`.
    ``compiled``: messages that took the compiled send path.
    """

    workload: str
    faults: str
    seconds: float
    verdict: str
    command: str = ""
    began: str = ""
    load: str = ""
    version: str = ""
    backend: str = ""
    operations: int = 0
    acknowledged: int = 0
    compiled: int = 0
    injected: int = 0
    confirmed: int = 0
    told: list[str] = []
    met: dict[str, int] = {}


class StoredVerdict(msgspec.Struct, frozen=True):
    profile: str
    rows: list[Row]


def report_of(profile: str, backend: str, directory: Path) -> Path:
    """Return the path of the report on a profile. ``directory``: `REPORTS`, or that of the runs."""
    stem = "jepsen" if profile == NIGHTLY else f"jepsen-{profile}-{backend}"
    return directory / f"{stem}.md"


def row_of(cell: Cell, verdict: Verdict, state_counts: Mapping[str, int]) -> Row:
    """Describe a judged run. ``state_counts``: how often it reached each rare state."""
    counts = {
        name: count for result in verdict.results for name, count in result.counts.items() if result.name in _OF_ROW
    }
    reasons = [
        f"{result.name}: {anomaly}, {count:,} times: {result.examples[anomaly][0]}"
        for result in verdict.results
        for anomaly, count in result.anomalies.items()
    ]
    reasons += [f"{result.name}: {reason}" for result in verdict.results for reason in result.unknown]
    plan = verdict.plan
    return Row(
        cell.workload,
        cell.faults,
        cell.seconds,
        in_words(verdict.valid),
        command=str(plan.get("command", "")),
        began=str(plan.get("began", "")),
        load=str(plan.get("load", "")),
        version=str(plan.get("version", "")),
        backend=str(plan.get("backend", "")),
        operations=counts.get("operations", 0),
        acknowledged=counts.get("acknowledged", 0),
        compiled=counts.get(BY_COMPILED, 0),
        injected=counts.get("faults", 0),
        confirmed=counts.get("faults confirmed", 0),
        told=reasons,
        met=dict(state_counts),
    )


def _times_met(rows: Sequence[Row], state: str) -> str:
    """The number of times that the runs reached a state; "not looked for" if no row has a state of histories."""
    if state not in IN_LOGS and not any(state in row.met for row in rows):
        return "not looked for"
    return str(sum(row.met.get(state, 0) for row in rows) or "never")


def not_run(cell: Cell, reason: str) -> Row:
    """Describe a run that this machine cannot execute, or that failed before its clients began."""
    return Row(cell.workload, cell.faults, cell.seconds, NOT_RUN, told=[reason])


def worst(rows: Sequence[Row]) -> int:
    """Return the exit code of the worst run: broken, then unknown, then not run. Without any row: unknown."""
    verdicts = {row.verdict for row in rows}
    for verdict, code in ((_BROKEN, EXIT_BROKEN), (_UNKNOWN, EXIT_UNKNOWN), (NOT_RUN, EXIT_CANNOT_RUN)):
        if verdict in verdicts:
            return code
    return EXIT_VALID if verdicts else EXIT_UNKNOWN


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a table for a terminal."""
    lines = [("workload", "faults", "verdict", "operations", "faults seen")]
    for row in rows:
        effects = f"{row.confirmed} of {row.injected}" if row.verdict != NOT_RUN else row.told[0]
        lines.append((row.workload, row.faults, row.verdict, f"{row.operations:,}", effects))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    texts = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=False)) + f"  {line[4]}"
        for line in lines
    ]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def read_rows(report: Path, profile: str) -> list[Row]:
    """Read the rows of an earlier report on the profile; empty without such a report. Raises OSError."""
    try:
        report_file = msgspec.json.decode(report.with_suffix(".json").read_bytes(), type=StoredVerdict)
    except (FileNotFoundError, msgspec.MsgspecError):
        return []
    return report_file.rows if report_file.profile == profile else []


def still_to_run(all_cells: Sequence[Cell], rows: Sequence[Row]) -> tuple[list[Cell], list[Row]]:
    """Split the runs of a profile: those without a valid row, and the valid rows of the others."""
    valid = {(row.workload, row.faults, row.seconds): row for row in rows if row.verdict == _VALID}
    cells_by_key = {(cell.workload, cell.faults, cell.seconds): cell for cell in all_cells}
    valid_rows = [row for key, row in valid.items() if key in cells_by_key]
    return [cell for key, cell in cells_by_key.items() if key not in valid], valid_rows


def without(rows: Sequence[Row], cell: Cell) -> list[Row]:
    """Return all rows except those of the run ``cell``."""
    key = (cell.workload, cell.faults, cell.seconds)
    return [row for row in rows if (row.workload, row.faults, row.seconds) != key]


def _by_day(rows: Sequence[Row]) -> list[str]:
    """The dates of the runs, for a report over several days; the software may have changed between them."""
    days = Counter(row.began[:10] for row in rows if row.began)
    if len(days) < 2:
        return []
    return ["Runs by day: " + ", ".join(f"{count} on {day}" for day, count in sorted(days.items())) + "."]


def write_report(report: Path, profile: str, rows: Sequence[Row], reasons: Sequence[str], *, run_count: int) -> None:
    """Write the page, and its rows as JSON next to it.

    ``reasons``: faults that are not available on this machine; ``run_count``: the number of runs in the profile.

    Raises OSError.
    """
    total = sum(row.operations for row in rows)
    faults = sum(row.confirmed for row in rows)
    lines = [
        "# Real brokers under faults",
        "",
        f"Written by `raftmq-jepsen matrix --profile {profile}`. For what is checked, and how, see "
        "[checking the promises](../jepsen.md).",
        f"The profile {profile}: {PROFILES[profile]}.",
        "",
        f"{len(rows)} of {run_count} runs, {total:,} operations checked, "
        f"{sum(row.acknowledged for row in rows):,} messages acknowledged, "
        f"{sum(row.compiled for row in rows):,} received by the compiled send path, "
        f"{faults} of {sum(row.injected for row in rows)} faults observed to take effect. "
        + ", ".join(
            f"{count} {verdict}"
            for verdict in (_VALID, _BROKEN, _UNKNOWN, NOT_RUN)
            if (count := sum(row.verdict == verdict for row in rows))
        )
        + ".",
        *_by_day(rows),
        "",
        "| workload | faults | seconds of faults | back end | verdict | operations | acknowledged | faults observed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.workload} | {row.faults} | {row.seconds:g} | {row.backend} | {row.verdict} | {row.operations:,} "
        f"| {row.acknowledged:,} | {row.confirmed} of {row.injected} |"
        for row in rows
    ]
    bad = [row for row in rows if row.verdict != _VALID]
    if bad:
        lines += ["", "## Not valid", ""]
        for row in bad:
            lines.append(f"- {row.workload} under {row.faults}: {row.verdict}. `{row.command}`")
            lines += [f"  - {line}" for line in row.told]
    if reasons:
        lines += ["", "## Not available on this machine", "", *(f"- {each}" for each in reasons)]
    lines += ["", "## Promises", "", "The promises of `docs/promises.md`, and how often these runs checked each.", ""]
    lines += promise_lines(rows, _VALID)
    lines += ["", "## Rare states", "", "Counted in the logs of brokers and in histories.", "", "| state | count |"]
    lines += ["|---|---|", *(f"| {state} | {_times_met(rows, state)} |" for state in STATES)]
    lines += ["", "## Commands of the runs", ""]
    lines += [f"- {row.began}, raftmq {row.version}, load {row.load}: `{row.command}`" for row in rows if row.command]
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("\n".join(lines) + "\n")
    content = msgspec.json.format(msgspec.json.encode(StoredVerdict(profile, list(rows))), indent=1)
    report.with_suffix(".json").write_bytes(content + b"\n")
