"""The demonstration in small, as a user starts it: real processes, a real SIGKILL."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.process
def test_demo_loses_nothing_when_the_leader_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "mq.cli", "demo", "--lines", "4000", "--dir", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        env={"COLUMNS": "120", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    rows = dict(re.findall(r"^│ (\S.*?)\s+│\s*(\S.*?)\s*│$", done.stdout, re.MULTILINE))
    assert rows["sent"] == "4,000"
    assert rows["lost"] == "0"
    assert rows["out of order within a queue"] == "0"
    assert rows["changed or misplaced"] == "0"
    killed, _, leads = rows["leader killed -> new leader"].partition(" -> ")
    assert killed != leads
    assert f"dev --dir {directory} --console" in done.stdout
    assert "find the message with the key 2000" in done.stdout


@pytest.mark.process
def test_demo_refuses_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("do not touch")
    done = subprocess.run(
        [sys.executable, "-m", "mq.cli", "demo", "--dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
