"""Retention in mid-read: what a query says that comes too late, and that a lease keeps it from happening.

Queries without a lease come first: those with one leave it to end by itself, after minutes. Tasks of a query that has
failed may go on for a moment, and one that reconnects asks for its lease. So all leases stay taken until the first
query that needs one, and there are more of them than queries.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from mq.protocol.codes import RequestCode, ResponseCode
from spark.client import Connection
from tests.spark.conftest import Query
from tests.spark.stage import Stage, bodies_of

QUEUES: Final = 2
MESSAGES: Final = 2000
BODY_BYTES: Final = 4000
SECONDS_MAX: Final = 120
LEASES: Final = 20
UPDATE_BROKER_CONFIG: Final = 25
DELETE_EXPIRED_COMMITLOG: Final = 329
SETTINGS: Final = {
    "segment_bytes": str(1024 * 1024),
    "message_bytes_max": str(256 * 1024),
    "delete_when": "-1",
    "checkpoint_seconds": "0.3",
    "log_leases_max": str(LEASES),
}
OPTIONS: Final = {"fetchBytes": "64k", "maxRecordsPerPartition": "200"}


class Replicas:
    """Three replicas that delete when they are told to, and take few leases."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def ask(
        self, code: int, *exts: dict[str, str], body: bytes = b"", refusal: int = ResponseCode.SUCCESS
    ) -> list[dict[str, str]]:
        """Ask each replica all of these; returns the headers of the answers. A replica may refuse with ``refusal``."""
        found = []
        for node_id in self.stage.nodes():
            connection = Connection(self.stage.address(node_id), 30.0)
            try:
                for ext in exts:
                    answer = connection.receive(connection.send(code, ext, body))
                    assert answer.code in (ResponseCode.SUCCESS, refusal), answer.remark
                    found.append(answer.ext)
            finally:
                connection.close()
        return found

    def take_leases(self, seconds: int) -> None:
        """Take all leases of each replica, or keep them, and hold nothing by them; 0 seconds give them back."""
        holds = [
            {"leaseId": f"test-{number}", "position": str(2**62), "seconds": str(seconds)} for number in range(LEASES)
        ]
        self.ask(RequestCode.HOLD_LOG, *holds)

    def keep(self, hours: str) -> None:
        """Keep messages for so long."""
        self.ask(UPDATE_BROKER_CONFIG, {}, body=f"fileReservedTime={hours}".encode())

    def first_offset(self, topic: str, queue_id: int = 0) -> int:
        """The lowest offset of a queue that every replica has; 0 while one that deleted sooner than others refuses to
        say.
        """
        queue = {"topic": topic, "queueId": str(queue_id), "brokerName": self.stage.group}
        answers = self.ask(RequestCode.GET_MIN_OFFSET, queue, refusal=ResponseCode.SERVICE_NOT_AVAILABLE)
        return max(int(answer["offset"]) for answer in answers) if all(answers) else 0

    def delete_old(self, other: str) -> None:
        """Let each replica delete what may go; ``other`` is a topic for messages that let checkpoints move on."""
        self.stage.send(other, [b"x"])
        time.sleep(0.4)  # a checkpoint
        self.ask(DELETE_EXPIRED_COMMITLOG, {})


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with Stage.open(tmp_path_factory.mktemp("retention"), settings=SETTINGS) as stage:
        yield Replicas(stage)


@pytest.fixture
def topic(replicas: Replicas) -> Iterator[str]:
    """A topic of some files, which are kept at first."""
    replicas.keep("72")
    name = replicas.stage.topic(queues=QUEUES)
    replicas.stage.send(name, sent())
    yield name
    replicas.keep("72")


