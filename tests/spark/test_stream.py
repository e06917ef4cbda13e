"""Streaming queries in a real Spark: each message in exactly one row, whatever happens to the query and the brokers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.conftest import Query
from tests.spark.stage import Stage, bodies_of

Stream = Callable[..., Any]
SECONDS_MAX = 600


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def wait_until(query: Any, is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        if (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline, f"no {what} within {SECONDS_MAX} s"
        time.sleep(0.1)


def test_query_resumes_at_its_end(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(0, 100))
    frame = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")

    first = query.run(frame)
    stage.send(topic, numbered(100, 150))
    second = query.run(frame)

    assert bodies_of(query.rows()) == Counter(numbered(0, 150))
    assert [report["numInputRows"] for report in first.recentProgress if report["numInputRows"]] == [28, 28, 28, 16]
    assert sum(report["numInputRows"] for report in second.recentProgress) == 50


def test_query_starting_at_latest_sees_only_later_messages(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, numbered(0, 10))
    running = query.start(stream(subscribe=topic), processingTime="200 milliseconds")
    try:
        wait_until(running, lambda: running.lastProgress is not None, "progress")
        stage.send(topic, numbered(10, 20))
        wait_until(running, lambda: sum(report["numInputRows"] for report in running.recentProgress) >= 10, "rows")
    finally:
        running.stop()

    assert bodies_of(query.rows()) == Counter(numbered(10, 20))


def test_new_queues_are_read_from_their_first_message(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic(queues=1)
    stage.send(topic, numbered(0, 10))
    frame = stream(subscribe=topic, startingOffsets="earliest")
    query.run(frame)
    stage.create(topic, 4)
    stage.send(topic, numbered(10, 50))

    query.run(frame)

    assert bodies_of(query.rows()) == Counter(numbered(0, 50))


def test_query_progress_and_consumer_group_show_the_same_lag(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, numbered(0, 20))

    done = query.run(stream(subscribe=topic, startingOffsets="earliest", commitToGroup="spark_lag"))

    ends = {f"{stage.group}:{number}": each.end for number, each in stage.progress("spark_lag").items()}
    assert sum(ends.values()) == 20
    assert {number: each.offset for number, each in stage.progress("spark_lag").items()} == {
        number: each.end for number, each in stage.progress("spark_lag").items()
    }
    (source,) = done.lastProgress["sources"]
    assert json.loads(source["latestOffset"])["topics"][topic]["q"] == ends
    stage.send(topic, numbered(20, 26))
    assert sum(each.end - each.offset for each in stage.progress("spark_lag").values()) == 6


def test_replicas_die_and_the_leader_changes_under_a_query(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(0, 1000))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400", "fetchTimeout": "2s"}
    running = query.start(stream(subscribe=topic, **options), processingTime="100 milliseconds")

    def rows() -> int:
        assert running.isActive, running.exception()
        return sum(report["numInputRows"] for report in running.recentProgress)

    try:
        wait_until(running, lambda: rows() > 0, "rows")
        with stage.killed(stage.followers()[0]):
            stage.send(topic, numbered(1000, 2000))
            wait_until(running, lambda: rows() >= 2000, "rows without a follower")
        stage.move_leader()
        stage.send(topic, numbered(2000, 3000))
        wait_until(running, lambda: rows() >= 3000, "rows of the new leader")
        with stage.killed(*stage.nodes()):
            pass
        stage.send(topic, numbered(3000, 4000))
        wait_until(running, lambda: rows() >= 4000, "rows after all replicas were killed")
    finally:
        running.stop()

    assert bodies_of(query.rows()) == Counter(numbered(0, 4000))


def test_recreated_topic_ends_the_query_or_is_read_from_the_start(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, numbered(0, 20))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query.run(stream(**options))
    stage.delete(topic)
    stage.create(topic, 1)
    stage.send(topic, numbered(20, 25))

    with pytest.raises(StreamingQueryException, match=r"deleted and created again.*\n?.*failOnDataLoss=false"):
        query.run(stream(**options))
    query.run(stream(**options, failOnDataLoss="false"))

    assert bodies_of(query.rows()) == Counter(numbered(0, 25))


def test_brokers_of_rocketmq_are_read_with_their_own_requests(stream: Stream, query: Query, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, numbered(0, 50))
    frame = stream(subscribe=topic, startingOffsets="earliest", readMode="pull", maxBytesPerTrigger="20k")

    query.run(frame)

    assert bodies_of(query.rows()) == Counter(numbered(0, 50))


def test_checkpoint_of_another_source_is_refused(stream: Stream, query: Query, stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(0, 5))
    frame = stream(subscribe=topic, startingOffsets="earliest")
    query.run(frame)
    (written,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    written.write_text(written.read_text().replace('"v": 1', '"v": 9'))
    (tmp_path / "checkpoint" / "offsets" / f".{written.name}.crc").unlink()

    with pytest.raises(StreamingQueryException, match=r"offset of version 9.*new checkpointLocation"):
        query.run(frame)


def test_options_of_a_batch_are_refused(stream: Stream, query: Query, stage: Stage) -> None:
    with pytest.raises(Exception, match="option endingOffsets is for batch, not for stream"):
        query.run(stream(subscribe=stage.topic(), endingOffsets="latest"))
