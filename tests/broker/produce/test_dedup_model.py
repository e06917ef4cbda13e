"""Sequence numbers with leaders that come and go between any two steps: no number is ever stored twice.

Messages come by themselves and in batches, which overlap each other in every way: a batch that was answered is whole in
the log, and whatever is in the log of one entered it together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq.broker.limits import StateLimits
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce import dedup
from mq.broker.produce.batch import BatchSends
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.placement import Placement
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.state.commands import AdvanceDelay, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.internal_messages import InternalMessages
from mq.broker.write_path.pending import InternalRecord, PendingCommand
from mq.broker.write_path.properties import TagCodes
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.message_ids import UniqKeyGenerator, parse_offset_message_id
from mq.protocol.messages.batch import BatchedMessage, encode_batch, split_batch
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.messages.sequencing import sent_range, stored_range
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.send import SENT_ALREADY_STORED
from mq.protocol.wire.encoding import SendReplyTemplate, encode_request
from mq.store.annotation import split_annotation
from mq.store.sequenced import scan_sequenced
from raftlog import Refusal
from tests.support.broker_contexts import context_of
from tests.support.model_log import HOST, Log
from tests.support.running_broker import broker_settings, send_ext

COPY = b"copy"


class Client:
    """A connection with a single request on it."""

    host = HOST

    def __init__(self, machine: RepeatsMachine, request: Any, body: bytes) -> None:
        self._machine, self._request, self._body = machine, request, body
        count = len(split_batch(body)) if request.ext.batch else 1
        numbers = sent_range(props.decode(request.ext.properties), count)
        assert numbers is not None
        self.numbers = numbers
        self.outcomes: list[str] = []

    def send(self, data: bytes) -> None:
        [(response, _, _)], _ = decode_chunk(data)
        assert isinstance(response, Response)
        self.outcomes.append("stored" if response.code == ResponseCode.SUCCESS else "refused")
        if response.code == ResponseCode.SUCCESS:
            assert not self._request.flag & 2
            self._machine.answered(self, response.ext)

    def answer(self, request: Any, reply: bytes) -> None:
        if not request.flag & 2:
            self.send(reply)

    def close(self, reason: str) -> None:
        self.outcomes.append("unknown")

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        assert (request, body) == (self._request, self._body)
        self.serve()

    def serve(self) -> None:
        leader = self._machine.leader
        if not leader.appender.is_open:
            self.outcomes.append("returned")
            return
        queue_id = self._request.ext.queue_id
        connection: Any = self
        call = Call(connection, self._request, self._body, 0)
        try:
            if self._request.ext.batch:
                leader.batches.add(call, leader.tails.get("T", queue_id))
            else:
                known = props.decode(self._request.ext.properties)
                leader.special.add(call, known, "T", queue_id)
        except RequestRefused as refused:
            self.outcomes.append("forgotten" if "SEQUENCE_FORGOTTEN" in refused.remark else "refused")


SMALL = StateLimits(ranges_per_producer_max=4)


class Leader:
    """One leadership: everything is derived from what is committed."""

    def __init__(self, log: Log, metadata: Metadata, ends: dict[tuple[str, int], int]) -> None:
        self.metadata = metadata
        self.appender = Appender(
            log=log,
            store_host=HOST,
            reply_template=SendReplyTemplate(HOST),
            entry_bytes_max=1500,
            rounds_in_flight=2,
            wall_clock_ms=lambda: 1_700_000_000_000,
            disk_used=lambda: 0.95,
            uncommitted_bytes_max=2**20,
        )
        self.tails = QueueTails(metadata, lambda topic, queue_id: QueueOffset(ends.get((topic, queue_id), 0)))
        unique_keys = UniqKeyGenerator(ip="127.0.0.1", pid=1, salt=1, wall_clock_ms=lambda: 1_700_000_000_000)
        made = InternalMessages(
            appender=self.appender,
            unique_keys=unique_keys,
            cluster="C",
            body_bytes_max=1000,
        )
        context = context_of(
            settings=broker_settings(Path("unused"), group="b", segment_bytes=2**20, message_bytes_max=2**16),
            metadata=metadata,
            store=None,  # no message is of a lite topic
            appender=self.appender,
            store_host=HOST,
            replica__log=log,  # as much of it as is needed
            queue_tails=self.tails,
            internal_messages=made,
            wall_clock_ms=lambda: 1,
        )
        self.repeats = Dedup(context)
        self.batches = BatchSends(
            appender=self.appender,
            dedup=self.repeats,
            unique_keys=unique_keys,
            tag_codes=TagCodes(),
            suffix=b"CLUSTER\x01C\x02",
            body_bytes_max=1000,
            reply_template=SendReplyTemplate(HOST),
        )
        self.special = Placement(
            context,
            places=WaitingQueues(context),
            dedup=self.repeats,
            transactions=None,  # type: ignore[arg-type] # nobody sends half a transaction
        )
        self.appender.open()


class RepeatsMachine(RuleBasedStateMachine):
    """Clients send numbers again and again, and replicas lead one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._read_bytes = mock.patch.object(dedup, "_READ_BYTES", 200)  # a batch is read in several pieces
        self._read_bytes.start()
        self.log = Log()
        self.follower = Metadata(limits=SMALL)
        self.stored: dict[tuple[str, int], StoredMessage] = {}
        self.records: list[StoredMessage] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.clients: list[Client] = []
        self.copied = 0
        self.leader = Leader(self.log, Metadata(limits=SMALL), self.ends)

    def teardown(self) -> None:
        self._read_bytes.stop()

    # -- what happens ------------------------------------------------------------------------------------------------

    @rule(
        producer=st.sampled_from("pq"),
        number=st.integers(0, 6),
        queue_id=st.integers(0, 2),
        delayed=st.booleans(),
        oneway=st.integers(0, 4).map(lambda n: n == 0),
        size=st.sampled_from([10, 10, 400, 1001]),
    )
    def send(self, producer: str, number: int, queue_id: int, delayed: bool, oneway: bool, size: int) -> None:
        text = {props.PRODUCER_ID: producer, props.SEQUENCE: str(number)} | ({props.DELAY: "2"} if delayed else {})
        ext = {name: str(value).lower() for name, value in send_ext(e=queue_id).items()} | {"i": props.encode(text)}
        body = b"x" * size
        self.serve(ext, body, oneway)

    @rule(
        producer=st.sampled_from("pq"),
        first=st.integers(0, 9),
        count=st.integers(1, 5),
        queue_id=st.integers(0, 2),
        oneway=st.integers(0, 4).map(lambda n: n == 0),
        size=st.sampled_from([10, 10, 10, 100, 200]),
    )
    def send_batch(self, producer: str, first: int, count: int, queue_id: int, oneway: bool, size: int) -> None:
        text = props.encode({props.PRODUCER_ID: producer, props.SEQUENCE: str(first), "own": "x"})
        ext = {name: str(value).lower() for name, value in send_ext(e=queue_id, m=True).items()} | {"i": text}
        numbers = range(first, first + count)
        self.serve(ext, encode_batch(BatchedMessage(b"%d:" % n + b"x" * size, "") for n in numbers), oneway)

    def serve(self, ext: dict[str, str], body: bytes, oneway: bool) -> None:
        frame = encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext=ext, body=body, oneway=oneway)
        [(request, _, _)], _ = decode_chunk(frame)
        client = Client(self, request, body)
        self.clients.append(client)
        client.serve()

    @rule(refusals=st.lists(st.sampled_from([None, None, Refusal.DISK_FULL, Refusal.NOT_LEADER]), max_size=3))
    def start_round(self, refusals: list[Refusal | None]) -> None:
        self.log.refusals = refusals
        self.leader.appender.start_round()
        self.log.refusals = []

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if self.log.framed:
            self.apply(data.draw(st.integers(1, len(self.log.framed))), by_leader=True)

    @rule(survive=st.integers(0, 3), snapshot=st.booleans())
    def another_leads(self, survive: int, snapshot: bool) -> None:
        old = self.leader
        old.repeats.resign()
        if self.log.framed:
            old.appender.outcome_unknown(len(self.log.committed) + 1)
        old.appender.close()
        assert old.appender.pending_bytes == 0
        self.apply(min(survive, len(self.log.framed)), by_leader=False)
        self.log.cut()
        metadata = Metadata(limits=SMALL)
        metadata.restore(self.follower.snapshot())
        self.leader = Leader(self.log, metadata if snapshot else self.replayed(), self.ends)

    @rule(command=st.booleans())
    def deliver(self, command: bool) -> None:
        """A copy of a message that waited, with all its properties, as the broker makes them itself."""
        waiting = [record for record in self.records if record.topic != "T" and record.body != COPY]
        if self.copied < len(waiting):
            record = waiting[self.copied]
            made = InternalRecord(
                tail=self.leader.tails.get("T", 0),
                body=COPY,
                properties=props.encode(record.properties).encode(),
                born_timestamp_ms=1,
                born_host=HOST,
            )
            advance = PendingCommand(encode_command(AdvanceDelay(level=2, offset=QueueOffset(1))))
            self.leader.appender.add_atomically([made, advance] if command else [made])
            self.copied += 1

    # -- what comes of it --------------------------------------------------------------------------------------------

    def apply(self, count: int, *, by_leader: bool) -> None:
        """Commit entries: the follower takes what is shipped, the leader reads the records."""
        for entry in self.log.framed[:count]:
            _, body, annotation = entry
            self.log.committed.append(entry)
            self.follower_applies(body, annotation)
            if by_leader:
                for row in scan_sequenced(body):
                    self.leader.metadata.sequences.add(*row)
            records = list(decode_records(body))
            for at, record in enumerate(records):
                self.ends[record.topic, record.queue_id] = record.queue_offset + 1
                self.records.append(record)
                if (found := stored_range(record.properties)) is not None and record.body != COPY:
                    for number, one in enumerate(records[at : at + found.message_count], found.first):
                        assert (found.producer, number) not in self.stored, f"{number} is stored twice"
                        assert one.body.startswith((b"%d:" % number, b"xxx")), f"{number} is {one.body!r}"
                        self.stored[found.producer, number] = one
        del self.log.framed[:count]
        if by_leader:
            self.leader.appender.on_commit(len(self.log.committed))

    def follower_applies(self, body: bytes, annotation: bytes) -> None:
        rows = scan_sequenced(body)
        if annotation:
            _, shipped, _ = split_annotation(annotation, body)
            assert shipped == rows
        for row in rows:
            self.follower.sequences.add(*row)

    def replayed(self) -> Metadata:
        metadata = Metadata(limits=SMALL)
        for _, body, _ in self.log.committed:
            for row in scan_sequenced(body):
                metadata.sequences.add(*row)
        assert metadata.snapshot() == self.follower.snapshot()
        return metadata

    def answered(self, client: Client, ext: dict[str, str]) -> None:
        producer, first, last = client.numbers
        records = [self.stored[producer, number] for number in range(first, last + 1)]
        if SENT_ALREADY_STORED in ext and ext["queueOffset"] == "-1":
            assert len(ext["msgId"].split(",")) == client.numbers.message_count
            return
        record = records[0]
        queue_id = int(record.properties.get(props.REAL_QUEUE_ID, record.queue_id))
        positions = [parse_offset_message_id(each).physical_offset for each in ext["msgId"].split(",")]
        assert positions == [each.physical_offset for each in records]
        assert (ext["queueId"], ext["queueOffset"]) == (str(queue_id), str(record.queue_offset))
        assert ext["transactionId"] == ",".join(each.properties[props.UNIQUE_KEY] for each in records)

    @invariant()
    def nobody_is_told_twice_and_nobody_forgotten(self) -> None:
        assert all(len(client.outcomes) <= 1 for client in self.clients)
        idle = not self.log.framed and not self.leader.appender.pending_items
        if idle:
            assert all(client.outcomes or client._request.flag & 2 for client in self.clients)
            assert self.leader.appender.pending_bytes == 0

    @invariant()
    def what_is_forgotten_was_there_once(self) -> None:
        if any(client.outcomes == ["forgotten"] for client in self.clients):
            assert len(self.stored) > 4


RepeatsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRepeats = pytest.mark.slow(RepeatsMachine.TestCase)
