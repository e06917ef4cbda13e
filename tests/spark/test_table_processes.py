"""`raftmq table` as people run it: real processes that are scraped, stopped, killed, and run on a cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pyspark
import pytest

from spark.tables.pipeline import read_pipeline
from spark.tables.state_directory import StateDirectory
from spark.tables.status import table_status
from tests.spark.stage import Stage
from tests.spark.table_commands import ROOT, SECONDS_MAX, TableCommand, is_alive

pytestmark = pytest.mark.nightly
LOCAL = ("--master", "local[2]", "--driver-memory", "1g")
BATCH = 1000


class Place:
    """A topic, and a directory with pipelines that write the same table."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self._stage = stage
        self.topic = stage.topic("Orders", 2)
        self.directory = directory
        self.commands: list[TableCommand] = []
        self._sent = 0

    def send(self, count: int) -> None:
        self._stage.send(self.topic, [b'{"id": %d}' % (self._sent + number) for number in range(count)])
        self._sent += count

    def file(self, name: str, more: str) -> Path:
        path = self.directory / f"{name}.yaml"
        path.write_text(
            f"name: t\nnamesrv: {self._stage.namesrv}\ntopic: {self.topic}\nmax_messages_per_commit: {BATCH}\n"
            f"decode: {{format: json, schema: {{id: bigint}}}}\ntable: {{format: parquet, location: table}}\n{more}\n"
        )
        return path

    def start(self, *arguments: str | Path, environment: dict[str, str] | None = None) -> TableCommand:
        started = TableCommand(self.directory / "errors.log", *arguments, environment=environment)
        self.commands.append(started)
        return started

    def ids(self) -> Counter[int]:
        """How often each message is a row."""
        files = [path for path in (self.directory / "table").rglob("*.parquet") if "_raftmq" not in path.parts]
        return Counter(number for path in files for number in pyarrow.parquet.read_table(path)["id"].to_pylist())

    def is_running(self) -> bool:
        return StateDirectory(self.directory / "table" / "_raftmq").is_running()


@pytest.fixture
def place(stage: Stage, tmp_path: Path) -> Iterator[Place]:
    made = Place(stage, tmp_path)
    yield made
    for each in made.commands:
        each.close()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def wait_until(is_so: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {line.partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("raftmq_table_")}


def test_a_pipeline_is_scraped_while_it_works_and_while_it_waits(place: Place) -> None:
    place.send(3 * BATCH)
    port = free_port()
    hourly = place.file("hourly", f"trigger: every 1 hour\nmetrics_port: {port}")
    first = place.start("run", hourly, "--json", *LOCAL)
    first.until(lambda told: told.get("commit") == 1 and "rate" in told)
    assert scraped(port)["raftmq_table_commits_total"] >= 1  # beside the next commit
    last = first.until(lambda told: told.get("left") == 0)
    assert (last["commit"], last["total"], last["dead"]) == (3, 3 * BATCH, 0)
    place.send(5)
    found = scraped(port)
    assert found["raftmq_table_messages_total"] == 3 * BATCH
    assert found["raftmq_table_commit_seconds_count"] == 3
    assert found["raftmq_table_lag_messages"] == found["raftmq_table_dead_letters_total"] == 0
    status = table_status(read_pipeline(hourly), int(time.time() * 1000))
    assert (status["running"], status["commit"], status["lag_messages"]) == (True, 3, 5)
    second = place.start("run", hourly, *LOCAL)
    assert second.ended() == 2
    assert "this pipeline runs already" in second.errors()
    first.process.send_signal(signal.SIGTERM)  # it waits for the next hour
    assert first.ended() == 0, first.errors()
    assert json.loads(first.printed[-1])["messages"] == 3 * BATCH
    assert not place.is_running()


def test_a_signal_lets_the_commit_end_that_is_being_made(place: Place) -> None:
    place.send(6 * BATCH)
    file = place.file("once", "trigger: once")
    first = place.start("run", file, "--json", *LOCAL)
    first.until(lambda told: "opened" in told)
    time.sleep(1)  # a first commit takes longer
    first.process.send_signal(signal.SIGTERM)
    assert first.ended() == 0, first.errors()
    commits = [told for line in first.printed if "rate" in (told := json.loads(line))]
    assert len(commits) < 6
    assert not place.is_running()
    assert sum(place.ids().values()) == sum(each["messages"] for each in commits)
    second = place.start("run", file, *LOCAL)
    assert second.ended() == 0, second.errors()
    assert second.printed[-1].startswith("done: ")
    assert place.ids() == Counter(range(6 * BATCH))


def test_a_driver_whose_command_is_killed_ends_and_releases_the_table(place: Place) -> None:
    place.send(6 * BATCH)
    file = place.file("once", "trigger: once")
    first = place.start("run", file, "--json", *LOCAL)
    first.until(lambda told: "rate" in told)
    driver = first.driver()
    first.process.kill()
    wait_until(lambda: not is_alive(driver) and not place.is_running(), 60, "the driver goes on")
    assert sum(place.ids().values()) < 6 * BATCH
    second = place.start("run", file, *LOCAL)
    assert second.ended() == 0, second.errors()
    assert place.ids() == Counter(range(6 * BATCH))
    verified = place.start("verify", file, *LOCAL)
    assert verified.ended() == 0, verified.errors()
    assert verified.printed[-1].startswith("the table and its topic are equal up to commit ")


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and a worker of Spark on this machine; the URL of the master."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
    deploy = "org.apache.spark.deploy"
    programs = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0", url],
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (directory / "spark.log").open("ab") as log:
            for program in programs:
                command = [str(home / "bin" / "spark-class"), *program]
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=directory))
        text = (directory / "spark.log").read_text
        wait_until(lambda: "Successfully registered with master" in text(), SECONDS_MAX, "no worker of Spark")
        yield url
    finally:
        for each in reversed(started):
            each.terminate()
            each.wait(60)


def shipped(directory: Path) -> tuple[str, dict[str, str]]:
    """This package as a zip file, and an environment whose executors have everything else: settings and variables."""
    with zipfile.ZipFile(directory / "raftmq.zip", "w") as made:
        for path in (*(each for name in ("mq", "raftlog", "spark") for each in (ROOT / name).rglob("*.py")),):
            made.write(path, path.relative_to(ROOT))
    python = directory / "python"
    installed = sysconfig.get_path("purelib")  # without what .pth files add, such as this checkout
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{installed}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return ", spark.submit.pyFiles: raftmq.zip", {"PYSPARK_PYTHON": str(python), "PYTHONPATH": ""}


@pytest.mark.parametrize("is_shipped", [False, True], ids=["installed", "shipped"])
def test_a_pipeline_runs_on_a_cluster_of_spark(place: Place, tmp_path: Path, is_shipped: bool) -> None:
    place.send(2 * BATCH)
    settings, environment = shipped(place.directory) if is_shipped else ("", {})
    with standalone(tmp_path) as url:
        file = place.file(
            "cluster",
            f"spark: {{spark.master: '{url}', spark.executor.memory: 512m, spark.driver.memory: 1g, "
            f"spark.driver.host: 127.0.0.1, spark.driver.bindAddress: 127.0.0.1{settings}}}",
        )
        ran: Any = place.start("run", file, "--json", environment=environment)
        assert ran.ended() == 0, ran.errors()
    assert json.loads(ran.printed[-1])["messages"] == 2 * BATCH
    assert place.ids() == Counter(range(2 * BATCH))
    assert list((tmp_path / "work").glob("app-*/0")), "no executor ran"
    assert bool(list((tmp_path / "work").glob("app-*/0/raftmq.zip"))) == is_shipped
