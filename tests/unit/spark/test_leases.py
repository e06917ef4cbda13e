"""The leases of a scan: from where on, for whom, and at which replicas."""

from __future__ import annotations

import itertools

from spark.client import HOLD_LOG, Answer, Connection, Unreachable
from spark.leases import take_leases, with_leases
from spark.plan import LogRange, QueueRange
from spark.survey import Survey

KEY = ("T", "a")
FOUND = Survey(
    {}, {}, places={KEY: [{0: 10, 1: 5}, {0: 20, 1: 9}, {0: 30, 1: 30}]}, positions={KEY: [100, 1000, 2000, 3000]}
)


def parts(*ranges: tuple[QueueRange, ...], topic: str = "T") -> list[LogRange]:
    return [LogRange(topic, "", "a", each, ("f1:1", "f2:1")) for each in ranges]


def positions(*ranges: tuple[QueueRange, ...]) -> set[tuple[str, int]]:
    names = (f"id{number}" for number in itertools.count())
    return {(part.lease_id, part.lease_position) for part in with_leases(parts(*ranges), FOUND, lambda: next(names))}


def test_a_lease_begins_in_the_file_where_the_scan_begins() -> None:
    assert positions((QueueRange(0, 0, 50),)) == {("id0", 100)}
    assert positions((QueueRange(0, 10, 50),)) == {("id0", 1000)}
    assert positions((QueueRange(0, 19, 50), QueueRange(1, 50, 60))) == {("id0", 1000)}
    assert positions((QueueRange(0, 20, 50), QueueRange(1, 8, 60))) == {("id0", 1000)}
    assert positions((QueueRange(0, 30, 50), QueueRange(1, 30, 60))) == {("id0", 3000)}


def test_all_partitions_of_a_scan_share_their_lease() -> None:
    assert positions((QueueRange(0, 25, 50),), (QueueRange(1, 6, 9),), (QueueRange(0, 15, 25),)) == {("id0", 1000)}


def test_where_nothing_is_known_of_the_log_there_is_no_lease() -> None:
    [part] = with_leases(parts((QueueRange(0, 0, 5),), topic="Other"), FOUND, lambda: "id")
    assert part.lease_id == ""


class Line(Connection):
    """A connection to a replica that notes what it is asked, and answers if it is called f2."""

    asked: list[tuple[str, dict[str, str]]]

    def __init__(self, address: str, asked: list[tuple[str, dict[str, str]]]) -> None:
        self.address = address
        self.asked = asked

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        assert code == HOLD_LOG
        self.asked.append((self.address, ext))
        return 1

    def receive(self, opaque: int) -> Answer:
        if self.address != "f2:1":
            raise Unreachable(self.address, "did not answer in time")
        return Answer(2, "too many", {}, memoryview(b""))

    def close(self) -> None:
        self.asked.append((self.address, {}))


def test_each_replica_is_asked_once_whatever_it_answers() -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    held = with_leases(parts((QueueRange(0, 0, 5),), (QueueRange(1, 0, 5),)), FOUND, lambda: "id")
    take_leases(held, 1.0, lambda address, _: Line(address, asked))
    fields = {"leaseId": "id", "position": "100", "seconds": "600"}
    assert asked == [("f1:1", fields), ("f1:1", {}), ("f2:1", fields), ("f2:1", {})]


def test_a_replica_that_is_gone_is_left_out() -> None:
    def connect(address: str, timeout: float) -> Connection:
        raise Unreachable(address, "cannot connect")

    take_leases(with_leases(parts((QueueRange(0, 0, 5),)), FOUND, lambda: "id"), 1.0, connect)
