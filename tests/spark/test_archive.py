"""Queries whose tasks read the archive: batches and streams give what the brokers would, which send nothing of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.client.admin import Admin
from tests.spark.conftest import Query
from tests.spark.stage import Stage, bodies_of
from tests.support.object_storage import BUCKET, SECRET_KEY, ObjectStorage, object_storage

MESSAGES = 1000
SECONDS_MAX = 240
SETTINGS = {
    "segment_bytes": str(512 * 1024),
    "message_bytes_max": "65536",
    "entry_bytes_max": "65536",
    "archive_url": f"s3://{BUCKET}/broker-a",
    "archive_bytes_per_second": "0",
    "local_retention_bytes": str(1024 * 1024),
    "retention_check_seconds": "0.2",
    "checkpoint_seconds": "0.2",
}


@pytest.fixture(scope="module")
def storage(session: Any) -> Iterator[ObjectStorage]:
    with object_storage() as found:  # `session` has set the credentials
        yield found


@pytest.fixture(scope="module")
def archived(storage: ObjectStorage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, str]]:
    """Replicas that have deleted most of a topic locally, and the topic."""
    settings = SETTINGS | {"archive_endpoint_url": storage.url}
    with Stage.open(tmp_path_factory.mktemp("archived"), settings=settings) as stage:
        topic = stage.topic(queues=2)
        stage.send(topic, [b"%06d" % number * 600 for number in range(MESSAGES)])
        deadline = time.monotonic() + SECONDS_MAX
        while any(
            int(each["raftmq.archiveLagBytes"]) or int(each["raftmq.basePosition"]) < 2 * 512 * 1024
            for each in figures(stage)
        ):
            assert time.monotonic() < deadline, "nothing is archived and deleted locally"
            time.sleep(0.5)
        yield stage, topic


def figures(stage: Stage) -> list[dict[str, str]]:
    async def ask() -> list[dict[str, str]]:
        async with Admin(stage.namesrv) as admin:
            return [await admin.broker_runtime(stage.address(node)) for node in stage.nodes()]

    found: list[dict[str, str]] = stage.call(ask)
    return found


def sent_to(stage: Stage, client_id: str) -> int:
    """Bytes of messages that replicas have sent to a query."""
    return sum(
        int(value)
        for table in figures(stage)
        for name, value in table.items()
        if name.startswith("raftmq.bulkBytes") and name.endswith(f".{client_id}")
    )


def test_batch_reads_the_archive_and_the_rest_from_brokers(
    session: Any, archived: tuple[Stage, str], storage: ObjectStorage
) -> None:
    stage, topic = archived
    options = {"namesrv": stage.namesrv, "subscribe": topic, "maxBytesPerPartition": "1m"}
    expected = session.read.format("raftmq").options(**options, clientId="bulk").load().collect()
    storage.requests.clear()
    frame = session.read.format("raftmq").options(**options, readMode="archive", clientId="archive").load()
    rows = frame.collect()
    place = lambda row: (row.queue_id, row.queue_offset)  # noqa: E731 - a key
    assert sorted(rows, key=place) == sorted(expected, key=place)
    assert len(rows) == MESSAGES
    assert [path for _, path in storage.requests if "/log/" in path], "tasks have read objects"
    assert sent_to(stage, "archive") < sent_to(stage, "bulk") // 2
    plan = frame._jdf.queryExecution().toString()
    assert SECRET_KEY not in plan


def test_stream_continues_at_brokers_after_the_archive(
    session: Any, archived: tuple[Stage, str], tmp_path: Path
) -> None:
    stage, topic = archived
    frame = (
        session.readStream.format("raftmq")
        .options(
            namesrv=stage.namesrv,
            subscribe=topic,
            startingOffsets="earliest",
            readMode="archive",
            maxOffsetsPerTrigger="400",
            clientId="stream",
        )
        .load()
    )
    query = Query(session, tmp_path)
    query.run(frame)
    assert bodies_of(query.rows()) == {b"%06d" % number * 600: 1 for number in range(MESSAGES)}
    assert 0 <= sent_to(stage, "stream") < MESSAGES * 3600 // 2
