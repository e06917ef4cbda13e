"""The profile smoke of raftmq-jepsen reaches a verdict. `test_jepsen` has runs of the same kind each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checkers.history import decode_events, gather
from jepsen.deployments.cluster import ROOT
from jepsen.profiles import SMOKE, cells
from jepsen.run import HISTORY
from jepsen.workloads import WORKLOADS

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]


def test_first_cell_of_the_profile_smoke_is_valid(tmp_path: Path) -> None:
    cell = cells(SMOKE, list(WORKLOADS), [])[0]
    options = ["--workload", cell.workload, "--nemesis", ",".join(cell.nemeses), "--quick", "--time", "4"]
    command = [sys.executable, "-m", "jepsen", "run", *options, "--seed", "1", "--backend", "local"]
    done = subprocess.run([*command, "--store", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = tmp_path.iterdir()
    with (directory / HISTORY).open("rb") as lines:
        history = gather(decode_events(lines))
    assert {fault.kind for fault in history.faults} == set(cell.nemeses)
    assert all(fault.seen for fault in history.faults)
