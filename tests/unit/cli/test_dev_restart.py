"""`raftmq dev --restart`: another process asks the one that runs a group to restart a replica."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from mq.cli.dev_restart import ask_restart, find_group, serve_restarts
from mq.local_cluster import DevCluster, ServersFailed
from mq.local_cluster.ports import LOCK_FILE


class Group:
    """A group that a process runs: it keeps what was done with its replicas."""

    node_ids = ("n0", "n1", "n2")

    def __init__(self, directory: Path, fails: str = "") -> None:
        self.directory = directory
        self.fails = fails
        self.done: list[str] = []

    async def stop(self, node_id: str) -> None:
        await trio.sleep(1)  # a process takes its time, here on the clock of the test
        self.done.append(f"stop {node_id}")

    async def start(self, node_id: str) -> None:
        await trio.sleep(1)  # a process takes its time, here on the clock of the test
        self.done.append(f"start {node_id}")

    async def wait_ready(self) -> None:
        await trio.sleep(1)  # a process takes its time, here on the clock of the test
        if self.fails:
            raise ServersFailed(self.fails)
        self.done.append("ready")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The directory of a group that runs."""
    for node_id in Group.node_ids:
        (tmp_path / node_id).mkdir()
    with (tmp_path / LOCK_FILE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


async def test_restart_stops_and_starts_a_replica_and_waits(held: Path, autojump_clock: Any) -> None:
    group = Group(held)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_restarts, [cast("DevCluster", group)])
        await ask_restart(held, "n1")
        await ask_restart(held, "n1")
        nursery.cancel_scope.cancel()
    assert group.done == ["stop n1", "start n1", "ready"] * 2
    assert [each.name for each in (held / "restarts").iterdir()] == ["n1.lock"], "no request, and no answer"
    assert set(os.listdir(held)) == {*Group.node_ids, LOCK_FILE, "restarts"}, "nothing else is touched"


async def test_failed_restart_reports_its_reason(held: Path, autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_restarts, [cast("DevCluster", Group(held, fails="n1 stopped with exit code 2"))])
        with pytest.raises(ServersFailed, match=r"n1 was not restarted: n1 stopped with exit code 2"):
            await ask_restart(held, "n1")
        nursery.cancel_scope.cancel()


async def test_second_restart_of_one_replica_is_refused(held: Path, autojump_clock: Any) -> None:
    group = Group(held)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_restarts, [cast("DevCluster", group)])
        async with trio.open_nursery() as first:
            first.start_soon(ask_restart, held, "n1")
            await trio.sleep(0.1)  # on the clock of the test
            with pytest.raises(ServersFailed, match="another command is restarting n1"):
                await ask_restart(held, "n1")
        nursery.cancel_scope.cancel()
    assert group.done == ["stop n1", "start n1", "ready"]


async def test_restart_fails_without_an_answer(
    held: Path, tmp_path_factory: pytest.TempPathFactory, autojump_clock: Any
) -> None:
    with pytest.raises(ServersFailed, match="no raftmq dev runs in"):
        await ask_restart(tmp_path_factory.mktemp("idle"), "n1")
    with pytest.raises(ServersFailed, match="no answer within"):
        await ask_restart(held, "n1")
    assert not (held / "restarts" / "n1").exists(), "the next raftmq dev must not restart it"


def test_restart_resolves_the_named_replica(held: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    groups = [("broker-a", held), ("broker-b", held)]
    (held / "restarts").mkdir()  # of an earlier restart
    assert find_group(held, groups, "n1") == (held, "n1")
    assert find_group(held, groups, "broker-b:n2") == (held, "n2")
    for wanted, reason in (
        ("n7", "no replica"),
        ("broker-c:n0", "no group broker-c"),
        ("", "no replica"),
        ("a:", "no"),
        ("..", "no replica"),
        ("broker-b:restarts", "no replica"),
    ):
        with pytest.raises(ServersFailed, match=reason):
            find_group(held, groups, wanted)
    with pytest.raises(ServersFailed, match="start raftmq dev"):
        find_group(held, [], "n1")
