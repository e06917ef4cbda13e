"""``deploy/at-speed.sh``: a command runs as on a slower machine, in all that it waits for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAITS = """
import asyncio, select, subprocess, sys, threading, time
import trio
wall, steady = time.time(), time.monotonic()
time.sleep(10)
trio.run(trio.sleep, 10)
asyncio.run(asyncio.sleep(10))
threading.Event().wait(10)
select.select([], [], [], 10)
subprocess.run([sys.executable, "-c", f"import time; time.sleep(10); assert time.time() >= {wall} + 60"], check=True)
assert time.time() >= wall + 60
assert time.monotonic() >= steady + 60
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing")
def test_waits_of_a_program_are_sped_up() -> None:
    began = time.monotonic()
    subprocess.run([ROOT / "deploy" / "at-speed.sh", "0.01", sys.executable, "-c", WAITS], check=True)
    assert time.monotonic() < began + 60
