"""What dead runs left is told by name, and what living runs have is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import cast

import pytest

from jepsen.deployments.cluster import open_cluster
from jepsen.deployments.leftovers import RUN_VARIABLE, is_held, lock_directory, mount_points, remove_leftovers, run_of
from jepsen.deployments.network import Network

MOUNTS = (
    "/dev/vda / ext4 rw,relatime 0 0",
    "/dev/loop0 /home/someone/store/run\\0401/rmqf-n0 ext4 rw,relatime 0 0",
    "tmpfs /home/someone/store/run\\0401/rmqf-small-n1 tmpfs rw,size=65536k 0 0",
    "nsfs /run/netns/rmqf-n0 nsfs rw 0 0",
    "/dev/loop1 /home/someone/rmqf/data ext4 rw,relatime 0 0",
)


def test_mounts_of_runs_are_listed_newest_first() -> None:
    run = Path("/home/someone/store/run 1")
    assert mount_points(MOUNTS) == [run / "rmqf-small-n1", run / "rmqf-n0"]


def test_namespace_of_a_live_run_is_not_a_leftover_mount() -> None:
    assert not [point for point in mount_points(MOUNTS) if "netns" in str(point)]


def test_environment_names_the_run_of_a_server() -> None:
    assert run_of(f"PATH=/bin\0{RUN_VARIABLE}=/store/run 1\0HOME=/\0".encode()) == Path("/store/run 1")
    assert run_of(b"PATH=/bin\0HOME=/\0") is None


def test_running_harness_locks_its_directory(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with lock_directory(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(BlockingIOError), lock_directory(tmp_path):
            pass
    assert not is_held(tmp_path)


def test_missing_directory_is_not_locked(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "gone")


def test_only_servers_of_dead_runs_are_killed(tmp_path: Path) -> None:
    dead, living = tmp_path / "dead", tmp_path / "living"
    children = []
    for directory in (dead, living):
        directory.mkdir()
        environment = {**os.environ, RUN_VARIABLE: str(directory)}
        children.append(subprocess.Popen(["sleep", "100"], env=environment, stdin=subprocess.DEVNULL))
    stopped, running = children
    try:
        with lock_directory(living):
            stopped.send_signal(signal.SIGSTOP)
            removed = remove_leftovers()
            assert f"process {stopped.pid} of {dead}" in removed
            assert stopped.wait(10) == -signal.SIGKILL
            assert running.poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_servers_start_only_in_a_locked_directory(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="for leftovers"):
        async with open_cluster(tmp_path, cast("Network", None), ("n0",)):
            pass
