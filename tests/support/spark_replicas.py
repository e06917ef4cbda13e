"""Fake replicas with topics, as Spark reads them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from mq.protocol.codes import RequestCode
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.properties import encode
from spark.client import BrokerResponse, Connection, Unreachable
from spark.plan import LogRange, QueueRange
from spark.task_reader import TaskOptions, TaskReader

HOST = encode_host("127.0.0.1", 10911)
REPLICAS = ("f1:1", "f2:1", "leader:1")


def stored(queue_id: int, offset: int) -> bytes:
    return encode_record(
        topic="T",
        queue_id=queue_id,
        body=b"%d/%d" % (queue_id, offset),
        properties=encode({"TAGS": "even" if offset % 2 == 0 else "odd"}),
        queue_offset=QueueOffset(offset),
        physical_offset=PhysicalOffset(offset),
        born_timestamp_ms=0,
        born_host=HOST,
        store_timestamp_ms=0,
        store_host=HOST,
    )


class Replica:
    """A broker with the messages [first, end) of every queue. Each pull consumes one of ``faults``."""

    def __init__(self, end: int, first: int = 0) -> None:
        self.first, self.end = first, end
        self.is_down = False
        self.faults: list[Callable[[BrokerResponse], BrokerResponse | None]] = []
        self.pulls = 0

    def pull(self, ext: dict[str, str], records_max: int) -> BrokerResponse:
        self.pulls += 1
        queue_id, offset = int(ext["queueId"]), int(ext["queueOffset"])
        header = {"minOffset": str(self.first), "maxOffset": str(self.end)}
        if offset < self.first:
            return BrokerResponse(21, "", {**header, "nextBeginOffset": str(self.first)}, memoryview(b""))
        found = range(offset, min(offset + min(records_max, int(ext["maxMsgNums"])), self.end))
        if not found:
            return BrokerResponse(19, "", {**header, "nextBeginOffset": str(offset)}, memoryview(b""))
        wanted = [
            each for each in found if ext["subscription"] == "*" or (each % 2 == 0) == (ext["subscription"] == "even")
        ]
        code = 0 if wanted else 20
        data = b"".join(stored(queue_id, each) for each in wanted)
        return BrokerResponse(code, "", {**header, "nextBeginOffset": str(found.stop)}, memoryview(data))


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

    def receive(self, opaque: int) -> BrokerResponse:
        code, ext = self._sent[opaque]
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._cluster.route()
        replica = self._replica()
        answer: BrokerResponse | None = replica.pull(ext, self._cluster.rng.randint(1, 7))
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
    """Replicas by address, a clock that only sleeping advances, and the number of open connections."""

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

    def route(self) -> BrokerResponse:
        addresses = {str(number): address for number, address in enumerate(["leader:1", "f1:1", "f2:1"])}
        body = {
            "queueDatas": [{"brokerName": "a", "readQueueNums": 4, "perm": 6}],
            "brokerDatas": [{"brokerName": "a", "brokerAddrs": addresses}],
        }
        return BrokerResponse(0, "", {}, memoryview(json.dumps(body).encode()))

    def reader(self, *ranges: QueueRange, **options: Any) -> TaskReader:
        part = LogRange("T", "", "a", ranges, REPLICAS)
        return TaskReader(part, task_options(**options), connect=self.connect, clock=lambda: self.now, sleep=self.sleep)


def task_options(**options: Any) -> TaskOptions:
    """Those of a task that reads from followers and fails on lost messages, unless `options` say otherwise."""
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
    }
    return TaskOptions(**wanted | options)


def rows(reader: TaskReader) -> list[tuple[int, int, bytes]]:
    return [(row["queue_id"], row["queue_offset"], row["body"]) for batch in reader.read() for row in batch.to_pylist()]


def expected(*ranges: QueueRange) -> list[tuple[int, int, bytes]]:
    return [
        (each.queue_id, offset, b"%d/%d" % (each.queue_id, offset))
        for each in ranges
        for offset in range(each.start, each.end)
    ]
