"""Profiles: everything that there is comes in them, and pieces add up."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from jepsen.profiles import (
    CI,
    GROUPS,
    NIGHTLY,
    NOT_TOGETHER,
    OVERHEAD_SECONDS,
    PROFILES,
    RELEASE,
    SMOKE,
    Cell,
    cells,
    part_of,
)
from jepsen.report.matrix import Row, read_rows, still_to_run, table, worst, write_report
from jepsen.report.rare_states import HANDLED
from jepsen.scenarios import SCENARIOS
from jepsen.schedule import CALM, KINDS, draw
from jepsen.workloads import WORKLOADS

ALL = [(scenario.name, scenario.kinds, scenario.workload) for scenario in SCENARIOS.values()]


@pytest.mark.parametrize("profile", [CI, NIGHTLY])
def test_profile_has_every_workload_and_every_fault(profile: str) -> None:
    planned = cells(profile, list(WORKLOADS), ALL)
    assert {cell.workload for cell in planned} == set(WORKLOADS)
    assert {kind for cell in planned for kind in cell.nemeses} >= set(KINDS)


def test_groups_are_all_faults_once() -> None:
    grouped = [kind for group in GROUPS for kind in group]
    assert sorted(grouped) == sorted(KINDS)


@pytest.mark.parametrize(("profile", "minutes"), [(SMOKE, 3), (CI, 10), (NIGHTLY, 120), (RELEASE, 480)])
def test_profile_fits_into_its_time(profile: str, minutes: float) -> None:
    planned = cells(profile, list(WORKLOADS), ALL)
    assert sum(cell.seconds + OVERHEAD_SECONDS for cell in planned) <= minutes * 60


def test_ci_is_meant_to_have_sixty_faults() -> None:
    planned = [cell for cell in cells(CI, list(WORKLOADS), ALL) if not cell.scenario]
    assert all(cell.quick for cell in planned)
    steps = [draw(Random(at), cell.nemeses, cell.seconds, quick=True) for at, cell in enumerate(planned)]
    assert sum(map(len, steps)) >= 60


@pytest.mark.parametrize("profile", [NIGHTLY, RELEASE])
def test_long_profiles_repeat_slow_faults(profile: str) -> None:
    planned = cells(profile, list(WORKLOADS), ALL)
    long = [(cell.workload, cell.faults) for cell in planned if cell.seconds >= 240]
    assert long == [("log", "power-loss-of-all"), ("log", "helix"), ("log", CALM)]


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_omit_excluded_combinations(profile: str) -> None:
    for cell in cells(profile, list(WORKLOADS), ALL):
        assert not any((cell.workload, kind) in NOT_TOGETHER for kind in cell.nemeses)


def test_parts_of_a_profile_cover_all_cells() -> None:
    planned = cells(NIGHTLY, list(WORKLOADS), ALL)
    pieces = [part_of(planned, part, 5) for part in range(1, 6)]
    assert sorted(repr(cell) for piece in pieces for cell in piece) == sorted(map(repr, planned))


HANDED_OVER = "leadership was handed over"


def row(verdict: str, **fields: object) -> Row:
    return Row(**{"workload": "log", "faults": "kill", "seconds": 10.0, "verdict": verdict, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["valid", "valid"], 0),
        (["valid", "BROKEN", "UNKNOWN", "not run"], 1),
        (["valid", "UNKNOWN", "not run"], 2),
        (["valid", "not run"], 3),
        ([], 2),
    ],
)
def test_exit_code_reports_the_worst_result(verdicts: list[str], code: int) -> None:
    assert worst([row(verdict) for verdict in verdicts]) == code


def test_report_is_made_of_all_pieces(tmp_path: Path) -> None:
    report = tmp_path / "jepsen.md"
    write_report(report, NIGHTLY, [row("valid", acknowledged=1000)], [], run_count=9)
    known = read_rows(report, NIGHTLY)
    write_report(
        report, NIGHTLY, [*known, row("BROKEN", faults="clock", told=["log: lost-write, 3 times"])], [], run_count=9
    )
    text = report.read_text()
    assert "| log | kill |" in text
    assert "lost-write, 3 times" in text
    assert "2 of 9 runs" in text
    assert len(read_rows(report, NIGHTLY)) == 2
    assert read_rows(report, CI) == [], "rows of another profile are not mixed in"


def test_report_of_several_days_counts_runs_by_day(tmp_path: Path) -> None:
    report = tmp_path / "jepsen.md"
    one = row("valid", began="2026-11-24 13:51:32 UTC")
    write_report(report, NIGHTLY, [one], [], run_count=9)
    assert "Runs by day" not in report.read_text()
    write_report(report, NIGHTLY, [one, row("valid", faults="clock", began="2026-11-26 02:00:00 UTC")], [], run_count=9)
    assert "Runs by day: 1 on 2026-11-24, 1 on 2026-11-26." in report.read_text()


def test_report_separates_unmet_rare_states_from_unsought_ones(tmp_path: Path) -> None:
    report = tmp_path / "jepsen.md"
    older = row("valid", met={HANDED_OVER: 2})
    write_report(report, NIGHTLY, [older], [], run_count=9)
    assert f"| {HANDED_OVER} | 2 |" in report.read_text()
    assert f"| {HANDLED} | not looked for |" in report.read_text()
    write_report(report, NIGHTLY, [older, row("valid", met={HANDED_OVER: 1, HANDLED: 0})], [], run_count=9)
    assert f"| {HANDED_OVER} | 3 |" in report.read_text()
    assert f"| {HANDLED} | never |" in report.read_text()


def test_resumed_profile_repeats_invalid_rows_and_drops_unplanned_rows() -> None:
    planned = [Cell("log", ("kill",), 10.0), Cell("log", ("clock",), 10.0), Cell("pop", ("kill",), 10.0)]
    rows = [row("valid"), row("not run", faults="clock"), row("valid", faults="removed since")]
    assert still_to_run(planned, rows) == (planned[1:], rows[:1])


def test_table_has_a_line_for_each_run() -> None:
    assert len(table([row("valid"), row("not run", told=["only root may"])]).splitlines()) == 4
