"""How many functions a sent message walks through; the numbers may only be lowered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import pytest

from benchmarks.load.generators import ROOT
from mq.compiled import IS_COMPILED, PURE_PYTHON

pytestmark = pytest.mark.process

COMPILED_MAX: Final = {"per_round": 115, "per_message": 0}
PYTHON_MAX: Final = {"per_round": 128, "per_message": 7}


def hops(form: str) -> dict[str, int | str]:
    """What `benchmarks.hops` counts, in the compiled form or the other one."""
    environment = {**os.environ, PURE_PYTHON: "" if form == "compiled" else "1"}
    command = [sys.executable, "-m", "benchmarks.hops"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, int | str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("form", "most"), [("compiled", COMPILED_MAX), ("python", PYTHON_MAX)])
def test_sent_message_walks_through_few_functions(form: str, most: dict[str, int]) -> None:
    if form == "compiled" and not IS_COMPILED:
        pytest.skip("nothing is compiled: python -m mq.compiled")
    found = hops(form)
    assert found["form"] == form
    more = {name: found[name] for name, maximum in most.items() if int(found[name]) > maximum}
    assert not more, f"{more}, at most {most}: python -m benchmarks.hops --walk shows each function"
