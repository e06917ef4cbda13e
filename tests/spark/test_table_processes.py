"""`raftmq table` as people run it: real processes that are scraped, stopped, killed, and run on a cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark.tables.pipeline import read_pipeline
from spark.tables.shipped_code import NAME
from spark.tables.status import table_status
from tests.spark.spark_cluster import free_port, standalone
from tests.spark.table_commands import BATCH, SECONDS_MAX, Place, bare_python, is_alive, wait_until

pytestmark = pytest.mark.nightly
LOCAL = ("--master", "local[2]", "--driver-memory", "1g")


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {line.partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("raftmq_table_")}


def test_pipeline_serves_metrics_while_working_and_waiting(place: Place) -> None:
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
    assert "this pipeline is already running" in second.errors()
    first.process.send_signal(signal.SIGTERM)  # it waits for the next hour
    assert first.ended() == 0, first.errors()
    assert json.loads(first.printed[-1])["messages"] == 3 * BATCH
    assert not place.is_running()


def test_running_commit_finishes_after_a_signal(place: Place) -> None:
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


def test_signal_ends_a_start_that_a_cluster_does_not_answer(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(SECONDS_MAX)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        (place.directory / "yarn-site.xml").write_text(
            "<configuration><property><name>yarn.resourcemanager.address</name>"
            f"<value>{address}</value></property></configuration>"
        )
        environment = {"HADOOP_CONF_DIR": str(place.directory)}
        started = place.start("run", place.file("yarn", "spark: {spark.master: yarn}"), environment=environment)
        with silent.accept()[0]:
            driver = started.driver()
            started.process.send_signal(signal.SIGINT)
            assert started.ended() == 0, started.errors()
    assert "Spark has not started yet: nothing was read or written" in started.errors()
    wait_until(lambda: not is_alive(driver) and not place.is_running(), 60, "the driver goes on")


def test_driver_of_a_killed_command_releases_the_table(place: Place) -> None:
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


def on_cluster(place: Place, url: str) -> Path:
    """A pipeline whose executors have an interpreter without this package."""
    python = bare_python(place.directory / "python")
    return place.file(
        "cluster",
        f"spark: {{spark.master: '{url}', spark.executor.memory: 512m, spark.driver.memory: 1g, "
        f"spark.driver.host: 127.0.0.1, spark.driver.bindAddress: 127.0.0.1, spark.pyspark.python: '{python}'}}",
    )


def test_pipeline_runs_on_a_cluster_of_spark(place: Place, tmp_path: Path) -> None:
    place.send(2 * BATCH)
    with standalone(tmp_path) as url:
        ran: Any = place.start("run", on_cluster(place, url), "--json", environment={"PYTHONPATH": ""})
        assert ran.ended() == 0, ran.errors()
    assert json.loads(ran.printed[-1])["messages"] == 2 * BATCH
    assert place.ids() == Counter(range(2 * BATCH))
    assert list((tmp_path / "work").glob(f"app-*/0/{NAME}")), "no executor got the code"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a process a directory of its own")
def test_pipeline_does_not_commit_to_a_directory_that_executors_do_not_share(place: Place, tmp_path: Path) -> None:
    place.send(BATCH)
    table = place.directory / "table"
    table.mkdir()
    with standalone(
        tmp_path, "unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(table)
    ) as url:
        file = on_cluster(place, url)
        apart = place.start("run", file, environment={"PYTHONPATH": ""})
        assert apart.ended() == 1, apart.errors()
        assert f"has 0 of the {BATCH} rows that tasks wrote: nothing of this commit is in the table" in apart.errors()
    assert place.ids() == Counter()
    together = place.start("run", file, *LOCAL)
    assert together.ended() == 0, together.errors()
    assert place.ids() == Counter(range(BATCH))
