"""SIGKILL of the driver at random points: nothing is missing and nothing is twice, in files and in the sink's topic."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stage import Stage, bodies_of

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("RAFTMQ_SPARK_KILLS", "2"))
"""Each takes about ten seconds: a driver has to start."""

SECONDS_MAX = 180
MESSAGES_PER_LIFE = 600


def begin(stage: Stage, topic: str, directory: Path, sink: str = "") -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "tests.spark.archive_job", stage.namesrv, topic, str(directory), sink]
    with (directory / "driver.log").open("ab") as log:
        return subprocess.Popen(arguments, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


def batches(directory: Path) -> int:
    """The number of the last micro-batch that the checkpoint knows, -1 before the first."""
    found = [int(path.name) for path in (directory / "checkpoint" / "offsets").glob("[0-9]*")]
    return max(found, default=-1)


def last_words(directory: Path) -> str:
    """The end of what the drivers have logged."""
    return (directory / "driver.log").read_text()[-3000:]


def wait_until(
    driver: subprocess.Popen[bytes], directory: Path, is_so: Callable[[], object], what: str, pause: float = 0.02
) -> None:
    # With many kills there is a backlog of many micro-batches: time counts from the latest of them.
    reached, deadline = batches(directory), time.monotonic() + SECONDS_MAX
    while not is_so():
        assert driver.poll() is None, last_words(directory)
        if (now := batches(directory)) > reached:
            reached, deadline = now, time.monotonic() + SECONDS_MAX
        late = f"no {what} and no micro-batch behind {reached} within {SECONDS_MAX} s"
        assert time.monotonic() < deadline, f"{late}: {last_words(directory)}"
        time.sleep(pause)


def wait_for_batch(driver: subprocess.Popen[bytes], directory: Path, number: int) -> None:
    wait_until(driver, directory, lambda: batches(directory) >= number, f"micro-batch {number}")


def kill(driver: subprocess.Popen[bytes]) -> None:
    """Spark and its workers with it."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.parametrize("written_to", ["files", "topic"])
def test_drivers_that_are_killed_lose_and_repeat_nothing(
    session: Any, read: Callable[..., Any], stage: Stage, tmp_path: Path, written_to: str
) -> None:
    rng = random.Random(7)
    topic = stage.topic(queues=3)
    sink = stage.topic(queues=2) if written_to == "topic" else ""
    stage.send(topic, [b"before"] * 50)
    sent: list[bytes] = []

    def rows() -> Counter[bytes]:
        if sink:
            return bodies_of(read(subscribe=sink).select("body").collect())
        if not (tmp_path / "rows" / "_spark_metadata").exists():
            return Counter()
        return bodies_of(session.read.parquet(str(tmp_path / "rows")).select("body").collect())

    def send(count: int) -> None:
        bodies = [b"%d" % number for number in range(len(sent), len(sent) + count)]
        sent.extend(bodies)
        stage.send(topic, bodies)

    for _ in range(KILLS):
        driver = begin(stage, topic, tmp_path, sink)
        try:
            if not sent:
                # It begins at the latest message, and must stay there although it is killed in its first micro-batch.
                wait_until(driver, tmp_path, lambda: stage.progress(f"g_{topic}"), "beginning")
            reached = batches(tmp_path)
            send(MESSAGES_PER_LIFE)
            wait_for_batch(driver, tmp_path, reached + 1 + rng.randrange(4))
            time.sleep(rng.random() * 0.4)
        finally:
            kill(driver)
    driver = begin(stage, topic, tmp_path, sink)
    try:
        send(10)
        # When the last message is there, so is every other one: a micro-batch takes of each queue in its order.
        wait_until(driver, tmp_path, lambda: set(sent[-10:]) <= rows().keys(), "last messages", 1)
    finally:
        kill(driver)
    found = rows()
    assert (Counter(sent) - found, found - Counter(sent)) == (Counter(), Counter())
