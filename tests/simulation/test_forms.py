"""The compiled modules and their references in Python give the same events, seed by seed, under all faults.

The references run in a process of their own, with other hashes: the order of sets and hashes differs between processes
and must not matter, nor may real clocks. Where nothing is compiled, that is what these tests compare.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from chaos.__main__ import COMPILED, LOGS, PYTHON, main, simulate_seed
from chaos.broker_sim.workloads import WORKLOADS
from mq.compiled import ALL_COMPILED, PURE_PYTHON

ALL_WORKLOADS = (*LOGS, *WORKLOADS)
SECONDS = 3.0
LONG_SECONDS = 5.0
NIGHTLY_SECONDS = 20.0
SEED = 7
QUICK = ("log", "mixed")
"""One of the log and one of brokers; `make test-all` has whole runs of all workloads."""
OTHER_FORM = """
import sys
from chaos.__main__ import form, simulate_seed
print(form())
for workload in sys.argv[3:]:
    print(repr(simulate_seed(int(sys.argv[1]), float(sys.argv[2]), workload)), flush=True)
"""

compiled = pytest.mark.skipif(not ALL_COMPILED, reason="not compiled: python -m mq.compiled")


def outcomes_in_python(seed: int, seconds: float, workloads: tuple[str, ...]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_FORM, str(seed), str(seconds), *workloads],
        env={**os.environ, PURE_PYTHON: "1", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.splitlines()
    assert found.pop(0) == PYTHON
    return found


def test_both_forms_produce_the_same_events() -> None:
    python = outcomes_in_python(SEED, SECONDS, QUICK)
    faults: Counter[str] = Counter()
    for workload, expected in zip(QUICK, python, strict=True):
        outcome = simulate_seed(SEED, SECONDS, workload)
        assert repr(outcome) == expected, f"python -m chaos --workload {workload} --seed {SEED} --trace --form python"
        faults.update(outcome.counts)
    for fault in ("partial receives", "receives of nothing", "partial sends"):
        assert faults[fault] > 10, f"{fault} never happened"


@pytest.fixture(scope="module")
def long_runs(request: pytest.FixtureRequest) -> dict[str, str]:
    """What a process with the references says of the workloads that this session compares, all in one process."""
    wanted = [
        str(item.callspec.params["workload"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "long_runs" in item.fixturenames
    ]
    return dict(zip(wanted, outcomes_in_python(0, LONG_SECONDS, tuple(wanted)), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("workload", ALL_WORKLOADS)
def test_both_forms_produce_the_same_events_in_long_runs(workload: str, long_runs: dict[str, str]) -> None:
    assert repr(simulate_seed(0, LONG_SECONDS, workload)) == long_runs[workload]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workload", ALL_WORKLOADS)
def test_both_forms_produce_the_same_events_in_whole_runs(workload: str, seed: int) -> None:
    (python,) = outcomes_in_python(seed, NIGHTLY_SECONDS, (workload,))
    assert repr(simulate_seed(seed, NIGHTLY_SECONDS, workload)) == python


@compiled
def test_command_line_runs_the_requested_form(capfd: pytest.CaptureFixture[str]) -> None:
    for name in (COMPILED, PYTHON):
        assert main(["--seed", "1", "--seconds", "0.5", "--form", name]) == 0
    compiled, python = [line for line in capfd.readouterr().out.splitlines() if line.startswith("RunResult")]
    assert compiled == python


@compiled
def test_command_line_refuses_the_compiled_form_if_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chaos.__main__.ALL_COMPILED", False)
    monkeypatch.delenv(PURE_PYTHON, raising=False)
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--form", COMPILED])
    assert "nothing is compiled" in capsys.readouterr().err
