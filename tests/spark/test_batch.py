"""Topics as tables, in a real Spark, from three real replicas."""

from __future__ import annotations

import datetime as dt
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from mq.client.message import Message
from tests.spark.stage import Stage, bodies_of

Read = Callable[..., Any]


def test_rows_contain_all_fields_of_messages(read: Read, stage: Stage) -> None:
    topic = stage.topic()
    long = b"compressed " * 1000
    began = dt.datetime.now(dt.UTC)
    sent = [
        Message(topic, b"one", tags="A", keys=["k1", "k2"], properties={"colour": "red"}),
        Message(topic, "\u00fcml\u00e4ut".encode(), tags="B"),
        Message(topic, b"\xff\xfe not text", flag=7),
        Message(topic, long),
    ]
    results = stage.send(topic, sent)

    rows = {row.message_id: row for row in read(subscribe=topic).collect()}

    assert len(rows) == 4
    for message, result in zip(sent, results, strict=True):
        row = rows[result.message_id]
        assert bytes(row.body) == message.body
        assert (row.topic, row.broker_name) == (topic, stage.group)
        assert (row.queue_id, row.queue_offset) == (result.queue.queue_id, result.queue_offset)
        assert row.tags == message.tags
        assert (row.keys or "").split() == list(message.keys)
        stored = row.store_timestamp.replace(tzinfo=dt.UTC)
        assert began - dt.timedelta(seconds=5) < stored < began + dt.timedelta(minutes=2)
    assert rows[results[0].message_id].properties["colour"] == "red"


def test_query_reads_all_columns(read: Read, stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, [Message(topic, b"x", flag=7)])

    (row,) = read(
        subscribe=topic, columns="flag,sys_flag,physical_offset,born_host,store_host,reconsume_times"
    ).collect()

    assert (row.flag, row.reconsume_times) == (7, 0)
    assert row.physical_offset >= 0
    assert row.born_host.startswith("127.0.0.1:")


def test_schema_names_the_columns_too(session: Any, stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, [b"x"] * 5)
    frame = (
        session.read.schema("queue_offset bigint, topic string")
        .format("raftmq")
        .options(namesrv=stage.namesrv, subscribe=topic)
        .load()
    )

    assert frame.columns == ["queue_offset", "topic"]
    assert {row.topic for row in frame.collect()} == {topic}
    assert frame.count() == 5


def test_batch_reads_ranges_by_offset_and_time(read: Read, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, [b"%d" % number for number in range(20)])
    queues = [f"{stage.group}:{number}" for number in range(2)]
    ends = {
        row.queue_id: row.n for row in read(subscribe=topic).groupBy("queue_id").count().toDF("queue_id", "n").collect()
    }
    starting = f'{{"{topic}": {{"{queues[0]}": 2, "{queues[1]}": -1}}}}'

    assert read(subscribe=topic, startingOffsets=starting).count() == ends[0] - 2
    later = str(int((time.time() + 3600) * 1000))
    assert read(subscribe=topic, startingTimestamp="0", endingTimestamp=later).count() == 20
    with pytest.raises(AnalysisException, match="no message is that late"):
        read(subscribe=topic, startingTimestamp=later).count()
    assert read(subscribe=topic, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_tags_patterns_and_single_queues(read: Read, stage: Stage) -> None:
    topic, other = stage.topic("Tagged", 2), stage.topic("Tagged", 2)
    stage.send(topic, [Message(topic, b"x", tags=tag) for tag in "ABCABA"])
    stage.send(other, [b"y"] * 3)

    assert Counter(row.tags for row in read(subscribe=topic, tags="A || C").collect()) == {"A": 3, "C": 1}
    assert read(subscribePattern="Tagged.*").count() == 9
    assert read(subscribe=f"{topic},{other}").count() == 9
    assigned = read(assign=f'{{"{topic}": ["{stage.group}:0"]}}')
    assert {row.queue_id for row in assigned.collect()} == {0}


def test_options_set_the_number_of_partitions(read: Read, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, [b"%d" % number for number in range(200)])

    assert read(subscribe=topic, minPartitions="6").rdd.getNumPartitions() >= 6
    split = read(subscribe=topic, maxRecordsPerPartition="10")
    assert split.rdd.getNumPartitions() >= 20
    assert bodies_of(split.collect()) == Counter(b"%d" % number for number in range(200))


def test_pushed_filters_return_the_same_rows(session: Any, read: Read, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    stage.send(topic, [Message(topic, b"%d" % number, tags="AB"[number % 2]) for number in range(100)])
    condition = "queue_id = 1 and queue_offset >= 10 and queue_offset < 20 and store_timestamp > '2020-01-01'"
    expected = bodies_of(read(subscribe=topic).where(condition).collect())
    frame = read(subscribe=topic, pushFilters="true", maxRecordsPerPartition="5").where(condition)

    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert bodies_of(frame.collect()) == expected
        assert frame.rdd.getNumPartitions() == 2  # the ten messages of the range, five in each
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(AnalysisException, match="filterPushdown"):
        read(subscribe=topic, pushFilters="true").where(condition).collect()


def test_empty_topic_has_no_rows(read: Read, stage: Stage) -> None:
    assert read(subscribe=stage.topic()).count() == 0


def test_first_rows_come_without_all_others(read: Read, stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, [b"x" * 1000] * 2000)

    assert len(read(subscribe=topic, fetchBytes="64k").limit(10).collect()) == 10
    assert read(subscribe=topic).count() == 2000


def test_rows_survive_a_dead_follower_and_leader_change(read: Read, stage: Stage) -> None:
    topic = stage.topic()
    sent = Counter(b"%d" % number for number in range(5000))
    stage.send(topic, sorted(sent.elements()))
    frame = read(subscribe=topic, fetchBytes="64k", fetchTimeout="2s")

    with stage.killed(stage.followers()[0]):
        assert bodies_of(frame.collect()) == sent
    stage.move_leader()
    assert bodies_of(frame.collect()) == sent
    with stage.killed(*stage.followers()[:1]):
        stage.move_leader()
        assert bodies_of(frame.collect()) == sent


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "NoSuchTopic"}, "the topic 'NoSuchTopic' does not exist"),
        (
            {"subscribe": "T", "startingOfset": "latest"},
            "no option 'startingofset'; did you mean 'startingOffsets'",
        ),
        ({"subscribe": "T", "topic": "U"}, "exclude each other"),
        ({"subscribe": "T", "columns": "bodies"}, "names the unknown column 'bodies'; did you mean 'body'"),
        ({}, "one of the options subscribe, subscribePattern and assign is needed"),
    ],
)
def test_mistakes_are_reported_when_the_query_is_planned(read: Read, options: dict[str, str], told: str) -> None:
    with pytest.raises(AnalysisException, match=told):
        read(**options).count()


def test_offsets_must_name_each_queue_and_no_other(read: Read, stage: Stage) -> None:
    topic = stage.topic(queues=2)
    given = f'{{"{topic}": {{"{stage.group}:0": 0, "{stage.group}:7": 0}}}}'

    with pytest.raises(AnalysisException, match=rf"says nothing of {topic} \S+:1 and names {topic} \S+:7"):
        read(subscribe=topic, startingOffsets=given).count()


def test_unreachable_address_is_reported_within_15_seconds(read: Read) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(AnalysisException, match=f"no name server answered .*{address}"):
            read(namesrv=address, subscribe="T").count()
    assert time.monotonic() - began < 15
