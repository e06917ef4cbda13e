"""Groups under random faults keep their promises, seed by seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.__main__ import main, regressions
from chaos.log_sim.busy_host import draw_busy_host
from chaos.log_sim.cluster import RunResult, simulate
from chaos.log_sim.schedule import draw_scenario

HOURS = 0.25  # `make sim HOURS=50` for long
SEEDS_MIN = 50


def test_a_few_seeds_quickly() -> None:
    for seed in range(10):
        assert simulate(draw_scenario(seed, 4.0)).broke is None


@pytest.mark.slow
def test_simulator_passes_hours_of_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seeds from 0 on, on all processors, until enough time was simulated."""
    broke = main(["--hours", str(HOURS), "--report", str(tmp_path / "soak")])
    assert not broke, capsys.readouterr().out
    report = json.loads((tmp_path / "soak.json").read_text())
    assert report["seeds"] >= SEEDS_MIN
    assert report["seconds"] >= HOURS * 3600
    assert report["acknowledged"] > 5 * report["seeds"], "clients got next to nothing through"
    assert report["elections"] > 2 * report["seeds"], "hardly any elections took place"


@pytest.mark.slow
@pytest.mark.parametrize("seed", regressions())
def test_formerly_failing_seeds_pass(seed: int) -> None:
    assert simulate(draw_scenario(seed)).broke is None


@pytest.mark.slow
def test_equal_seeds_give_equal_runs_in_any_process() -> None:
    """The order of sets and hashes differs between processes and must not matter."""

    def run(hash_seed: str) -> str:
        code = (
            "from chaos.log_sim.cluster import simulate; from chaos.log_sim.schedule import draw_scenario;"
            "print([simulate(draw_scenario(seed, 4.0)) for seed in range(20)])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run("1") == run("2")


@pytest.mark.slow
def test_stalls_cost_no_leadership() -> None:
    """Nodes that do not run for a while, alone or all together, while network and disks are sound."""
    kinds = set()
    for seed in (1, 5, 7):
        scenario = draw_busy_host(seed, 25.0)
        kinds |= set(scenario.kinds)
        outcome = simulate(scenario)
        assert outcome.broke is None
        assert outcome.elections == 1
        assert outcome.effective["Stall"]
    assert len(kinds) == 3


def test_different_seeds_differ() -> None:
    outcomes: list[RunResult] = [simulate(draw_scenario(seed, 1.0)) for seed in (1, 2)]
    assert outcomes[0].digest != outcomes[1].digest


def test_command_line_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0-1", "--seconds", "1"]) == 0
    assert "2 seeds" in capsys.readouterr().out
    assert main(["--seed", "1", "--seconds", "1"]) == 0
    assert "Scenario" in capsys.readouterr().out


def test_command_line_refuses_an_invalid_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--seeds", "7"])
    assert stopped.value.code == 2
    assert "not a range" in capsys.readouterr().err


@pytest.mark.slow
def test_violated_promise_prints_a_command_to_reproduce_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from raftlog.consensus.raft import RaftCore

    monkeypatch.setattr(RaftCore, "_verified_durable", property(lambda core: core._verified_end))
    report = tmp_path / "simulation.md"
    assert main(["--seeds", "0-9", "--jobs", "1", "--first", "--report", str(report)]) == 1
    output = capsys.readouterr().out
    assert "repeat it: python -m chaos --seed" in output
    assert "durability" in output
    assert "python -m chaos --seed" in report.read_text()
    assert json.loads(report.with_suffix(".json").read_text())["broken"]


def test_budget_and_hours_end_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hours", "0.0001", "--seconds", "0.5", "--jobs", "1"]) == 0
    assert "simulated hours" in capsys.readouterr().out
    assert main(["--seeds", "0-999", "--seconds", "0.1", "--jobs", "1", "--budget-seconds", "0.01"]) == 0
    assert "1 seeds" in capsys.readouterr().out
