"""A task reads its whole part, each message once and in order, whatever single replicas do meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from mq.protocol.properties import encode
from mq.protocol.records import encode_host, encode_record
from spark.client import GET_ROUTE, Answer, Connection, Unreachable
from spark.errors import DataLoss, ReadFailed
from spark.plan import LogRange, QueueRange
from spark.reader import TaskOptions, TaskReader

HOST = encode_host("127.0.0.1", 10911)
REPLICAS = ("f1:1", "f2:1", "leader:1")


def stored(queue_id: int, offset: int) -> bytes:
    return encode_record(
        topic="T",
        queue_id=queue_id,
        body=b"%d/%d" % (queue_id, offset),
        properties=encode({"TAGS": "even" if offset % 2 == 0 else "odd"}),
        queue_offset=offset,
        physical_offset=offset,
        born_timestamp_ms=0,
        born_host=HOST,
        store_timestamp_ms=0,
        store_host=HOST,
    )


class Replica:
    """A broker with the messages [first, end) of every queue. ``faults`` are taken one for each pull."""

    def __init__(self, end: int, first: int = 0) -> None:
        self.first, self.end = first, end
        self.is_down = False
        self.faults: list[Callable[[Answer], Answer | None]] = []
        self.pulls = 0

    def pull(self, ext: dict[str, str], records_max: int) -> Answer:
        self.pulls += 1
        queue_id, offset = int(ext["queueId"]), int(ext["queueOffset"])
        header = {"minOffset": str(self.first), "maxOffset": str(self.end)}
        if offset < self.first:
            return Answer(21, "", {**header, "nextBeginOffset": str(self.first)}, memoryview(b""))
        found = range(offset, min(offset + min(records_max, int(ext["maxMsgNums"])), self.end))
        if not found:
            return Answer(19, "", {**header, "nextBeginOffset": str(offset)}, memoryview(b""))
        wanted = [
            each for each in found if ext["subscription"] == "*" or (each % 2 == 0) == (ext["subscription"] == "even")
        ]
        code = 0 if wanted else 20
        data = b"".join(stored(queue_id, each) for each in wanted)
        return Answer(code, "", {**header, "nextBeginOffset": str(found.stop)}, memoryview(data))


class Line(Connection):
    """A connection to a replica of the cluster."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self._sent: dict[int, tuple[int, dict[str, str]]] = {}
        cluster.open_lines += 1

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        self._replica()
        number = len(self._sent) + 1
        self._sent[number] = code, ext
        return number

    def receive(self, opaque: int) -> Answer:
        code, ext = self._sent[opaque]
        if code == GET_ROUTE:
            return self._cluster.route()
        replica = self._replica()
        answer: Answer | None = replica.pull(ext, self._cluster.rng.randint(1, 7))
        if replica.faults:
            assert answer is not None
            answer = replica.faults.pop(0)(answer)
        if answer is None:
            raise Unreachable(self.address, "did not answer in time")
        return answer

    def close(self) -> None:
        self._cluster.open_lines -= 1

    def _replica(self) -> Replica:
        if self.address == "names:1":
            return Replica(0)
        replica = self._cluster.replicas[self.address]
        if replica.is_down:
            raise Unreachable(self.address, "cannot connect")
        return replica


class Cluster:
    """Replicas by address, a clock that only sleeping moves, and the number of connections that are open."""

    def __init__(self, end: int = 50, **first: int) -> None:
        self.replicas = {address: Replica(end) for address in REPLICAS}
        self.rng = random.Random(1)
        self.now = 0.0
        self.open_lines = 0
        self.on_sleep: list[Callable[[], None]] = []

    def connect(self, address: str, timeout: float) -> Connection:
        if address != "names:1" and self.replicas[address].is_down:
            raise Unreachable(address, "cannot connect")
        return Line(self, address)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for action in self.on_sleep:
            action()

    def route(self) -> Answer:
        addresses = {str(number): address for number, address in enumerate(["leader:1", "f1:1", "f2:1"])}
        body = {
            "queueDatas": [{"brokerName": "a", "readQueueNums": 4, "perm": 6}],
            "brokerDatas": [{"brokerName": "a", "brokerAddrs": addresses}],
        }
        return Answer(0, "", {}, memoryview(json.dumps(body).encode()))

    def reader(self, *ranges: QueueRange, **options: Any) -> TaskReader:
        wanted: dict[str, Any] = {
            "namesrv": ("names:1",),
            "columns": ("queue_id", "queue_offset", "body"),
            "tags": None,
            "read_from": "follower",
            "keep_bad_bodies": False,
            "on_data_loss": "fail",
            "fetch_bytes": 1 << 20,
            "fetch_seconds": 1.0,
            "deadline_seconds": 30.0,
            "client_id": "spark",
            **options,
        }
        part = LogRange("T", "", "a", ranges, REPLICAS)
        return TaskReader(part, TaskOptions(**wanted), connect=self.connect, clock=lambda: self.now, sleep=self.sleep)


def rows(reader: TaskReader) -> list[tuple[int, int, bytes]]:
    return [(row["queue_id"], row["queue_offset"], row["body"]) for batch in reader.read() for row in batch.to_pylist()]


def expected(*ranges: QueueRange) -> list[tuple[int, int, bytes]]:
    return [
        (each.queue_id, offset, b"%d/%d" % (each.queue_id, offset))
        for each in ranges
        for offset in range(each.start, each.end)
    ]


