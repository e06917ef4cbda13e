"""SIGKILL of the driver at random points: nothing is missing and nothing is twice, in files and in the sink's topic.

``RAFTMQ_SPARK_KILLS=50`` for fifty of them. Each takes about ten seconds of both processors: a driver has to start.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.stage import Stage, bodies_of

ROOT = Path(__file__).parents[2]
KILLS: Final = int(os.environ.get("RAFTMQ_SPARK_KILLS", "2"))
SECONDS_MAX: Final = 600
"""Without a new micro-batch. A driver needs 20 s of CPU for its first one, which are minutes beside other work."""

QUERIES: Final = ("files", "topic")
RECORDS_MAX: Final = 100
"""Of a micro-batch; the last driver takes all that is left at once."""
BATCHES_MAX: Final = 4
SPARK_RACE: Final = "scala.collection.generic.DefaultSerializationProxy.writeObject"
"""In the stack of an error of Spark: two queries put variables into the environment of the data source's Python
processes at once. From then on it says that it has one more than it has, and no task of that driver can be serialized.
"""
SPARK_RACES_MAX: Final = 5
MESSAGES_PER_LIFE: Final = (BATCHES_MAX + 1) * RECORDS_MAX
"""So there is always a micro-batch to be killed in."""


class Drivers:
    """One driver after the other, each with the same two queries; see `tests.spark.archive_job`."""

    def __init__(self, stage: Stage, topic: str, copy: str, directory: Path) -> None:
        self._stage = stage
        self._arguments = (topic, copy, str(directory))
        self._directory = directory
        self._log = directory / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._records_max = RECORDS_MAX
        self._spark_races = 0

    def begin(self, records_max: int = RECORDS_MAX) -> None:
        """Start one."""
        self._records_max = records_max
        arguments = [self._stage.namesrv, *self._arguments, str(records_max)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.archive_job", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it, and Spark with it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and all that it started
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def batches(self) -> tuple[int, ...]:
        """The number of the last micro-batch that each checkpoint knows, -1 before the first."""
        return tuple(self._last_batch(query) for query in QUERIES)

    def _last_batch(self, query: str) -> int:
        found = (self._directory / query / "checkpoint" / "offsets").glob("[0-9]*")
        return max((int(path.name) for path in found), default=-1)

    def wait_until(self, is_so: Callable[[], object], what: str, pause: float = 0.02) -> None:
        """Wait for something; time counts from the last micro-batch that began."""
        assert self._process is not None
        reached, deadline = self.batches(), time.monotonic() + SECONDS_MAX
        while not is_so():
            if self._process.poll() is not None:
                self._replace_after_a_race()
            if (now := self.batches()) != reached:
                reached, deadline = now, time.monotonic() + SECONDS_MAX
            if time.monotonic() > deadline:
                os.killpg(self._process.pid, signal.SIGQUIT)  # Java writes down what its threads do
                time.sleep(5)
                pytest.fail(f"no {what} and no micro-batches behind {reached} for {SECONDS_MAX} s, see {self._log}")
            time.sleep(pause)

    def wait_for_batch(self, which: int, number: int) -> None:
        """Wait until a query has begun a micro-batch."""
        self.wait_until(lambda: self.batches()[which] >= number, f"micro-batch {number} of {QUERIES[which]}")

    def _replace_after_a_race(self) -> None:
        """A driver that Spark ended by its race counts as killed; any other end is a failure."""
        last_words = self._last_words()
        assert SPARK_RACE in last_words, last_words
        self._spark_races += 1
        assert self._spark_races <= SPARK_RACES_MAX, f"{self._spark_races} drivers ended by themselves: {last_words}"
        self._log.rename(self._log.with_suffix(f".race{self._spark_races}"))
        self.kill()
        self.begin(self._records_max)

    def _last_words(self) -> str:
        return self._log.read_text()[-20_000:]  # Spark writes several stacks for one error


def test_killed_drivers_lose_and_repeat_nothing(
    session: Any, read: Callable[..., Any], stage: Stage, tmp_path: Path
) -> None:
    rng = random.Random(7)
    topic, copy = stage.topic(queues=3), stage.topic(queues=2)
    stage.send(topic, [b"before"] * 50)
    sent: list[bytes] = []

    def send(count: int) -> None:
        bodies = [b"%d" % number for number in range(len(sent), len(sent) + count)]
        sent.extend(bodies)
        stage.send(topic, bodies)

    def rows(query: str) -> Counter[bytes]:
        if query == "topic":
            return bodies_of(read(subscribe=copy, columns="body").collect())
        if not (tmp_path / "files" / "rows" / "_spark_metadata").exists():
            return Counter()
        return bodies_of(session.read.parquet(str(tmp_path / "files" / "rows")).select("body").collect())

    def have_begun() -> bool:
        return all(stage.progress(f"{query}_{topic}") for query in QUERIES)

    def have_the_last() -> bool:
        # When the last messages are there, so is every other one: a micro-batch takes of each queue in its order.
        return all(set(sent[-10:]) <= rows(query).keys() for query in QUERIES)

    drivers = Drivers(stage, topic, copy, tmp_path)
    try:
        for _ in range(KILLS):
            reached = drivers.batches()
            drivers.begin()
            if not sent:
                # They begin at the latest message, and must stay there although killed in their first micro-batch.
                drivers.wait_until(have_begun, "beginning")
            send(MESSAGES_PER_LIFE)
            which = rng.randrange(len(QUERIES))
            drivers.wait_for_batch(which, reached[which] + 1 + rng.randrange(BATCHES_MAX))
            time.sleep(rng.random() * 0.4)
            drivers.kill()
        drivers.begin(records_max=1_000_000)
        send(10)
        drivers.wait_until(have_the_last, "last messages", 1)
    finally:
        drivers.kill()
    for query in QUERIES:
        found = rows(query)
        assert (Counter(sent) - found, found - Counter(sent)) == (Counter(), Counter()), query
