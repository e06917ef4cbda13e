"""The cases of `make bench-gate` run; without callgrind nothing is counted, and what they check of themselves holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gate.__main__ import BASELINE
from benchmarks.workers import ROOT

pytestmark = pytest.mark.process


def test_all_cases_run(tmp_path: Path) -> None:
    counted = tmp_path / "counted.json"
    command = [sys.executable, "-m", "benchmarks.gate.cases", str(counted)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {name for name, messages in json.loads(counted.read_text()) if messages > 0}
    assert names == set(json.loads(BASELINE.read_text())["figures"])
