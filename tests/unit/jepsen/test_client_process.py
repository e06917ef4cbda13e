"""Clients in processes of their own: what they tell goes to the history, also when they are killed in between."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from checkers.history import History, decode_events, gather
from checkers.verdict import Verdict
from jepsen import clients
from jepsen.nemeses.descriptors import open_files
from jepsen.nemeses.resources import room_made
from jepsen.recorder import Recorder
from jepsen.report.page import page
from jepsen.workloads.client_process import serve_client_process
from jepsen.workloads.queue import QueueWorkload

ANSWERS_ONE_AND_DIES = """
import json, sys
def tell(**told): print(json.dumps(told), flush=True)
tell(event="ready")
first = json.loads(sys.stdin.readline())
tell(event="sent", value=first["value"], queue=1, offset=7)
tell(event="received", queue=1, offset=7, body=first["body"], tag=first["tag"], property=first["property"])
sys.stdin.readline()
"""


class FakeCluster:
    """Has client processes and no servers; after ``lives`` of them, no more is started."""

    def __init__(self, nursery: trio.Nursery, lives: int) -> None:
        self._nursery = nursery
        self._lives = lives
        self.started: list[trio.Process] = []
        self.over = trio.Event()

    async def start_client(self, name: str, command: list[str]) -> trio.Process:
        if len(self.started) == self._lives:
            self.over.set()
            await trio.sleep_forever()
        run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        self.started.append(await self._nursery.start(run))
        return self.started[-1]

    def client_joined(self, name: str) -> None:
        assert name == "client0"

    async def kill(self, name: str) -> None:
        self.started[-1].kill()
        await self.started[-1].wait()


async def _history_of(directory: Path, lives: int) -> History:
    path = directory / "history.jsonl"
    with Recorder(path, _now) as recorder:
        async with trio.open_nursery() as nursery:
            cluster = FakeCluster(nursery, lives)
            workload = QueueWorkload(cast("Any", cluster), recorder, random.Random(1))
            command = [sys.executable, "-c", ANSWERS_ONE_AND_DIES]
            nursery.start_soon(serve_client_process, workload, "client0", command)
            await cluster.over.wait()
            nursery.cancel_scope.cancel()
    with path.open("rb") as lines:
        return gather(decode_events(lines))


_ticks = iter(range(10**9))


def _now() -> int:
    return next(_ticks)


async def test_send_under_way_when_a_client_dies_is_unknown(tmp_path: Path) -> None:
    history = await _history_of(tmp_path, 1)
    outcomes = [send.outcome for send in history.named("send")]
    assert outcomes[:2] == ["ok", "info"]
    assert all(send.again for send in history.named("send")), "a client library may have repeated any of them"
    (received, *_) = history.named("receive")
    assert (received.queue, received.offset) == ("Queue/1", 7)
    assert received.result == next(history.named("send")).value


async def test_death_of_a_member_explains_redelivered_messages(tmp_path: Path) -> None:
    history = await _history_of(tmp_path, 2)
    assert [join.outcome for join in history.named("join")][:2] == ["ok", "ok"]
    assert [leave.outcome for leave in history.named("leave")][:2] == ["info", "info"]


async def test_page_lists_participants_and_the_missing_java_client(tmp_path: Path) -> None:
    history = await _history_of(tmp_path, 1)
    history.plan.update(workload="queue", java="not installed: java")
    text = page(history, Verdict([]))
    assert "client0 sent 1 messages and received 1" in text
    assert "Java client did not run: not installed: java" in text


def test_java_client_takes_part_with_the_newest_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ROOT", tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/java")
    assert "make interop" in str(clients.java_missing(()))
    for version in ("java4", "java5"):
        (tmp_path / ".interop" / version / "lib").mkdir(parents=True)
        (tmp_path / ".interop" / version / "lib" / "rocketmq-client-1.jar").touch()
    compiled = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: compiled.append(command))
    command = clients.java_program("h:1;h:2", "T", "g", tmp_path)["java"]
    assert f"{tmp_path}/.interop/java5/jepsen:{tmp_path}/.interop/java5/lib/*" in command
    assert [each[0] for each in compiled] == ["javac"]
    assert command[-3:] == ["h:1;h:2", "T", "g"]


def test_open_files_of_this_process_are_counted() -> None:
    before = open_files(os.getpid())
    with Path("/dev/null").open():
        assert open_files(os.getpid()) == before + 1


def test_memory_limit_hits_are_read_and_other_counts_ignored() -> None:
    assert room_made("low 0\nhigh 3\nmax 12\noom 1\n") == 12
    assert room_made("low 0\n") == 0
