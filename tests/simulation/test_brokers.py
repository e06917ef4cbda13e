"""Brokers under random faults keep what they promise about messages, seed by seed."""

from __future__ import annotations

import itertools
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import main, regressions, simulate_seed
from chaos.broker_sim.log_oracle import CommittedRecord, Ledger
from chaos.broker_sim.workloads import WORKLOADS
from checkers.append_log import check_log
from checkers.delays import check_delays
from checkers.history import History, decode_events, gather
from checkers.verdict import Findings, Result
from mq.protocol.messages.records import StoredMessage

SEEDS = 3  # `make sim` and `make test-nightly` run 200
QUICK_SEEDS = 1
REGRESSIONS = 1
"""How many of a workload's seeds that broke something once run each time: what they found has tests with names."""


def regressions_of(workload: str) -> list[Any]:
    """The others are for the night."""
    seeds = regressions(workload)
    return [
        pytest.param(workload, seed, marks=[pytest.mark.nightly] if number >= REGRESSIONS else [])
        for number, seed in enumerate(seeds)
    ]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_few_seeds_quickly(workload: str) -> None:
    for seed in range(QUICK_SEEDS):
        outcome = simulate_seed(seed, 4.0, workload)
        assert outcome.broke is None
        assert outcome.acknowledged > 0


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_simulated_brokers_pass_many_seeds(workload: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broke = main(["--workload", workload, "--seeds", f"0-{SEEDS - 1}", "--report", str(tmp_path / "brokers")])
    assert not broke, capsys.readouterr().out
    report = json.loads((tmp_path / "brokers.json").read_text())
    assert report["acknowledged"] > 50 * SEEDS, "clients got next to nothing through"
    assert report["elections"] > 2 * SEEDS, "hardly any elections took place"
    if workload in ("delay", "dedup"):  # others keep more of their logs for what is open
        assert report["resets"] > 0, "nobody ever caught up by files"
    assert report["counts"]["outcome unknown"] > SEEDS


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "seed"), [each for workload in WORKLOADS for each in regressions_of(workload)])
def test_formerly_failing_seeds_pass(workload: str, seed: int) -> None:
    assert simulate_seed(seed, None, workload).broke is None


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [4.0, pytest.param(None, marks=pytest.mark.nightly)])
def test_seed_gives_the_same_run_after_other_runs(seconds: float | None) -> None:
    """Connections that are closed together must be so in an order of their own, not that of their addresses."""
    assert simulate_seed(32, seconds, "pop") == simulate_seed(32, seconds, "pop")


@pytest.mark.slow
def test_busy_processor_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = simulate_seed(1, 4.0, "mixed")
    seconds = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    assert simulate_seed(1, 4.0, "mixed") == quick


@pytest.mark.slow
def test_host_stall_changes_nothing() -> None:
    """The process stands still for 20 ms of every 50."""
    undisturbed = simulate_seed(1, 4.0, "mixed")
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.02))  # the stall itself
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        stalled = simulate_seed(1, 4.0, "mixed")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stalled == undisturbed


def test_recorded_history_is_readable_by_checkers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history"
    assert main(["--workload", "delay", "--seed", "1", "--seconds", "2", "--history", str(path)]) == 0
    with path.open("rb") as lines:
        history = gather(decode_events(lines))
    assert {"send", "schedule", "recall", "seek", "poll"} <= {operation.name for operation in history.operations}
    assert check_delays(history).counts["seen"]
    assert check_log(history).counts["messages read"]
    assert "BrokerScenario" in capsys.readouterr().out


def test_old_name_of_a_workload_is_understood(tmp_path: Path) -> None:
    """And its seeds draw what they drew under that name."""
    path = tmp_path / "history"
    assert main(["--workload", "everyday", "--seed", "1", "--seconds", "0.1", "--history", str(path)]) == 0
    assert b'"workload":"mixed"' in path.read_bytes().replace(b" ", b"")
    assert WORKLOADS["mixed"].drawn_as == "everyday"


def test_findings_of_checkers_end_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(history: History) -> Result:
        findings = Findings("lost", "nothing is lost")
        findings.add("lost", next(history.named("send")).value)
        return findings.result()

    monkeypatch.setattr(WORKLOADS["delay"], "checkers", (lost,))
    assert "lost: " in (simulate_seed(1, 2.0, "delay").broke or "")


@pytest.mark.parametrize("workload", ["mixed", "schedules"])
def test_message_stored_more_often_than_sent_ends_the_run(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories allow any number of messages of a value that was sent twice, and those of schedules are not judged."""

    def add_committed(self: Ledger, at: float, record: StoredMessage) -> CommittedRecord:
        commit = once(self, at, record)
        if commit.value:
            self.copies[record.topic][commit.value] += 2
        return commit

    once = Ledger.add_committed
    monkeypatch.setattr(Ledger, "add_committed", add_committed)
    assert "duplicate: " in (simulate_seed(1, 2.0, workload).broke or "")
