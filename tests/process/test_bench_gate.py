"""The cases of `make bench-gate` run; without callgrind nothing is counted, and what they check of themselves holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gate.__main__ import BASELINE, COMPILED, FORMS
from benchmarks.load.generators import ROOT
from mq.compiled import IS_COMPILED, PURE_PYTHON

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_gate_runs_all_cases(tmp_path: Path, form: str) -> None:
    if form == COMPILED and not IS_COMPILED:
        pytest.skip("not compiled: python -m mq.compiled")
    counted = tmp_path / "counted.json"
    command = [sys.executable, "-m", "benchmarks.gate.cases", str(counted)]
    environment = {**os.environ, "PYTHONHASHSEED": "0", PURE_PYTHON: "" if form == COMPILED else "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {name for name, messages in json.loads(counted.read_text()) if messages > 0}
    assert names == set(json.loads(BASELINE.read_text())["figures"][form])