RANGES = (QueueRange(0, 3, 40), QueueRange(2, 0, 50))


def test_each_message_is_read_once_from_the_first_replica() -> None:
    cluster = Cluster()
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert cluster.replicas["leader:1"].pulls == cluster.replicas["f2:1"].pulls == 0
    assert cluster.open_lines == 0
    assert (reader.statistics.rows, reader.statistics.switches, list(reader.statistics.replicas)) == (87, 0, ["f1:1"])


def cut(answer: Answer) -> Answer:
    return answer._replace(body=answer.body[:-1])


def shifted(answer: Answer) -> Answer:
    """The records of another place: the first one is missing."""
    return answer._replace(body=answer.body[len(stored(0, 9)) :] or memoryview(stored(0, 999)))


def garbage(answer: Answer) -> Answer:
    return answer._replace(body=memoryview(b"\xff" * 200))


def headless(answer: Answer) -> Answer:
    return answer._replace(ext={})


def busy(answer: Answer) -> Answer:
    return answer._replace(code=2, remark="[TIMEOUT_CLEAN_QUEUE]broker busy")


def lost(answer: Answer) -> None:
    return None


@pytest.mark.parametrize("fault", [cut, shifted, garbage, headless, busy, lost])
def test_another_replica_goes_on_where_one_failed(fault: Callable[[Answer], Answer | None]) -> None:
    cluster = Cluster()
    cluster.replicas["f1:1"].faults = [lambda answer: answer, fault]
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert reader.statistics.switches == 1
    assert set(reader.statistics.replicas) == {"f1:1", "f2:1"}


def test_a_follower_that_is_behind_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.replicas["f1:1"].end = 20
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert cluster.replicas["leader:1"].pulls == 0


def test_the_leader_is_asked_last() -> None:
    cluster = Cluster()
    cluster.replicas["f1:1"].is_down = cluster.replicas["f2:1"].is_down = True
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert list(reader.statistics.replicas) == ["leader:1"]


def test_replicas_that_come_back_are_found() -> None:
    cluster = Cluster()
    for replica in cluster.replicas.values():
        replica.is_down = True

    def come_back() -> None:
        if cluster.now > 5:
            cluster.replicas["f2:1"].is_down = False

    cluster.on_sleep.append(come_back)

    assert rows(cluster.reader(*RANGES)) == expected(*RANGES)


def test_a_task_fails_after_the_deadline_and_says_what_each_replica_did() -> None:
    cluster = Cluster()
    for replica in cluster.replicas.values():
        replica.is_down = True

    with pytest.raises(
        ReadFailed, match=r"no replica has sent messages for 30 s, option readDeadline \(f1:1: .*leader:1: "
    ):
        rows(cluster.reader(*RANGES))
    assert 30 <= cluster.now < 33


def test_deleted_messages_fail_the_query_or_are_counted() -> None:
    cluster = Cluster()
    for replica in cluster.replicas.values():
        replica.first = 10

    with pytest.raises(DataLoss, match=r"'T', queue a:0: offsets 3 to 9 \(7 messages\) were .*failOnDataLoss=false"):
        rows(cluster.reader(*RANGES))
    reader = cluster.reader(*RANGES, on_data_loss="skip")
    assert rows(reader) == expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skipped == 17


def test_who_asks_for_what_is_there_does_not_miss_what_was_deleted_before() -> None:
    cluster = Cluster()
    for replica in cluster.replicas.values():
        replica.first = 10
    reader = cluster.reader(*RANGES, from_earliest=True)

    assert rows(reader) == expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skipped == 0


def test_who_asks_for_what_is_there_misses_what_is_deleted_while_it_reads() -> None:
    cluster = Cluster()
    batches = cluster.reader(QueueRange(0, 3, 40), from_earliest=True).read()
    next(batches)
    for replica in cluster.replicas.values():
        replica.first = 30

    with pytest.raises(DataLoss, match="were deleted before they were read"):
        list(batches)


def test_a_range_that_is_gone_as_a_whole_ends() -> None:
    cluster = Cluster()
    for replica in cluster.replicas.values():
        replica.first = 45

    reader = cluster.reader(QueueRange(0, 3, 40), on_data_loss="skip")

    assert rows(reader) == []
    assert reader.statistics.skipped == 37


@pytest.mark.parametrize("tag", ["even", "odd"])
def test_only_messages_with_a_wanted_tag(tag: str) -> None:
    reader = Cluster().reader(*RANGES, tags=(tag,))

    assert rows(reader) == [row for row in expected(*RANGES) if (row[1] % 2 == 0) == (tag == "even")]


def test_a_reader_that_is_given_up_leaves_no_connection() -> None:
    cluster = Cluster()
    batches = cluster.reader(*RANGES).read()

    next(batches)
    assert cluster.open_lines == 1
    batches.close()  # type: ignore[attr-defined]

    assert cluster.open_lines == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_replicas_do_each_message_is_read_once(seed: int) -> None:
    cluster = Cluster()
    rng = cluster.rng = random.Random(seed)
    kinds = [cut, shifted, garbage, headless, busy, lost]
    for replica in cluster.replicas.values():
        replica.faults = [rng.choice([*kinds, lambda answer: answer]) for _ in range(30)]
        replica.end = rng.choice([20, 50, 50])
    cluster.replicas["leader:1"].end = 50

    assert rows(cluster.reader(*RANGES)) == expected(*RANGES)
