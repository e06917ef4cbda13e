"""Each promise of docs/promises.md names the workloads that check it, and the report says how often they did."""

from __future__ import annotations

import re

from jepsen.deployments.cluster import ROOT
from jepsen.report.matrix import Row
from jepsen.report.promises import FAULTS, PROMISES, promise_lines
from jepsen.scenarios import SCENARIOS
from jepsen.schedule import KINDS
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
