"""Tables of the harness: promises and their workloads, planted mistakes, faults by OpenChaos's names."""

from __future__ import annotations

import re
from random import Random

import pytest

from chaos.planted.__main__ import names
from jepsen.deployments.cluster import ROOT
from jepsen.nemeses import NEMESES
from jepsen.openchaos import OPENCHAOS, kinds_of
from jepsen.planted_bugs import BEGIN, END, HEAD, PAGE, ROWS, SCENARIO_ROWS, SCENARIOS_BEGIN, SCENARIOS_HEAD, put_lines
from jepsen.report.matrix import Row
from jepsen.report.promises import FAULTS, PROMISES, promise_lines
from jepsen.scenarios import SCENARIOS
from jepsen.schedule import CALM, KINDS, draw
from jepsen.workloads import WORKLOADS


def run(workload: str, faults: str, verdict: str = "valid") -> Row:
    return Row(workload, faults, 10.0, verdict, operations=100, compiled=70)


def line(rows: list[Row], what: str) -> str:
    (found,) = (each for each in promise_lines(rows, "valid") if each.startswith(f"| {what} |"))
    return found


def test_promises_name_existing_workloads_and_faults() -> None:
    for promise in PROMISES:
        assert set(promise.workloads) <= WORKLOADS.keys()
    assert FAULTS.keys() <= {promise.what for promise in PROMISES}
    assert {each for faults in FAULTS.values() for each in faults} <= KINDS.keys() | SCENARIOS.keys()


def test_every_workload_checks_a_promise() -> None:
    assert {workload for promise in PROMISES for workload in promise.workloads} == WORKLOADS.keys()


def test_page_lists_the_same_promises() -> None:
    page = (ROOT / "docs" / "promises.md").read_text()
    _, _, table = page.partition("| promise | workloads of `make jepsen` |\n|---|---|\n")
    rows = dict(re.findall(r"^\| (.*?) \| (.*?) \|$", table.partition("\n\n")[0], re.MULTILINE))
    assert list(rows) == [promise.what for promise in PROMISES]
    for promise in PROMISES:
        assert re.findall(r"\*([\w-]+)\*", rows[promise.what]) == list(promise.workloads)


def test_only_valid_runs_of_its_workloads_count_for_a_promise() -> None:
    rows = [run("pop", "kill"), run("ordered-pop", "kill, pause"), run("pop", "kill", "BROKEN"), run("log", "kill")]
    assert line(rows, "popped messages") == "| popped messages | *pop*, *ordered-pop*, *lite*, *grpc* | 2 | 200 | 140 |"
    assert line(rows, "stored or not") == "| stored or not | all | 3 | 300 | 210 |"
    assert line(rows, "transactional messages").endswith("| none | 0 | 0 |")


def test_promise_about_damage_counts_runs_with_damage() -> None:
    what = "damage is repaired, and neither served nor copied"
    rows = [run("log", "restart, damage"), run("log", "helix"), run("log", "partition")]
    assert line(rows, what).endswith("| 2 | 200 | 140 |")


def test_rows_name_existing_mistakes_and_workloads() -> None:
    for row in ROWS:
        assert row.mistake in names()
        assert row.workload in WORKLOADS
        assert row.nemesis in (*NEMESES, CALM)
    for row in SCENARIO_ROWS:
        assert row.mistake in names()
        assert row.workload in WORKLOADS
        assert row.scenario in SCENARIOS


def test_lines_replace_older_ones_and_leave_others() -> None:
    page = f"text\n{BEGIN}{HEAD}| `a` | old |\n| `c` | kept |\n{END}more\n"
    assert put_lines(page, ["| `b` | new |", "| `a` | new |"]) == (
        f"text\n{BEGIN}{HEAD}| `a` | new |\n| `b` | new |\n| `c` | kept |\n{END}more\n"
    )


def test_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no '<!-- written"):
        put_lines("text", [])


def test_page_has_the_table() -> None:
    assert put_lines(PAGE.read_text(), [])
    assert put_lines(PAGE.read_text(), [], begin=SCENARIOS_BEGIN, head=SCENARIOS_HEAD)


@pytest.mark.parametrize("name", OPENCHAOS)
def test_every_fault_is_one_of_ours_and_documented(name: str) -> None:
    kind, whats = OPENCHAOS[name]
    assert set(whats) <= {variant.what for variant in KINDS[kind]}
    page = (ROOT / "docs" / "jepsen.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` | `{kind}`:"))
    assert all(what in row for what in whats), f"{whats} are not all named in {row}"


def test_all_openchaos_faults_are_mapped() -> None:
    assert len(OPENCHAOS) == 15


def test_run_uses_only_the_requested_fault_variants() -> None:
    kinds = kinds_of(["major-suspend", "leader-suspend", "leader-kill"])
    steps = draw(Random(1), list(kinds), 60, kinds=kinds)
    assert {(step.kind, step.variant.what) for step in steps} == {
        ("pause", "leader and a follower"),
        ("pause", "leader"),
        ("kill", "leader"),
    }
