"""The workload "scan": readers of whole topics, one of which is deleted and recreated at times, beside producers.

What must hold: a row is a committed message, byte for byte, whichever replica served it; the rows of a queue have no
gap and no duplicate; neither plans nor the ends of many topics report an uncommitted end, and with `current` they
report everything committed before the request; places are where messages are. One identity of a topic means the same
messages for ever. A reader with a hold on the log finds everything that it holds. In the end everything can be read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import CommittedRecord
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import Workload
from chaos.log_sim.node import Node
from chaos.violation import Violation
from mq.broker.state.commands import DeleteTopic
from mq.protocol.bulk import (
    BulkResponse,
    BulkStatus,
    PlannedPlace,
    PlannedQueue,
    ReadRange,
    decode_answer,
    decode_plan,
    encode_ranges,
)
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import decode_record
from mq.protocol.numbers import QueueOffset
from mq.protocol.topic_ends import decode_ends, encode_topics

_SCANS_MAX = 4
_ATTEMPTS_MAX = 60
_LEASE_SECONDS = 10
_PASSING = "U"
"""The topic that is deleted at times."""
_OFFSET_AT = 20


class Scan(Workload):
    name = "scan"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._deletes: DeleteTopic | None = None
        self._deletions = 0
        self._incarnation_at: dict[int, int] = {}
        """For each record of the passing topic, by physical offset: the number of earlier deletions of the topic."""
        self._incarnations: dict[str, int] = {}
        """The number of deletions before each identity of the passing topic."""
        self.scans: list[ScanRead] = []
        self._last: ScanRead | None = None

    def settings(self) -> dict[str, Any]:
        return {"bulk_reads_max": self.rng.choice((1, 4)), "log_lease_seconds_max": 60.0}

    def run_operation(self) -> None:
        chance = self.rng.random()
        if chance < 0.1 and len(self.scans) < _SCANS_MAX:
            self.scans.append(ScanRead(self, self.rng.choice((self.topic, self.topic, _PASSING)), is_last=False))
            self.scans[-1].plan()
        elif chance < 0.12:
            self.counts["deletions asked for"] += 1
            code = RequestCode.DELETE_TOPIC_IN_BROKER
            self.clients[0].request(self.cluster.some_node(self.rng), code, {"topic": _PASSING}, b"", None)
        else:
            message = self.new("plain", {})
            if self.rng.random() < 0.4:
                message.topic = _PASSING
            self.send(message)

    def stop(self) -> None:
        """Stop the clients, and start a last reader that reads the whole topic."""
        if not self.stopped:
            self._last = ScanRead(self, self.topic, is_last=True)
            self.cluster.at(self.cluster.now, self._last.plan)
        super().stop()

    def pending_count(self) -> int:
        """Return 1 until the last reader has ended, then 0."""
        return int(self._last is None or not self._last.is_over)

    def on_commit(self, commit: CommittedRecord) -> None:
        if commit.record.topic == _PASSING:
            self._incarnation_at[commit.record.physical_offset] = self._deletions

    def on_command(self, command: Any) -> None:
        if isinstance(command, DeleteTopic) and command.name == _PASSING:
            self._deletes = command

    def on_entry_end(self) -> None:
        """Apply the commands of an entry, which come after its messages."""
        if self._deletes is not None:
            self._deletions += 1
            self.counts["deletions"] += 1
            self.ledger.delete_topic(_PASSING, continued=self._deletes.continued)
            self._deletes = None

    def check_row(self, identity: str, queue_id: int, offset: int, data: memoryview, *, bodies: bool) -> None:
        """Check that a row is the committed message at its place."""
        position = int.from_bytes(data[_OFFSET_AT + 8 : _OFFSET_AT + 16], "big")
        commit = self.ledger.at_position.get(position)
        if commit is None:
            raise Violation(f"uncommitted read: a row of queue {queue_id}, offset {offset}, is at {position}")
        record = commit.record
        place = (int.from_bytes(data[12:16], "big"), int.from_bytes(data[_OFFSET_AT : _OFFSET_AT + 8], "big"))
        if place != (queue_id, offset) or place != (record.queue_id, record.queue_offset):
            raise Violation(
                f"read: a row of queue {queue_id}, offset {offset}, is {place}, but {commit} is at {position}"
            )
        if bodies and decode_record(data) != record:
            raise Violation(f"read: {commit.place} is {record}, but {decode_record(data)} was read")
        if not bodies and len(data) != record.size - len(record.body):
            raise Violation(f"read: {commit.place} has {record.size} bytes, but {len(data)} came without its body")
        if record.topic == _PASSING:
            incarnation = self._incarnation_at[position]
            if identity and self._incarnations.setdefault(identity, incarnation) != incarnation:
                raise Violation(
                    f"identity: {identity} of {_PASSING} was incarnation {self._incarnations[identity]}, "
                    f"{commit.place} is of {incarnation}"
                )
        self.counts["rows"] += 1


class ScanRead:
    """A reader of a topic. It plans, may take a lease on a replica's log, and reads to the end of its plan."""

    def __init__(self, workload: Scan, topic: str, *, is_last: bool) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self._rng = workload.rng
        self._topic = topic
        self._is_last = is_last
        self._client = workload.rng.choice(workload.clients)
        self._node = self._some_node()
        self._identity = ""
        self._ranges: dict[int, ReadRange] = {}
        self._number = workload.rng.getrandbits(32)
        self._attempts = 0
        self._lease: tuple[object, float] | None = None
        """The process that granted a lease on its log, and the end of the lease by its clock."""
        self.is_over = False

    def _some_node(self) -> Node:
        return self._rng.choice(list(self._cluster.nodes.values()))

    def _ask(
        self,
        code: int,
        fields: dict[str, Any],
        body: bytes,
        then: Callable[[ClientResponse], None],
        again: Callable[[], None],
    ) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                then(response)
            else:
                self._later(again)

        self._client.request(
            self._node, code, fields, body, on_response, serialization=self._workload.encoding(code), seconds=6.0
        )

    def _later(self, step: Callable[[], None]) -> None:
        self._attempts += 1
        if self._attempts > _ATTEMPTS_MAX and not self._is_last:
            self._end("scans given up")
        else:
            self._cluster.at(self._cluster.now + self._rng.uniform(0.01, 0.4), step)

    def _end(self, what: str) -> None:
        self._workload.counts[what] += 1
        self.is_over = True
        if self in self._workload.scans:
            self._workload.scans.remove(self)

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Ask a replica for the ends of the topic's queues."""
        self._node = self._some_node()
        current = self._is_last or self._rng.random() < 0.5
        before = {queue_id: len(records) for (topic, queue_id), records in self._queues() if topic == self._topic}
        detail = self._rng.random() < 0.7
        fields = {"topic": self._topic, "detail": detail, "current": current}
        if not current:
            before = {}

        def on_plan(response: ClientResponse) -> None:
            self._on_plan(response.ext["topicIdentity"], *decode_plan(response.body), before)

        def on_response(response: ClientResponse) -> None:
            ends = decode_ends(response.body)[0]
            both = zip(ends.firsts, ends.ends, strict=True)
            self._on_plan(ends.identity, [PlannedQueue(number, *each) for number, each in enumerate(both)], [], before)

        if detail or self._number % 2:
            self._ask(RequestCode.PLAN_TOPIC, fields, b"", on_plan, self.plan)
        else:
            topics = encode_topics(dict.fromkeys((self._topic, self._workload.topic)))
            self._workload.counts["ends asked"] += 1
            self._ask(RequestCode.ASK_TOPIC_ENDS, {"current": current}, topics, on_response, self.plan)

    def _on_plan(
        self, identity: str, queues: list[PlannedQueue], places: list[PlannedPlace], before: dict[int, int]
    ) -> None:
        if self._topic == self._workload.topic:
            self._check_plan(queues, places, before)
        self._identity = identity
        ahead = 0 if self._is_last else self._rng.choice((0, 0, 1, 20))  # also beyond the end
        self._ranges = {
            each.queue_id: ReadRange(each.queue_id, each.first, each.end + ahead)
            for each in queues
            if each.first < each.end + ahead
        }
        if self._topic == self._workload.topic and self._ranges and not ahead and self._rng.random() < 0.5:
            self._hold()
        else:
            self._read()

    def _queues(self) -> Any:
        return list(self._workload.ledger.queues.items())

    def _check_plan(self, queues: list[PlannedQueue], places: list[PlannedPlace], before: dict[int, int]) -> None:
        ledger = self._workload.ledger.queues
        for number, each in enumerate(queues):
            records = ledger[self._topic, each.queue_id]
            if each.end > len(records):
                raise Violation(f"uncommitted end: {each} is beyond the {len(records)} committed messages")
            if each.end < before.get(each.queue_id, 0):
                raise Violation(f"stale read: {each}, but {before[each.queue_id]} were committed before the request")
            positions = [commit.record.physical_offset for commit in records[: each.end]]
            for place in places:
                expected = min(max(bisect_left(positions, place.position), each.first), each.end)
                if place.offsets[number] != expected:
                    raise Violation(f"place: queue {each} at {place.position} is {expected}, but the plan has {place}")

    def _hold(self) -> None:
        ledger = self._workload.ledger.queues
        position = min(
            ledger[self._topic, each.queue_id][each.start].record.physical_offset for each in self._ranges.values()
        )
        process = self._node.process
        until = self._node.clock() + _LEASE_SECONDS
        fields = {"leaseId": f"{self._number}", "position": position, "seconds": _LEASE_SECONDS}

        def on_hold(response: ClientResponse) -> None:
            if int(response.ext["basePosition"]) <= position:
                self._lease = process, until
                self._workload.counts["leases"] += 1
            self._read()

        self._ask(RequestCode.HOLD_LOG, fields, b"", on_hold, self._read)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if not self._ranges:
            self._end("scans")
            return
        if self._lease is None and (self._rng.random() < 0.2 or self._node.process is None):
            self._node = self._some_node()
        bodies = self._rng.random() < 0.8
        fields = {
            "topic": self._topic,
            "topicIdentity": self._identity,
            "bytesMax": self._rng.choice((1, 500, 5000, 1 << 20)),
            "bodies": bodies,
            "clientId": "scan",
            "allowLeader": self._is_last or self._rng.random() < 0.6,
            "waitMs": self._rng.choice((0, 0, 1000)),
        }
        body = encode_ranges(self._ranges.values())
        self._ask(RequestCode.BULK_READ, fields, body, self._on_response, self._read)

    def _on_response(self, response: ClientResponse) -> None:
        bulk = decode_answer(response.body)
        match bulk.status:
            case BulkStatus.RECORDS:
                self._check_answer(bulk)
                self._attempts = 0
                self._cluster.at(self._cluster.now + self._rng.choice((0.0, 0.05, 0.5)), self._read)
                return
            case BulkStatus.GONE:
                self._check_lease(bulk)
                for queue_id, first in bulk.offsets.items():
                    start, end = self._ranges[queue_id][1:]
                    if first <= start:
                        raise Violation(f"gone: queue {queue_id} begins at {first}, but {start} was requested")
                    self._continue_at(queue_id, min(first, end))
                self._workload.counts["gone"] += 1
            case BulkStatus.RECREATED:
                if self._topic == self._workload.topic:
                    raise Violation(f"identity: {self._topic} is {bulk.text}, but was {self._identity}")
                self._end("scans of a topic that was made anew")
                return
            case BulkStatus.BEHIND | BulkStatus.NOT_FOLLOWER | BulkStatus.BUSY | BulkStatus.DAMAGED:
                self._workload.counts[f"answers {bulk.status.name}"] += 1
        self._later(self._read)

    def _check_lease(self, response: BulkResponse) -> None:
        if self._lease is None:
            return
        process, until = self._lease
        if isinstance(process, BrokerProcess) and self._node.process is process and self._node.clock() < until:
            raise Violation(
                f"lease: {process.node_id} deleted what a lease keeps: {dict(response.offsets)}, {self._ranges}"
            )
        self._lease = None

    def _check_answer(self, response: BulkResponse) -> None:
        offsets = {queue_id: each.start for queue_id, each in self._ranges.items()}
        at = 0
        before = -1
        for queue_id, size in zip(response.queue_ids, response.sizes, strict=True):
            data = response.data[at : at + size]
            position = int.from_bytes(data[_OFFSET_AT + 8 : _OFFSET_AT + 16], "big")
            if position <= before:
                raise Violation(f"read: a record at {position} comes after one at {before}")
            self._workload.check_row(
                self._identity, queue_id, offsets[queue_id], data, bodies=not response.without_bodies
            )
            offsets[queue_id] += 1
            before = position
            at += size
        if not response.offsets or any(offsets[queue_id] != offset for queue_id, offset in response.offsets.items()):
            raise Violation(f"read: rows lead to {offsets}, but the response says {response.offsets}")
        for queue_id, offset in response.offsets.items():
            self._continue_at(queue_id, offset)

    def _continue_at(self, queue_id: int, offset: QueueOffset) -> None:
        end = self._ranges.pop(queue_id).end
        if offset < end:
            self._ranges[queue_id] = ReadRange(queue_id, offset, end)
