"""A task's rows are stored, each once, whatever brokers and connections do, and however often the task is run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode
from mq.protocol.messages.batch import split_batch
from mq.protocol.messages.sequencing import SequenceRange, sent_range
from spark.client import BrokerResponse, Connection, Unreachable
from spark.errors import RowInvalid, WriteFailed
from spark.numbering import Destination, WriteId, group_of_producer, producer_id
from spark.outgoing import sink_columns
from spark.writer import TEST_MIN, TaskWriter, WriterOptions, WrittenRows

JOB = WriteId("query", 7)
REPLICAS = 3


class Group:
    """A broker group: what it has stored, and what is about to go wrong, one fault for each request."""

    def __init__(self, name: str, queues: int = 4) -> None:
        self.name = name
        self.queues = queues
        self.known: dict[str, set[int]] = {}
        self.stored: list[tuple[str, int, bytes]] = []
        """Topic, queue and body, in the order of the log."""
        self.faults: list[str] = []
        self.down: set[int] = set()
        self.requests = 0
        self.bytes_waiting_max = 0
        self.numbers_batches = True

    def take(self, ext: dict[str, str], body: bytes) -> BrokerResponse | None:
        """Serve a send; None if nobody hears how it went."""
        self.requests += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost before":
            return None
        if fault in ("busy", "no leader", "illegal"):
            code = {"busy": 2, "no leader": 14, "illegal": 13}[fault]
            return BrokerResponse(code, fault, {}, memoryview(b""))
        messages = split_batch(body)
        numbers = sent_range(props.decode(ext["i"]), len(messages))
        assert numbers is not None
        already = self._store(ext, numbers, messages)
        if fault == "lost after":
            return None
        told = {"queueId": ext["e"], "queueOffset": "0", "msgId": "", "transactionId": ""}
        return BrokerResponse(
            0, "", told | ({"alreadyStored": str(already)} if self.numbers_batches else {}), memoryview(b"")
        )

    def _store(self, ext: dict[str, str], numbers: SequenceRange, messages: list[tuple[int, bytes, bytes]]) -> int:
        known = self.known.setdefault(numbers.producer, set())
        assert 0 <= int(ext["e"]) < self.queues
        already = 0
        for number, (_, body, _) in enumerate(messages, numbers.first):
            if number in known:
                already += 1
            else:
                known.add(number)
                self.stored.append((ext["b"], int(ext["e"]), body))
        return already

    def bodies(self) -> Counter[bytes]:
        return Counter(body for _, _, body in self.stored)


class Line(Connection):
    """A connection to a name server or a replica: answers wait until they are read."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self._sent: dict[int, BrokerResponse | None] = {}
        self._bytes: dict[int, int] = {}
        self.is_lost = False
        cluster.open_lines += 1

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        number = len(self._sent) + 1
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self._sent[number] = self._cluster.route(ext["topic"])
            return number
        assert code == RequestCode.SEND_BATCH_MESSAGE
        if self.is_lost:
            raise Unreachable(self.address, "cannot send")
        group = self._cluster.group_at(self.address)
        self._sent[number] = answer = group.take(ext, body)
        self._bytes[number] = len(body)
        group.bytes_waiting_max = max(group.bytes_waiting_max, sum(self._bytes.values()))
        self.is_lost = answer is None
        return number

    def receive(self, opaque: int) -> BrokerResponse:
        answer = self._sent[opaque]
        if answer is None:
            raise Unreachable(self.address, "closed the connection")
        self._bytes.pop(opaque, None)
        return answer

    @property
    def has_input(self) -> bool:
        return self._cluster.answers_at_once or self.is_lost

    def close(self) -> None:
        self._cluster.open_lines -= 1


