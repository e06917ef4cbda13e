"""A model of popped messages over crashes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import structlog
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mq.broker.base.quota_buckets import QuotaBuckets
from mq.broker.consume.record_reader import RecordSpan
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.pop.pop import Pops
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import GroupConfig, PutGroup, PutTopic, TopicConfig, decode_command
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.outcome import DiskFull, OnOutcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.broker.write_path.queue_tails import QueueTails
from mq.filter.subscription import parse_subscription
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.pop import (
    AckExt,
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleExt,
    ChangeMessageInvisibleTime,
    PopExt,
    PopMessage,
)
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment import EntryGone
from tests.support.broker_contexts import context_of
from tests.support.popping import Popped, batch_body, read_popped
from tests.support.running_broker import Answer

HOST = encode_host("127.0.0.1", 1)
INVISIBLE_MS = 100
QUEUES = 2


class Queue:
    """A consume queue in memory."""

    key = ("T", 0)

    def __init__(self) -> None:
        self.min_offset = 0
        self.entries: list[bytes] = []

    @property
    def max_offset(self) -> int:
        return len(self.entries)

    def read(self, offset: int, count: int) -> bytes:
        assert self.min_offset <= offset, "what is gone is not asked for"
        return b"".join(self.entries[offset : offset + count])

    def expire(self, log_start: int) -> None:
        while self.min_offset < len(self.entries) and QUEUE_ENTRY.unpack(self.entries[self.min_offset])[0] < log_start:
            self.min_offset += 1


class Log:
    """Consecutive records, and their queues."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.queues: dict[tuple[str, int], Queue] = {}
        self.watched: object = None

    def get(self, topic: str, queue_id: int) -> Queue | None:
        return self.queues.get((topic, queue_id))

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        queue = self.get(topic, queue_id)
        return QueueOffset(0 if queue is None else queue.max_offset)

    def append(self, topic: str, queue_id: int, body: bytes, properties: str = "", reconsume_times: int = 0) -> None:
        queue = self.queues.setdefault((topic, queue_id), Queue())
        record = encode_record(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            queue_offset=QueueOffset(queue.max_offset),
            physical_offset=PhysicalOffset(len(self.data)),
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=1,
            store_host=HOST,
            reconsume_times=reconsume_times,
        )
        queue.entries.append(QUEUE_ENTRY.pack(len(self.data), len(record), 0))
        self.data += record

    def read(self, position: int, nbytes: int) -> bytes:
        if position < 0:
            raise EntryGone("log", "position", position, 0)
        return bytes(self.data[position : position + nbytes])

    def read_each(self, places: Sequence[RecordSpan]) -> list[bytes]:
        return [self.read(*place) for place in places]


class Appender:
    """Groups waiting to be committed, each as a whole."""

    entry_bytes_max = 64 * 1024
    pending_bytes = 0
    is_open = True
    has_room = True

    def __init__(self) -> None:
        self.groups: list[PendingGroup] = []

    def check_room(self) -> None: ...

    def add_command(self, command: bytes, on_outcome: OnOutcome | None = None) -> None:
        self.add_atomically([PendingCommand(command, on_outcome)])

    def add_atomically(self, group: PendingGroup) -> None:
        self.groups.append(group)


class Connection:
    """A client's connection: the responses, and when they arrived."""

    hold_seconds_max = 60.0
    waiting_bytes = 0
    closed = False

    def __init__(self, serve: Callable[[Any, bytes], object]) -> None:
        self.answers: dict[int, Answer] = {}
        self.held_pulls = 0
        self._serve = serve

    def send(self, data: bytes) -> None:
        with memoryview(data) as view:
            for serialization, header, body in split_frames(view)[0]:
                decoded = decode_header(serialization, header)
                assert isinstance(decoded, Response)
                assert decoded.opaque not in self.answers, "answered twice"
                self.answers[decoded.opaque] = Answer(
                    decoded.code, decoded.opaque, decoded.ext, decoded.remark, bytes(body), serialization
                )

    def send_all(self, buffers: list[bytes], nbytes: int) -> None:
        assert sum(map(len, buffers)) == nbytes
        self.send(b"".join(buffers))

    def answer(self, request: Any, reply: bytes) -> None:
        self.send(reply)

    def refuse(self, request: Any, serialization: int, error: Exception) -> None:
        raise AssertionError(f"a pop failed: {error}") from error

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        self._serve(request, body)


