"""The leases of a scan: from where on, for whom, and at which replicas."""

from __future__ import annotations

import itertools

from mq.protocol.codes import RequestCode
from spark.client import BrokerResponse, Connection, Unreachable
from spark.leases import RENEWAL_SECONDS, StreamLeases, take_leases, with_leases
from spark.offset_survey import Survey
from spark.plan import LogRange, QueueRange

KEY = ("T", "a")
FOUND = Survey(
    {}, {}, places={KEY: [{0: 10, 1: 5}, {0: 20, 1: 9}, {0: 30, 1: 30}]}, positions={KEY: [100, 1000, 2000, 3000]}
)


def parts(*ranges: tuple[QueueRange, ...], topic: str = "T") -> list[LogRange]:
    return [LogRange(topic, "", "a", each, ("f1:1", "f2:1")) for each in ranges]


def positions(*ranges: tuple[QueueRange, ...]) -> set[tuple[str, int]]:
    names = (f"id{number}" for number in itertools.count())
    return {(part.lease_id, part.lease_position) for part in with_leases(parts(*ranges), FOUND, lambda _: next(names))}


def test_lease_begins_in_the_first_file_of_the_scan() -> None:
    assert positions((QueueRange(0, 0, 50),)) == {("id0", 100)}
    assert positions((QueueRange(0, 10, 50),)) == {("id0", 1000)}
    assert positions((QueueRange(0, 19, 50), QueueRange(1, 50, 60))) == {("id0", 1000)}
    assert positions((QueueRange(0, 20, 50), QueueRange(1, 8, 60))) == {("id0", 1000)}
    assert positions((QueueRange(0, 30, 50), QueueRange(1, 30, 60))) == {("id0", 3000)}


def test_all_partitions_of_a_scan_share_their_lease() -> None:
    assert positions((QueueRange(0, 25, 50),), (QueueRange(1, 6, 9),), (QueueRange(0, 15, 25),)) == {("id0", 1000)}


def test_reader_takes_no_lease_for_parts_of_an_unknown_log() -> None:
    [part] = with_leases(parts((QueueRange(0, 0, 5),), topic="Other"), FOUND, lambda _: "id")
    assert part.lease_id == ""


class Line(Connection):
    """A connection to a replica that notes what it is asked, and answers if it is called f2."""

    asked: list[tuple[str, dict[str, str]]]

    def __init__(self, address: str, asked: list[tuple[str, dict[str, str]]]) -> None:
        self.address = address
        self.asked = asked

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        assert code == RequestCode.HOLD_LOG
        self.asked.append((self.address, ext))
        return 1

    def receive(self, opaque: int) -> BrokerResponse:
        if self.address != "f2:1":
            raise Unreachable(self.address, "did not answer in time")
        return BrokerResponse(2, "too many", {}, memoryview(b""))

    def close(self) -> None:
        self.asked.append((self.address, {}))


def test_each_replica_is_asked_for_a_lease_once() -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    held = with_leases(parts((QueueRange(0, 0, 5),), (QueueRange(1, 0, 5),)), FOUND, lambda _: "id")
    take_leases(held, 1.0, lambda address, _: Line(address, asked))
    fields = {"leaseId": "id", "position": "100", "seconds": "600"}
    assert asked == [("f1:1", fields), ("f1:1", {}), ("f2:1", fields), ("f2:1", {})]


def test_reader_takes_no_lease_at_an_unreachable_replica() -> None:
    def connect(address: str, timeout: float) -> Connection:
        raise Unreachable(address, "cannot connect")

    take_leases(with_leases(parts((QueueRange(0, 0, 5),)), FOUND, lambda _: "id"), 1.0, connect)


class Stream:
    """A streaming query with a clock, and replicas that note what they are asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.looks = 0
        names = (f"id{number}" for number in itertools.count())
        self.leases = StreamLeases(
            1.0, lambda address, _: Line(address, self.asked), lambda: next(names), lambda: self.now
        )

    def add_details(self) -> Survey:
        self.looks += 1
        return FOUND

    def batch(self, start: int, topic: str = "T") -> tuple[str, int]:
        [part] = self.leases.extend_to(parts((QueueRange(0, start, start + 5),), topic=topic), self.add_details)
        return part.lease_id, part.lease_position

    def taken(self) -> list[tuple[str, ...]]:
        """What was asked since the last time."""
        found = [(address, *ext.values()) for address, ext in self.asked if ext]
        self.asked.clear()
        return found


def test_stream_moves_its_one_lease_on_once_a_minute() -> None:
    stream = Stream()
    assert stream.batch(10) == ("id0", 1000)
    assert stream.taken() == [("f1:1", "id0", "1000", "600"), ("f2:1", "id0", "1000", "600")]
    stream.now = RENEWAL_SECONDS - 1
    assert stream.batch(30) == ("id0", 1000)  # what holds an earlier micro-batch holds a later one
    assert (stream.taken(), stream.looks) == ([], 1)
    stream.now = RENEWAL_SECONDS
    assert stream.batch(30) == ("id0", 3000)
    assert stream.taken() == [("f1:1", "id0", "3000", "600"), ("f2:1", "id0", "3000", "600")]
    stream.leases.give_back()
    assert stream.taken() == [("f1:1", "id0", "3000", "0"), ("f2:1", "id0", "3000", "0")]
    stream.leases.give_back()
    assert stream.taken() == []


def test_later_topic_gets_a_lease_at_once() -> None:
    stream = Stream()
    assert stream.batch(0, topic="Other") == ("", 0)  # nothing is known of its place in the log
    assert stream.batch(0, topic="Other") == ("", 0)
    assert stream.looks == 1
    assert stream.batch(0) == ("id0", 100)
    assert stream.looks == 2


def test_empty_micro_batch_sends_no_requests() -> None:
    stream = Stream()
    assert stream.leases.extend_to([], stream.add_details) == []
    assert (stream.taken(), stream.looks) == ([], 0)
