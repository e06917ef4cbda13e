"""A task that reads several queues at once gets each message once, whatever single replicas do meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mq.protocol.bulk import (
    BulkStatus,
    ReadRange,
    decode_answer,
    decode_ranges,
    encode_answer_head,
    encode_no_records,
    encode_offsets,
)
from mq.protocol.codes import RequestCode
from mq.protocol.numbers import QueueOffset
from spark.bulk_reader import BulkTaskReader
from spark.client import BrokerResponse, Connection, Unreachable
from spark.errors import DataLoss, ReadFailed
from spark.plan import LogRange, QueueRange
from spark.reader_choice import task_reader
from spark.task_reader import TaskOptions, TaskReader
from tests.support.spark_replicas import REPLICAS, Cluster, expected, rows, stored, task_options

QUEUES = 4


class BulkReplica:
    """A broker with the messages [first, end) of every queue. ``faults`` are taken one for each read."""

    def __init__(self, order: list[tuple[int, int]], end: int, *, leads: bool = False) -> None:
        self.order = order
        self.first, self.end = 0, end
        self.leads = leads
        self.is_down = False
        self.is_old = False
        """Whether it always sends records."""
        self.counted = 0
        self.identity = "1-1000"
        self.faults: list[Callable[[BrokerResponse], BrokerResponse | None]] = []
        self.reads: list[dict[str, str]] = []
        self.served = 0

    def read(self, ext: dict[str, str], body: bytes, records_max: int) -> bytes:
        self.reads.append(ext)
        ranges = {each.queue_id: each for each in decode_ranges(body)}
        if ext["topicIdentity"] not in ("", self.identity):
            return encode_no_records(BulkStatus.RECREATED, text=self.identity)
        if self.leads and ext["allowLeader"] != "true":
            return encode_no_records(BulkStatus.NOT_FOLLOWER, text="f1:1,f2:1")
        gone = {queue: QueueOffset(self.first) for queue, each in ranges.items() if each.start < self.first}
        if gone:
            return encode_no_records(BulkStatus.GONE, offsets=gone)
        there = {
            queue: ReadRange(queue, each.start, QueueOffset(min(each.end, self.end))) for queue, each in ranges.items()
        }
        offsets = {queue: each.start for queue, each in there.items() if each.start < each.end}
        if not offsets:
            return encode_no_records(BulkStatus.BEHIND, offsets=dict.fromkeys(ranges, QueueOffset(self.end)))
        if ext.get("offsetsOnly") == "true" and not self.is_old:
            self.counted += 1
            return encode_offsets({queue: there[queue].end for queue in offsets})
        looked = [
            (queue, offset)
            for queue, offset in self.order
            if queue in there and there[queue].start <= offset < there[queue].end
        ][:records_max]
        for queue, offset in looked:
            offsets[queue] = QueueOffset(offset + 1)
        wanted = [row for row in looked if ext["tags"] == "*" or (row[1] % 2 == 0) == (ext["tags"] == "even")]
        pieces = [stored(*row) for row in wanted]
        if is_cut := ext["bodies"] == "false":
            pieces = [piece[:88] + piece[88 + len(b"%d/%d" % row) :] for piece, row in zip(pieces, wanted, strict=True)]
        head = encode_answer_head(
            offsets, [queue for queue, _ in wanted], [len(each) for each in pieces], without_bodies=is_cut
        )
        self.served += sum(map(len, pieces))
        return head + b"".join(pieces)


class Line(Connection):
    """A connection to a replica of the cluster."""

    def __init__(self, cluster: BulkCluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self._sent: dict[int, tuple[int, dict[str, str], bytes]] = {}
        cluster.open_lines += 1

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        if self.address != "names:1" and self._cluster.bulk_replicas[self.address].is_down:
            raise Unreachable(self.address, "cannot send")
        number = len(self._sent) + 1
        self._sent[number] = code, ext, body
        return number

    def receive(self, opaque: int) -> BrokerResponse:
        code, ext, body = self._sent[opaque]
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._cluster.route()
        replica = self._cluster.bulk_replicas[self.address]
        if replica.is_down:
            raise Unreachable(self.address, "closed the connection")
        if code == RequestCode.HOLD_LOG:
            self._cluster.leases.append((self.address, ext))
            return BrokerResponse(2, "too many leases", {}, memoryview(b""))
        assert code == RequestCode.BULK_READ
        data = replica.read(ext, body, self._cluster.rng.randint(1, 9))
        answer: BrokerResponse | None = BrokerResponse(0, "", {}, memoryview(data))
        if replica.faults:
            assert answer is not None
            answer = replica.faults.pop(0)(answer)
        if answer is None:
            raise Unreachable(self.address, "did not answer in time")
        return answer

    def close(self) -> None:
        self._cluster.open_lines -= 1


class BulkCluster(Cluster):
    """As `Cluster`, of replicas that serve bulk reads; all have the same order of messages."""

    def __init__(self, end: int = 50) -> None:
        super().__init__(end)
        self.leases: list[tuple[str, dict[str, str]]] = []
        left = dict.fromkeys(range(QUEUES), 0)
        self.order: list[tuple[int, int]] = []
        while left:
            queue = self.rng.choice(list(left))
            self.order.append((queue, left[queue]))
            left[queue] += 1
            if left[queue] == end:
                del left[queue]
        self.bulk_replicas = {
            address: BulkReplica(self.order, end, leads=address == "leader:1") for address in REPLICAS
        }

    def connect(self, address: str, timeout: float) -> Connection:
        if address != "names:1" and self.bulk_replicas[address].is_down:
            raise Unreachable(address, "cannot connect")
        return Line(self, address)

    def options(self, **options: Any) -> TaskOptions:
        return task_options(**{"read_mode": "bulk", **options})

    def reader(self, *ranges: QueueRange, lease_id: str = "", **options: Any) -> TaskReader:
        part = LogRange("T", "1-1000", "a", ranges, REPLICAS, lease_id, 4096)
        return BulkTaskReader(
            part, self.options(**options), connect=self.connect, clock=lambda: self.now, sleep=self.sleep
        )

    def expected(self, *ranges: QueueRange) -> list[tuple[int, int, bytes]]:
        """The rows of these ranges in the order of the log."""
        wanted = set(expected(*ranges))
        return [row for each in self.order if (row := (*each, b"%d/%d" % each)) in wanted]


RANGES = (QueueRange(0, 3, 40), QueueRange(2, 0, 50), QueueRange(3, 7, 8))


@pytest.fixture
def cluster() -> BulkCluster:
    return BulkCluster()


def test_first_replica_returns_messages_in_log_order(cluster: BulkCluster) -> None:
    reader = cluster.reader(*RANGES)

    assert rows(reader) == cluster.expected(*RANGES)
    assert cluster.open_lines == 0
    assert (reader.statistics.rows, reader.statistics.switches, list(reader.statistics.replicas)) == (88, 0, ["f1:1"])
    assert reader.statistics.nbytes == cluster.bulk_replicas["f1:1"].served


PLACES = ("topic", "queue_offset", "queue_id", "broker_name")


def places(reader: TaskReader) -> list[tuple[int, int]]:
    found = []
    for batch in reader.read():
        assert batch.schema.names == list(PLACES)
        for row in batch.to_pylist():
            assert (row["topic"], row["broker_name"]) == ("T", "a")
            found.append((row["queue_id"], row["queue_offset"]))
    return found


@pytest.mark.parametrize("is_old", [False, True])
def test_counting_reads_transfer_no_messages(cluster: BulkCluster, is_old: bool) -> None:
    replica = cluster.bulk_replicas["f1:1"]
    replica.is_old = is_old
    reader = cluster.reader(*RANGES, columns=PLACES)

    assert sorted(places(reader)) == [row[:2] for row in sorted(cluster.expected(*RANGES))]
    assert (replica.counted, bool(replica.served)) == ((0, True) if is_old else (1, False))
    assert reader.statistics.rows == 88


def test_queries_of_places_alone_count_messages_without_reading(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].end = 20  # the rest is at another replica

    assert sorted(places(cluster.reader(*RANGES, columns=PLACES))) == [
        row[:2] for row in sorted(cluster.expected(*RANGES))
    ]
    for replica in cluster.bulk_replicas.values():
        replica.first = 5
    with pytest.raises(DataLoss, match="were deleted"):
        places(cluster.reader(*RANGES, columns=PLACES))
    assert len(places(cluster.reader(*RANGES, columns=PLACES, on_data_loss="skip"))) == 88 - 2 - 5


def test_tag_filter_reads_the_messages(cluster: BulkCluster) -> None:
    reader = cluster.reader(*RANGES, columns=("queue_offset",), tags=("even",))

    list(reader.read())
    assert all("offsetsOnly" not in ext for ext in cluster.bulk_replicas["f1:1"].reads)


def test_unrequested_answer_without_records_is_refused() -> None:
    def without(answer: BrokerResponse) -> BrokerResponse:
        return answer._replace(body=memoryview(encode_offsets({0: QueueOffset(40)})))

    cluster = BulkCluster()
    cluster.bulk_replicas["f1:1"].faults = [without]
    reader = cluster.reader(*RANGES)

    assert sorted(rows(reader)) == sorted(cluster.expected(*RANGES))
    assert reader.statistics.switches == 1


def cut(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=answer.body[:-1])


def shifted(answer: BrokerResponse) -> BrokerResponse:
    """Records of another place: each is the next one of its queue."""
    found = decode_answer(answer.body)
    if found.status is not BulkStatus.RECORDS or not found.sizes:
        return cut(answer)
    data = bytearray(found.data)
    at = 0
    for size in found.sizes:
        data[at + 20 : at + 28] = (int.from_bytes(data[at + 20 : at + 28], "big") + 1).to_bytes(8, "big")
        at += size
    head = encode_answer_head(found.offsets, found.queue_ids, found.sizes, without_bodies=found.without_bodies)
    return answer._replace(body=memoryview(head + data))


def too_far(answer: BrokerResponse) -> BrokerResponse:
    """An answer that leads over messages that it has not brought."""
    found = decode_answer(answer.body)
    offsets = {queue: offset + 1 for queue, offset in found.offsets.items()}
    head = encode_answer_head(offsets, found.queue_ids, found.sizes, without_bodies=found.without_bodies)
    return answer._replace(body=memoryview(head + found.data))


def nowhere(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=memoryview(encode_answer_head({}, [], [], without_bodies=False)))


def of_others(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=memoryview(encode_answer_head({1: QueueOffset(5)}, [], [], without_bodies=False)))


def garbage(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=memoryview(b"\xff" * 200))


def failed(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(code=1, remark="StorageFailed: no such luck")


def damaged(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=memoryview(encode_no_records(BulkStatus.DAMAGED, text="entry 7")))


def lost(answer: BrokerResponse) -> None:
    return None


FAULTS = [cut, shifted, too_far, nowhere, of_others, garbage, failed, damaged, lost]


@pytest.mark.parametrize("fault", FAULTS)
def test_another_replica_continues_after_a_failure(
    cluster: BulkCluster, fault: Callable[[BrokerResponse], BrokerResponse | None]
) -> None:
    cluster.bulk_replicas["f1:1"].faults = [lambda answer: answer, fault]
    reader = cluster.reader(*RANGES)

    assert rows(reader) == cluster.expected(*RANGES)
    assert reader.statistics.switches == 1
    assert set(reader.statistics.replicas) == {"f1:1", "f2:1"}
    assert cluster.bulk_replicas["leader:1"].served == 0


def test_busy_replica_is_asked_again_after_its_pause(cluster: BulkCluster) -> None:
    busy = memoryview(encode_no_records(BulkStatus.BUSY, pause_ms=50))
    cluster.bulk_replicas["f1:1"].faults = [lambda answer: answer._replace(body=busy)] * 3
    reader = cluster.reader(*RANGES)

    assert rows(reader) == cluster.expected(*RANGES)
    assert cluster.now == pytest.approx(0.15)
    assert list(reader.statistics.replicas) == ["f1:1"]


def test_reader_leaves_a_replica_that_is_always_busy(cluster: BulkCluster) -> None:
    busy = memoryview(encode_no_records(BulkStatus.BUSY, pause_ms=50))
    cluster.bulk_replicas["f1:1"].faults = [lambda answer: answer._replace(body=busy)] * 1000
    reader = cluster.reader(*RANGES)

    assert rows(reader) == cluster.expected(*RANGES)
    assert list(reader.statistics.replicas) == ["f2:1"]


def test_bulk_reader_does_not_read_from_the_leader_while_a_follower_lives(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].end = 20
    cluster.bulk_replicas["f2:1"].leads = True  # since the query was planned
    cluster.bulk_replicas["leader:1"].leads = False
    reader = cluster.reader(*RANGES)

    assert sorted(rows(reader)) == sorted(expected(*RANGES))
    assert cluster.bulk_replicas["f2:1"].served == 0


def test_leader_serves_if_all_followers_fail(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].is_down = cluster.bulk_replicas["f2:1"].is_down = True
    reader = cluster.reader(*RANGES)

    assert rows(reader) == cluster.expected(*RANGES)
    assert list(reader.statistics.replicas) == ["leader:1"]


def test_follower_only_option_never_reads_from_the_leader(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].is_down = cluster.bulk_replicas["f2:1"].is_down = True

    with pytest.raises(ReadFailed, match="leads now"):
        rows(cluster.reader(*RANGES, read_from="follower-only"))
    assert cluster.bulk_replicas["leader:1"].served == 0


def test_deleted_messages_fail_the_query_or_are_counted(cluster: BulkCluster) -> None:
    for replica in cluster.bulk_replicas.values():
        replica.first = 10

    with pytest.raises(DataLoss, match=r"'T', queue a:0: offsets 3 to 9 \(7 messages\) were .*failOnDataLoss=false"):
        rows(cluster.reader(*RANGES))
    reader = cluster.reader(*RANGES, on_data_loss="skip")
    assert rows(reader) == cluster.expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skip_count == 18


def test_messages_deleted_by_one_replica_are_read_from_another(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].first = 10
    reader = cluster.reader(*RANGES, on_data_loss="skip")

    assert rows(reader) == cluster.expected(*RANGES)
    assert (reader.statistics.skip_count, list(reader.statistics.replicas)) == (0, ["f2:1"])


def test_reader_uses_the_leader_if_followers_deleted_the_messages(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].first = cluster.bulk_replicas["f2:1"].first = 10

    assert rows(cluster.reader(*RANGES)) == cluster.expected(*RANGES)


def test_message_deleted_on_some_replicas_is_not_reported_lost(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].first = 30
    cluster.bulk_replicas["f2:1"].first = 10
    cluster.bulk_replicas["leader:1"].first = 20
    reader = cluster.reader(*RANGES, on_data_loss="skip")

    assert rows(reader) == cluster.expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skip_count == 18
    assert list(reader.statistics.replicas) == ["leader:1", "f2:1"]
    assert cluster.bulk_replicas["leader:1"].served == 0
    with pytest.raises(DataLoss, match=r"offsets 3 to 9 \(7 messages\)"):
        rows(cluster.reader(*RANGES))


def test_unreachable_replica_does_not_delay_the_loss_report(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f2:1"].is_down = True
    cluster.bulk_replicas["f1:1"].first = cluster.bulk_replicas["leader:1"].first = 10
    reader = cluster.reader(*RANGES, on_data_loss="skip")

    assert rows(reader) == cluster.expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skip_count == 18


def test_reading_a_recreated_topic_as_its_predecessor_fails(cluster: BulkCluster) -> None:
    for replica in cluster.bulk_replicas.values():
        replica.identity = "9-2000"

    with pytest.raises(DataLoss, match=r"created again .* \(it was 1-1000, it is 9-2000\)"):
        rows(cluster.reader(*RANGES, on_data_loss="skip"))


@pytest.mark.parametrize("tag", ["even", "odd"])
def test_task_reads_only_messages_with_a_selected_tag(cluster: BulkCluster, tag: str) -> None:
    reader = cluster.reader(*RANGES, tags=(tag,))

    assert rows(reader) == [row for row in cluster.expected(*RANGES) if (row[1] % 2 == 0) == (tag == "even")]


def test_replicas_omit_unselected_bodies(cluster: BulkCluster) -> None:
    reader = cluster.reader(*RANGES, columns=("tags", "queue_offset"))

    found = [(row["queue_offset"], row["tags"]) for batch in reader.read() for row in batch.to_pylist()]
    assert found == [(offset, "odd" if offset % 2 else "even") for _, offset, _ in cluster.expected(*RANGES)]
    assert all(ext["bodies"] == "false" for ext in cluster.bulk_replicas["f1:1"].reads)


def test_first_answer_is_small_and_the_next_ones_grow(cluster: BulkCluster) -> None:
    rows(cluster.reader(*RANGES, fetch_bytes=2 << 20))

    asked = [int(ext["bytesMax"]) for ext in cluster.bulk_replicas["f1:1"].reads]
    assert asked[:4] == [256 << 10, 1 << 20, 2 << 20, 2 << 20]


def test_log_is_leased_at_each_replica_read_and_renewed_later(cluster: BulkCluster) -> None:
    reader = cluster.reader(*RANGES, lease_id="scan")
    batches = reader.read()
    next(batches)
    cluster.now += 61
    next(batches)
    cluster.bulk_replicas["f1:1"].is_down = True
    for _ in batches:
        pass

    assert [address for address, _ in cluster.leases] == ["f1:1", "f1:1", "f2:1"]
    assert {tuple(fields.items()) for _, fields in cluster.leases} == {
        (("leaseId", "scan"), ("position", "4096"), ("seconds", "600"))
    }


def test_abandoned_reader_closes_its_connections(cluster: BulkCluster) -> None:
    batches = cluster.reader(*RANGES).read()

    next(batches)
    assert cluster.open_lines == 1
    batches.close()  # type: ignore[attr-defined]

    assert cluster.open_lines == 0


def test_stock_brokers_are_recognized_and_pull_mode_is_suggested(cluster: BulkCluster) -> None:
    cluster.bulk_replicas["f1:1"].faults = [lambda answer: answer._replace(code=3, remark=" request type 9007 not")]

    with pytest.raises(ReadFailed, match="readMode=pull"):
        rows(cluster.reader(*RANGES))


@pytest.mark.parametrize("seed", range(40))
def test_each_message_is_read_once_under_replica_faults(cluster: BulkCluster, seed: int) -> None:
    rng = random.Random(seed)
    for replica in cluster.bulk_replicas.values():
        replica.faults = [rng.choice([*FAULTS, lambda answer: answer]) for _ in range(30)]
        replica.end = rng.choice([20, 50, 50])
        replica.leads = False
    cluster.bulk_replicas["leader:1"].end = 50
    cluster.bulk_replicas[rng.choice(REPLICAS)].leads = True

    found = rows(cluster.reader(*RANGES))

    assert sorted(found) == sorted(expected(*RANGES))
    for each in RANGES:
        mine = [offset for queue, offset, _ in found if queue == each.queue_id]
        assert mine == list(range(each.start, each.end))


def test_mode_decides_how_a_partition_is_read() -> None:
    part = LogRange("T", "", "a", RANGES, REPLICAS)
    options = BulkCluster().options()
    assert type(task_reader(part, options)) is BulkTaskReader
    assert type(task_reader(part, BulkCluster().options(read_mode="pull"))) is TaskReader


def test_executors_import_only_modules_without_dependencies() -> None:
    program = (
        "import sys; import spark.bulk_reader; "
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in {'mq', 'raftlog'})); "
        "print(sorted(sys.modules.keys() & {'msgspec', 'trio', 'anyio', 'cbor2', 'lz4', 'zstandard', 'pyspark'}))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours, foreign = shown.stdout.splitlines()
    assert "mq.protocol.bulk" in ours
    assert "mq.protocol.wire" not in ours
    assert foreign == "[]"