class CrashMachine(RuleBasedStateMachine):
    limits = DEFAULT

    def __init__(self) -> None:
        super().__init__()
        self.metadata, self.log, self.now_ms = Metadata(), Log(), 100_000_000
        self.steps_ms = 0
        """How far the wall clock was set forward in total, negative for back."""
        self.metadata.apply(
            PutTopic(config=TopicConfig(name="T", read_queues=QUEUES, write_queues=QUEUES), timestamp_ms=1)
        )
        self.metadata.apply(PutGroup(config=GroupConfig(name="G"), timestamp_ms=1))
        self.sent = 0
        self.opaque = 0
        self.pops_asked: dict[int, int] = {}
        self.acks_asked: dict[int, list[Popped]] = {}
        self.changes_asked: dict[int, tuple[Popped, int]] = {}
        self.held: dict[bytes, Popped] = {}
        self.hidden_until: dict[bytes, int] = {}
        self.acked: set[bytes] = set()
        self.attempted: set[bytes] = set()
        self.is_cold = False
        self.loading: list[Callable[[], None]] = []
        """What follows the loads of a slow disk, while messages are cold."""

    @initialize()
    def begin(self) -> None:
        self.lead()

    def lead(self) -> None:
        """A new leader, which knows only what was applied; pending requests are never answered."""
        self.appender, self.connection = Appender(), Connection(self.serve)
        self.pops_asked.clear()
        self.acks_asked.clear()
        self.changes_asked.clear()
        self.pops = Pops(
            context_of(
                settings=BrokerSettings(listen="127.0.0.1:1", peers="n0@127.0.0.1:2", data_dir=Path("/nowhere")),
                limits=self.limits,
                metadata=self.metadata,
                store=self.log,
                appender=self.appender,
                queue_tails=QueueTails(self.metadata, self.log.max_offset),
                replica__log__pread=lambda at, nbytes, trusts_page_cache=False: self.log.read(at, nbytes),
                replica__log__memory_pos=-1,  # nothing is on a disk, what is gone neither
                environment__in_background=None,
                replica__log__pread_each=self.log.read_each,
                traffic__count_got=lambda *_: None,
                quotas=QuotaBuckets(),
                rng=random.Random(self.opaque),
                clock=lambda: (self.now_ms - self.steps_ms) / 1000,
                wall_clock_ms=lambda: self.now_ms,
                log=structlog.get_logger(),
            ),
            subscriptions=cast("Any", SimpleNamespace(of_pop=lambda at, ext: parse_subscription("T", "*", None))),
            cold_reads=cast("Any", SimpleNamespace(is_in_memory=lambda begin, end: not self.is_cold, load=self.load)),
            pulls_waiting=(),
            is_young=lambda queue: True,
        )
        self.pops.lead()

    def load(self, places: Sequence[RecordSpan], then: Callable[[], None]) -> bool:
        self.loading.append(then)
        return True

    # -- clients -----------------------------------------------------------------------------------------------------

    def serve(self, request: Any, body: bytes) -> None:
        """A request about a message in flight is served again when that has ended."""
        acks = self.pops.acks
        handlers: dict[type, Any] = {
            AckMessage: acks.handle_ack,
            BatchAckMessage: acks.handle_batch,
            ChangeMessageInvisibleTime: acks.handle_change,
        }
        self.ask(handlers[type(request)], request, body)

    def ask(self, handler: Any, request: Any, body: bytes = b"") -> int:
        connection: Any = self.connection
        try:
            reply = handler(Call(connection, request, body, JSON))
        except RequestRefused as error:
            self.connection.answers[request.opaque] = Answer(error.code, request.opaque, {}, error.remark, b"", JSON)
        else:
            assert reply is None
        return int(request.opaque)

    def number(self) -> int:
        self.opaque += 1
        return self.opaque

    @rule(count=st.integers(1, 4), queue_id=st.integers(0, QUEUES - 1))
    def send(self, count: int, queue_id: int) -> None:
        before = self.log.max_offset("T", queue_id)
        for _ in range(count):
            self.log.append("T", queue_id, b"%d" % self.sent)
            self.sent += 1
        queue = self.log.queues["T", queue_id]
        self.pops.on_new_messages("T", queue_id, b"".join(queue.entries[before:]))

    @rule(
        most=st.integers(1, 5),
        queue_id=st.integers(-1, QUEUES - 1),
        poll_ms=st.sampled_from([0, 50]),
        now=st.booleans(),
    )
    def pop(self, most: int, queue_id: int, poll_ms: int, now: bool, in_order: bool = False) -> None:
        """With ``now`` everything pending is committed."""
        ext = PopExt(
            consumer_group="G",
            topic="T",
            queue_id=queue_id,
            max_messages=most,
            invisible_ms=INVISIBLE_MS,
            poll_ms=poll_ms,
            born_ms=self.now_ms,
            init_mode=0,
            order=in_order,
        )
        opaque = self.number()
        self.pops_asked[opaque] = self.now_ms
        self.ask(self.pops.handle_pop, PopMessage(opaque=opaque, ext=ext))
        self.read_answers()
        if now:
            self.commit(100)

    def draw_held(self, data: st.DataObject) -> list[Popped]:
        bodies = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=3, unique=True))
        return [self.held[body] for body in bodies]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), batch=st.booleans(), flush=st.booleans())
    def ack(self, data: st.DataObject, batch: bool, flush: bool) -> None:
        messages = self.draw_held(data)
        opaque = self.number()
        if batch:
            self.acks_asked[opaque] = messages
            self.attempted |= {message.body for message in messages}
            self.ask(self.pops.acks.handle_batch, BatchAckMessage(opaque=opaque), batch_body(messages))
            self.read_answers()
        else:
            self.ask_ack(messages[0])
        if flush:
            self.pops.acks.flush()

    def ask_ack(self, message: Popped) -> None:
        fields, opaque = message.ack_ext(), self.number()
        self.acks_asked[opaque] = [message]
        self.attempted.add(message.body)
        ext = AckExt(
            consumer_group="G",
            topic=fields["topic"],
            queue_id=fields["queueId"],
            extra_info=fields["extraInfo"],
            offset=fields["offset"],
        )
        self.ask(self.pops.acks.handle_ack, AckMessage(opaque=opaque, ext=ext))
        self.read_answers()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 30, 200]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        self.ask_change(self.draw_held(data)[0], invisible_ms)

    def ask_change(self, message: Popped, invisible_ms: int) -> None:
        fields = message.ack_ext()
        ext = ChangeInvisibleExt(
            consumer_group="G",
            topic=fields["topic"],
            queue_id=fields["queueId"],
            extra_info=fields["extraInfo"],
            offset=fields["offset"],
            invisible_ms=invisible_ms,
        )
        opaque = self.number()
        self.changes_asked[opaque] = (message, self.now_ms + invisible_ms)
        self.hidden_until[message.body] = min(self.hidden_until[message.body], self.now_ms + invisible_ms)
        self.ask(self.pops.acks.handle_change, ChangeMessageInvisibleTime(opaque=opaque, ext=ext))
        self.read_answers()

    # -- the broker --------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 20, 100, 150]))
    def run(self, ms: int) -> None:
        self.now_ms += ms
        self.pops.revival.run()
        self.pops.expire()
        self.read_answers()

    def step(self, ms: int) -> None:
        """Set the wall clock forward or back; the monotonic clock is unaffected."""
        self.now_ms += ms
        self.steps_ms += ms

    @rule(count=st.integers(1, 6))
    def commit(self, count: int) -> None:
        """Commit some of what is pending, and answer its requests."""
        groups, self.appender.groups = self.appender.groups[:count], self.appender.groups[count:]
        retried = self.apply(groups)
        for group in groups:
            for item in group:
                if isinstance(item, PendingCommand) and item.on_outcome is not None:
                    item.on_outcome(Stored(QueueOffset(0), PhysicalOffset(0)))
        for topic, entries in retried:
            self.pops.on_new_messages(topic, 0, entries)
        self.read_answers()

    def apply(self, groups: list[PendingGroup]) -> list[tuple[str, bytes]]:
        appended: list[tuple[str, bytes]] = []
        for group in groups:
            for item in group:
                if isinstance(item, PendingCommand):
                    self.metadata.apply(decode_command(item.body))
                else:
                    assert isinstance(item, InternalRecord)
                    tail = item.tail
                    self.log.append(
                        tail.topic, tail.queue_id, item.body, item.properties.decode(), item.reconsume_times
                    )
                    appended.append((tail.topic, self.log.queues[tail.topic, 0].entries[-1]))
        return appended

    @rule(
        kind=st.sampled_from(["none", "none", "crash", "full"]),
        survive=st.integers(0, 4),
        back_ms=st.sampled_from([0, 40]),
    )
    def trouble(self, kind: str, survive: int, back_ms: int) -> None:
        if kind == "crash":
            self.crash(survive, back_ms)
        elif kind == "full":
            self.refuse(survive)

    def crash(self, survive: int, back_ms: int) -> None:
        """The leader dies; the first pending groups are in the log all the same. The next leader's clock may be
        behind.
        """
        self.apply(self.appender.groups[:survive])
        snapshot = self.metadata.snapshot()
        self.metadata = Metadata()
        self.metadata.restore(snapshot)
        self.now_ms -= back_ms
        for body in self.hidden_until:
            self.hidden_until[body] -= back_ms
        self.lead()

    def refuse(self, taken: int) -> None:
        """The disk is full: the first pending groups are written, the rest is refused."""
        self.pops.acks.flush()
        groups, self.appender.groups = self.appender.groups[taken:], self.appender.groups[:taken]
        for group in groups:
            for item in group:
                if isinstance(item, PendingCommand) and item.on_outcome is not None:
                    item.on_outcome(DiskFull("DISK_FULL"))
        self.read_answers()

    # -- what must hold ----------------------------------------------------------------------------------------------

    def read_answers(self) -> None:
        answers, self.connection.answers = self.connection.answers, {}
        for opaque, answer in answers.items():
            if opaque in self.pops_asked:
                del self.pops_asked[opaque]
                for message in read_popped(answer) if answer.code == 0 else ():
                    body = message.body
                    assert body not in self.acked, f"{body!r} comes again although its acknowledgement was answered"
                    assert self.now_ms >= self.hidden_until.get(body, 0), f"{body!r} comes before its time"
                    self.held[body] = message
                    self.hidden_until[body] = int(answer.ext["popTime"]) + INVISIBLE_MS
            elif opaque in self.acks_asked:
                messages = self.acks_asked.pop(opaque)
                if answer.code == 0:
                    self.acked |= {message.body for message in messages}
                    for message in messages:
                        if self.held.get(message.body) == message:
                            del self.held[message.body]
            else:
                message, until_ms = self.changes_asked.pop(opaque)
                if answer.code == 0 and self.held.get(message.body) == message:
                    fresh = message.receipt._replace(
                        start=message.receipt.offset,
                        pop_time_ms=int(answer.ext["popTime"]),
                        invisible_ms=int(answer.ext["invisibleTime"]),
                    )
                    self.held[message.body] = message._replace(receipt=fresh)
                    self.hidden_until[message.body] = until_ms

    @invariant()
    def held_pops_are_counted(self) -> None:
        assert self.connection.held_pulls == len(self.pops.polling)

    def teardown(self) -> None:
        """Whatever happened, every message can be popped and acknowledged in the end."""
        for _ in range(400):
            if self.is_done():
                break
            self.pop(5, -1, 0, True)
            opaque = self.number()
            messages = list(self.held.values())
            if messages:
                self.acks_asked[opaque] = messages
                self.attempted |= {message.body for message in messages}
                self.ask(self.pops.acks.handle_batch, BatchAckMessage(opaque=opaque), batch_body(messages))
                self.pops.acks.flush()
            self.commit(10)
            self.held.clear()
            self.run(50)
        assert self.is_done(), f"{self.metadata.pops.count} checkpoints are open for ever"
        lost = {b"%d" % number for number in range(self.sent)} - self.attempted
        assert not lost, f"{sorted(lost)} are gone, and nobody ever acknowledged them"

    def is_done(self) -> bool:
        """Whether everything was popped and nothing is unacknowledged."""
        ends = [
            self.metadata.consumer_offset("G", topic, queue_id) == queue.max_offset
            for (topic, queue_id), queue in self.log.queues.items()
        ]
        return all(ends) and not self.metadata.pops.queues and not self.appender.groups


def started(messages: int, limits: BrokerLimits = DEFAULT) -> CrashMachine:
    """A leader with so many messages in its first queue."""
    machine = CrashMachine()
    machine.limits = limits
    machine.begin()
    machine.send(messages, 0)
    return machine
