"""Clients and processes: forks, and programs that close nothing, each as a process that runs `forking_program`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.unit.client.fake_cluster import FakeCluster

PROGRAM = Path(__file__).with_name("forking_program.py")
SECONDS_MAX = 60


def run(name: str, cluster: FakeCluster) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), name, cluster.namesrv],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        cwd=Path(__file__).parents[3],
    )


def ignore(cluster: FakeCluster, topic: str) -> None:
    cluster.group.topics[topic] = 1
    cluster.leader.ignored_topics.add(topic)


@pytest.mark.parametrize(
    "name",
    [
        "made_before",
        "opened_before",
        "forked_in_c",
        "child_leaves_block",
        "opened_in_event_loop",
        "forked_on_trio",
        "pools",
    ],
)
def test_forked_process_opens_its_own_clients(threads: FakeCluster, name: str) -> None:
    ended = run(name, threads)
    assert ended.returncode == 0, ended.stderr


def test_forked_child_does_not_unregister_its_parent(threads: FakeCluster) -> None:
    ended = run("child_leaves_block", threads)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "left\n"
    goodbyes = [request.ext["clientID"] for request in threads.leader.received if request.code == 35]
    assert len(goodbyes) == 1, "the child said goodbye, too"
    [last] = [number for number, request in enumerate(threads.leader.received) if request.code == 310][-1:]
    assert threads.leader.received[last + 1 :][0].code == 35, "it came before the parent had sent its last message"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("end_of_file", 0),
        ("exits", 3),
        ("raises", 1),
        ("interrupted", -signal.SIGINT),
        ("terminated", -signal.SIGTERM),
    ],
)
def test_program_exits_although_it_does_not_close_its_clients(threads: FakeCluster, name: str, code: int) -> None:
    ended = run(name, threads)
    assert ended.returncode == code, ended.stderr
    assert "not_closed" not in ended.stderr
    said_goodbye = threads.leader.count(35) > 0
    assert said_goodbye == (name != "terminated")


def test_messages_in_flight_at_the_end_are_sent_or_named(threads: FakeCluster) -> None:
    ignore(threads, "mute")
    ended = run("pending", threads)
    assert ended.returncode == 0, ended.stderr
    assert threads.group.bodies("T") == [b"1", b"stored"]
    assert "not_closed" in ended.stderr
    assert "lost=1" in ended.stderr
    [warning] = [line for line in ended.stderr.splitlines() if "not_closed" in line]
    [shown], [pending] = re.findall(r"(\d+) in flight", warning), re.findall(r"pending=(\d+)", warning)
    assert shown == pending


@pytest.mark.parametrize(("name", "count"), [("loop_ends", 2), ("loop_stops", 1)])
def test_event_loop_that_ends_names_open_clients(threads: FakeCluster, name: str, count: int) -> None:
    ignore(threads, "mute")
    ended = run(name, threads)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("not_closed") == count
    assert ended.stderr.count("pending=1") == count
    assert ended.stderr.count("1 in flight") == count


FINALIZER: Final = """
import ctypes, os, signal, sys
from mq.client.net.forks import call_in_children, forks

seen = []
call_in_children(lambda: seen.append(forks()))
child = ctypes.PyDLL(None).fork() if sys.argv[1] == "in C" else os.fork()
if child == 0:
    signal.alarm(10)
    os._exit(0 if (forks(), seen) == (1, [1]) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("how", ["in C", "in Python"])
def test_finalizer_may_ask_for_forks_while_a_child_begins(how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FINALIZER, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