class Cluster:
    """Groups of three replicas, one name server, and a clock that only sleeping moves."""

    def __init__(self, *names: str, queues: int = 4) -> None:
        self.groups = {name: Group(name, queues) for name in names or ("a",)}
        self.names_down = 0
        self.now = 0.0
        self.open_lines = 0
        self.answers_at_once = False
        self.topics = {"T", "U"}

    def group_at(self, address: str) -> Group:
        return self.groups[address.partition("-")[0]]

    def connect(self, address: str, timeout: float) -> Connection:
        if address == "names:1":
            if self.names_down:
                self.names_down -= 1
                raise Unreachable(address, "cannot connect")
        elif int(address.partition("-")[2].partition(":")[0]) in self.group_at(address).down:
            raise Unreachable(address, "cannot connect")
        return Line(self, address)

    def route(self, topic: str) -> BrokerResponse:
        if topic not in self.topics:
            return BrokerResponse(17, f"no topic {topic}", {}, memoryview(b""))
        body = {
            "queueDatas": [
                {"brokerName": each.name, "readQueueNums": 9, "writeQueueNums": each.queues, "perm": 6}
                for each in self.groups.values()
            ],
            "brokerDatas": [
                {"brokerName": name, "brokerAddrs": {str(n): f"{name}-{n}:1" for n in range(REPLICAS)}}
                for name in self.groups
            ],
        }
        return BrokerResponse(0, "", {}, memoryview(json.dumps(body).encode()))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def write(
        self,
        batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch],
        *,
        job: WriteId = JOB,
        partition: int = 0,
        **given: Any,
    ) -> WrittenRows:
        batches = list(batches)
        options: dict[str, Any] = {
            "namesrv": ("names:1",),
            "columns": sink_columns([(name, TYPES[name][0]) for name in batches[0].schema.names], "T"),
            "codec": "none",
            "in_flight_bytes_max": 1 << 20,
            "request_seconds": 1.0,
            "deadline_seconds": 30.0,
            "client_id": "spark",
            "limits": TEST_MIN,
        }
        made = TaskWriter(
            WriterOptions(**{**options, **given}),
            job,
            partition,
            connect=self.connect,
            clock=lambda: self.now,
            wall_clock=lambda: 1_700_000_000.0,
            sleep=self.sleep,
        )
        try:
            return made.write(batches)
        finally:
            assert self.open_lines == 0, "connections are left open"


TYPES = {
    "body": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "broker_name": ("string", pa.string()),
    "queue_id": ("int", pa.int32()),
}


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, TYPES[name][1]) for name, values in columns.items()], list(columns))


