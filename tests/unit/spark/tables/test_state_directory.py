"""The lock of a running pipeline: one process has it, and those that only ask keep nobody out."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from spark.tables.parquet_directory import Locked
from spark.tables.state_directory import StateDirectory


def test_second_process_of_a_pipeline_is_refused(tmp_path: Path) -> None:
    one, two = StateDirectory(tmp_path / "s"), StateDirectory(tmp_path / "s")
    assert not two.is_running()
    one.open()
    assert two.is_running()
    assert two.is_running()
    with pytest.raises(Locked, match="this pipeline is already running"):
        two.open()
    one.close()
    assert not two.is_running()
    two.open()
    two.close()


def test_run_starts_while_another_process_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory(tmp_path)
    state.open()
    state.close()
    asking = os.open(tmp_path / "running", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `raftmq table status` does for a moment
    waited: list[float] = []

    def until_answered(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            fcntl.flock(asking, fcntl.LOCK_UN)

    monkeypatch.setattr("spark.tables.state_directory.time.sleep", until_answered)
    state.open()
    assert len(waited) == 3
    assert StateDirectory(tmp_path).is_running()
    state.close()
    os.close(asking)


def test_waiting_for_the_lock_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "running").touch()
    asking = os.open(tmp_path / "running", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr("spark.tables.state_directory.time.sleep", lambda _: None)
    with pytest.raises(Locked):
        StateDirectory(tmp_path).open()
    os.close(asking)