def sent() -> list[bytes]:
    return [b"%06d" % number * (BODY_BYTES // 6) for number in range(MESSAGES)]


def options(replicas: Replicas, topic: str, **more: str) -> dict[str, str]:
    first = {topic: {f"{replicas.stage.group}:{queue_id}": 0 for queue_id in range(QUEUES)}}
    return {
        "namesrv": replicas.stage.namesrv,
        "subscribe": topic,
        "startingOffsets": json.dumps(first),
        **OPTIONS,
        **more,
    }


def gated(frame: Any, directory: Path) -> Any:
    """The same rows; tasks stop behind their first ones until there is a file ``go``."""
    begun, go, seconds_max = str(directory / "begun"), str(directory / "go"), SECONDS_MAX

    def wait(batches: Any) -> Any:
        import pathlib
        import time

        for batch in batches:
            pathlib.Path(begun).touch()
            deadline = time.monotonic() + seconds_max
            while not pathlib.Path(go).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def meanwhile(do: Callable[[], Any], directory: Path, then: Callable[[], None]) -> Any:
    """What a query returns while whose tasks wait something else is done. Raises what it raises."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(do())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + SECONDS_MAX
    while not (directory / "begun").exists():
        assert thread.is_alive(), results
        assert time.monotonic() < deadline, "no task has begun"
        time.sleep(0.05)
    try:
        then()
    finally:
        (directory / "go").touch()
        thread.join(SECONDS_MAX)
    [result] = results
    if isinstance(result, BaseException):
        raise result
    return result


def delete_until_gone(replicas: Replicas, topic: str) -> None:
    other = replicas.stage.topic("Other", 1)
    replicas.keep("0.00001")
    deadline = time.monotonic() + SECONDS_MAX
    while replicas.first_offset(topic) < MESSAGES // QUEUES // 2:
        assert time.monotonic() < deadline, "nothing is deleted"
        replicas.delete_old(other)


def delete_in_vain(replicas: Replicas, topic: str) -> None:
    other = replicas.stage.topic("Other", 1)
    replicas.keep("0.00001")
    for _ in range(5):
        replicas.delete_old(other)
    assert replicas.first_offset(topic) == 0


LOST: Final = (
    r"offsets \d+ to \d+ \(\d+ messages\) were deleted before they were read\. The queue begins at \d+ now\. Keep "
    r"messages longer \(fileReservedTime\), read sooner, or set failOnDataLoss=false"
)


def test_batch_overtaken_by_retention_names_the_deleted_offsets(
    session: Any, replicas: Replicas, topic: str, tmp_path: Path
) -> None:
    replicas.take_leases(600)
    frame = session.read.format("raftmq").options(**options(replicas, topic)).load().select("body")
    with pytest.raises(PySparkException, match=rf"topic '{topic}', queue \S+:\d+: {LOST}"):
        meanwhile(gated(frame, tmp_path).collect, tmp_path, lambda: delete_until_gone(replicas, topic))


def test_batch_with_fail_on_data_loss_off_skips_deleted_messages(
    session: Any, replicas: Replicas, topic: str, tmp_path: Path
) -> None:
    replicas.take_leases(600)
    frame = session.read.format("raftmq").options(**options(replicas, topic, failOnDataLoss="false")).load()
    frame = gated(frame.select("queue_id", "queue_offset", "body"), tmp_path)
    rows = meanwhile(frame.collect, tmp_path, lambda: delete_until_gone(replicas, topic))
    assert not bodies_of(rows) - Counter(sent())
    for queue_id in range(QUEUES):
        found = [row.queue_offset for row in rows if row.queue_id == queue_id]
        assert len(found) == len(set(found))
        missing = set(range(MESSAGES // QUEUES)) - set(found)
        assert missing, "nothing was lost; is a lease held?"
        assert max(missing) < replicas.first_offset(topic, queue_id)


def test_micro_batch_overtaken_by_retention_names_the_deleted_offsets(
    session: Any, query: Query, replicas: Replicas, topic: str, tmp_path: Path
) -> None:
    replicas.take_leases(600)
    frame = gated(session.readStream.format("raftmq").options(**options(replicas, topic)).load(), tmp_path)
    with pytest.raises(StreamingQueryException, match=LOST):
        meanwhile(lambda: query.run(frame), tmp_path, lambda: delete_until_gone(replicas, topic))


def test_batch_with_a_lease_loses_nothing(session: Any, replicas: Replicas, topic: str, tmp_path: Path) -> None:
    replicas.take_leases(0)
    frame = session.read.format("raftmq").options(**options(replicas, topic)).load().select("body")
    rows = meanwhile(gated(frame, tmp_path).collect, tmp_path, lambda: delete_in_vain(replicas, topic))
    assert bodies_of(rows) == Counter(sent())


def test_micro_batch_with_a_lease_loses_nothing(
    session: Any, query: Query, replicas: Replicas, topic: str, tmp_path: Path
) -> None:
    replicas.take_leases(0)
    frame = gated(session.readStream.format("raftmq").options(**options(replicas, topic)).load(), tmp_path)
    meanwhile(lambda: query.run(frame), tmp_path, lambda: delete_in_vain(replicas, topic))
    assert bodies_of(query.rows()) == Counter(sent())