def bodies(count: int, size: int = 100) -> list[bytes]:
    return [b"%d:" % number + bytes(size) for number in range(count)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_rows_are_stored_in_their_order_over_all_queues() -> None:
    cluster, sent = Cluster(), bodies(95)
    written = cluster.write([rows(body=sent[:50]), rows(body=sent[50:])], partition=2)
    group = cluster.groups["a"]
    assert [body for _, _, body in group.stored] == sent
    assert {queue for _, queue, _ in group.stored} == {0, 1, 2, 3}
    assert (written.rows, written.already_stored, written.requests, written.sent_again) == (95, 0, 10, 0)
    assert cluster.now == 0.0


def test_repeated_task_adds_no_message_in_any_split() -> None:
    cluster, sent = Cluster("a", "b"), bodies(200)
    columns: dict[str, list[Any]] = {"topic": ["T", "U", None, "U", "T"] * 40, "queue_id": [0, None, 1, None, 1] * 40}
    columns["broker_name"] = ["a", "b", "b", None, "a"] * 40
    first = cluster.write([rows(body=sent, **columns)])
    before = {name: list(group.stored) for name, group in cluster.groups.items()}
    assert sum((group.bodies() for group in cluster.groups.values()), Counter()) == Counter(sent)
    whole = rows(body=sent, **columns)
    for batches in ([whole], [whole.slice(at, 13) for at in range(0, 200, 13)]):
        limits = replace(TEST_MIN, batch_rows=7)
        again = cluster.write(batches, codec="zlib", in_flight_bytes_max=1, limits=limits)
        assert (again.rows, again.already_stored) == (first.rows, 200)
    assert {name: list(group.stored) for name, group in cluster.groups.items()} == before
    assert cluster.write([whole], job=WriteId("query", 8)).already_stored == 0
    assert cluster.write([whole], partition=1).already_stored == 0


FAULTS = ["lost before", "lost after", "busy", "no leader", "", "", ""]


@pytest.mark.parametrize("seed", range(60))
def test_each_row_is_stored_once_under_faults(seed: int) -> None:
    rng = random.Random(seed)
    cluster, sent = Cluster("a", "b"), bodies(rng.randint(1, 300), rng.choice((10, 500, 3000)))
    cluster.answers_at_once = rng.random() < 0.5
    cluster.names_down = rng.choice((0, 0, 3))
    columns: dict[str, list[Any]] = {"body": sent}
    if rng.random() < 0.5:
        columns["broker_name"] = [rng.choice("ab") for _ in sent]
        columns["queue_id"] = [rng.choice((None, 0, 1)) for _ in sent]
    for group in cluster.groups.values():
        group.faults = [rng.choice(FAULTS) for _ in range(40)]
        group.down = set(rng.sample(range(REPLICAS), rng.randint(0, REPLICAS - 1)))
    given: dict[str, Any] = {"in_flight_bytes_max": rng.choice((1, 5000, 1 << 20))}
    whole, already = rows(**columns), 0
    for _ in range(rng.randint(1, 3)):  # attempts of the task; all but the last one may be cut off
        cut = rng.randint(0, len(sent))
        if cut:
            already = cluster.write([whole.slice(0, cut)], **given).already_stored
    written = cluster.write([whole.slice(at, 64) for at in range(0, len(sent), 64)], **given)
    assert sum((group.bodies() for group in cluster.groups.values()), Counter()) == Counter(sent)
    assert written.rows == len(sent)
    assert written.already_stored >= already


def test_rows_in_flight_are_bounded() -> None:
    cluster, sent = Cluster(), bodies(300)
    cluster.write([rows(body=sent)], in_flight_bytes_max=4000)
    assert cluster.groups["a"].bytes_waiting_max <= 4000
    large = Cluster()
    large.write([rows(body=bodies(5, 10_000))], in_flight_bytes_max=4000)  # each by itself
    assert 10_000 < large.groups["a"].bytes_waiting_max < 11_000
    assert large.groups["a"].requests == 5


def test_unreachable_leader_is_searched_among_the_others() -> None:
    cluster, sent = Cluster(), bodies(100)
    group = cluster.groups["a"]
    group.faults = ["", "", "lost after"]
    original = group.take

    def take(ext: dict[str, str], body: bytes) -> BrokerResponse | None:
        answer = original(ext, body)
        if answer is None:
            group.down = {0}
        return answer

    group.take = take  # type: ignore[method-assign]
    written = cluster.write([rows(body=sent)])
    assert group.bodies() == Counter(sent)
    assert written.sent_again
    assert cluster.now == 0.0, "nobody waits while a replica is left that was not asked"


@pytest.mark.parametrize("fault", ["busy", "no leader", "lost before"])
def test_write_deadline_fails_the_task(cluster: Cluster, fault: str) -> None:
    cluster.groups["a"].faults = [fault] * 10_000
    with pytest.raises(WriteFailed) as failed:
        cluster.write([rows(body=bodies(30))])
    told = str(failed.value)
    assert told.startswith("rows 0 to 9 of the task for topic 'T' are not stored, and no request succeeded for 3")
    assert ("closed the connection" if fault == "lost before" else fault) in told
    assert told.endswith("raise option writeDeadline to wait longer")
    assert 30 <= cluster.now < 40


def test_time_without_rows_is_not_time_without_progress(cluster: Cluster) -> None:
    group = cluster.groups["a"]

    def slowly() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            cluster.now += 1000
            group.faults = ["busy"] * 3
            yield rows(body=bodies(10 + number))

    made = TaskWriter(
        WriterOptions(
            namesrv=("names:1",),
            columns=sink_columns([("body", "binary")], "T"),
            codec="none",
            in_flight_bytes_max=1,
            request_seconds=1.0,
            deadline_seconds=30.0,
            client_id="spark",
        ),
        JOB,
        0,
        connect=cluster.connect,
        clock=lambda: cluster.now,
        sleep=cluster.sleep,
    )
    assert made.write(slowly()).rows == 145


@pytest.mark.parametrize(
    ("columns", "given", "told"),
    [
        ({"topic": ["T", "Nowhere"]}, {}, "the topic 'Nowhere' does not exist; create it first"),
        ({"queue_id": [0, 4]}, {}, "a row has queue_id 4; topic 'T' has 4 queues in a"),
        ({"broker_name": ["a", "z"]}, {}, "topic 'T' has no queues to write to in broker group z"),
    ],
)
def test_nonexistent_destination_is_reported(columns: dict[str, list[Any]], given: dict[str, Any], told: str) -> None:
    with pytest.raises(WriteFailed, match=told):
        Cluster().write([rows(body=[b"x", b"y"], **columns)], **given)


def test_queue_of_one_among_several_groups_needs_the_group() -> None:
    with pytest.raises(WriteFailed, match="in the broker groups a, b: with a column queue_id the sink also needs"):
        Cluster("b", "a").write([rows(body=[b"x"], queue_id=[0])])


def test_rows_without_a_group_are_sent_to_one_group() -> None:
    cluster = Cluster("a", "b", "c")
    for partition in range(12):
        cluster.write([rows(body=[b"%d" % partition] * 25)], partition=partition)
    for partition in range(12):
        expected = group_of_producer(producer_id(JOB, partition, Destination("T")), "abc")
        found = [name for name, group in cluster.groups.items() if group.bodies()[b"%d" % partition]]
        assert found == [expected]


def test_refusal_for_good_fails_the_task_at_once(cluster: Cluster) -> None:
    cluster.groups["a"].faults = ["", "illegal"]
    with pytest.raises(WriteFailed, match=r"rows 10 to 19 of the task for topic 'T' were refused: .* illegal .code 13"):
        cluster.write([rows(body=bodies(30))])
    assert cluster.now == 0.0


def test_brokers_that_do_not_number_batches_get_only_one_batch(cluster: Cluster) -> None:
    cluster.groups["a"].numbers_batches = False
    with pytest.raises(WriteFailed, match="without sequence numbers, so that a repetition would store them twice"):
        cluster.write([rows(body=bodies(100))])
    assert cluster.groups["a"].requests == 1


def test_invalid_row_is_reported_by_number() -> None:
    with pytest.raises(RowInvalid, match="row 51: its body is empty") as refused:
        Cluster().write([rows(body=[b"x"] * 50), rows(body=[b"x", b""])])
    assert refused.value.row == 51


def test_task_with_too_many_destinations_is_refused_with_advice() -> None:
    few = replace(TEST_MIN, destinations_max=3)
    with pytest.raises(WriteFailed, match="than 3 topics and queues, the last one topic 'T', queue 3; repartition"):
        Cluster().write([rows(body=[b"x"] * 4, queue_id=[0, 1, 2, 3])], limits=few)


def test_writer_waits_for_unreachable_name_servers(cluster: Cluster) -> None:
    cluster.names_down = 5
    assert cluster.write([rows(body=[b"x"])]).rows == 1
    cluster.names_down = 1_000_000
    with pytest.raises(WriteFailed, match="topic 'T' is not found, and no request succeeded for 3"):
        cluster.write([rows(body=[b"x"])])


def test_empty_task_sends_no_requests(cluster: Cluster) -> None:
    assert cluster.write([rows(body=[])]) == WrittenRows()
    assert cluster.groups["a"].requests == 0
