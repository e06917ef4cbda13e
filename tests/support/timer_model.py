"""A model of messages with delivery times, beside the code that delivers them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.broker.limits import DEFAULT, WaitingLimits
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.schedule.recall import Recalls
from mq.broker.schedule.timers import Timers
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.state.commands import PutTopic, TopicConfig, decode_command
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.recall_handle import RecallHandle
from mq.protocol.messages.records import decode_record, encode_host
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.properties import fit
from mq.protocol.requests.send import RecallExt, RecallMessage
from mq.store.dispatch import QUEUE_ENTRY, scan_runs
from mq.store.queue_store import QueueStore, QueueStoreSettings
from raftlog import Refusal
from tests.support.appender_rounds import lone_appender
from tests.support.broker_contexts import context_of
from tests.support.running_broker import broker_settings

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
START_MS = 20_000 * DAY
HOST = encode_host("10.0.0.1", 10911)
SPANS = st.one_of(st.integers(1, 3 * SECOND), st.integers(1, 10 * MINUTE), st.integers(1, 3 * DAY))
QUEUES = 2


class Log:
    """A replicated log: bytes, committed up to some entry."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[int] = []
        self.committed = 0
        self.is_full = False

    def append(self, nbytes: int, build: Any) -> int | Refusal:
        if self.is_full:
            return Refusal.DISK_FULL
        body, _ = build(len(self.data))
        self.data += body
        self.ends.append(len(self.data))
        return len(self.ends)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size])

    def take(self) -> bytes:
        """The next entry, committed from now on."""
        start = self.ends[self.committed - 1] if self.committed else 0
        self.committed += 1
        return bytes(self.data[start : self.ends[self.committed - 1]])

    def cut(self, count: int) -> None:
        """Lose the last ``count`` entries."""
        if count:
            del self.ends[-count:]
            del self.data[self.ends[-1] if self.ends else 0 :]


class Client:
    """A client that recalls a message; ``outcome`` is the result."""

    host = HOST
    closed = False

    def __init__(self, refused: Callable[[Exception], None] = lambda _: None) -> None:
        self.outcome = "open"
        self.refused = refused

    def answer(self, request: Any, reply: bytes) -> None:
        self._end("recalled")

    def refuse(self, request: Any, serialization: int, error: Exception) -> None:
        self._end("refused")
        self.refused(error)

    def close(self, reason: str) -> None:
        self._end("unknown")

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        self._end("given on")

    def may_have_recalled(self) -> bool:
        return self.outcome not in ("refused", "given on")

    def _end(self, outcome: str) -> None:
        assert self.outcome == "open", f"{self.outcome}, and then {outcome}"
        self.outcome = outcome


class Message:
    def __init__(self, name: str, due_ms: int) -> None:
        self.name = name
        self.due_ms = due_ms
        self.outcome: Outcome | None = None
        self.recalls: list[Client] = []

    def stored(self, at: Outcome) -> None:
        assert self.outcome is None, f"{self.name} has two outcomes"
        self.outcome = at

    @property
    def is_recalled(self) -> bool:
        return any(client.outcome == "recalled" for client in self.recalls)

    @property
    def may_be_recalled(self) -> bool:
        return any(client.outcome in ("recalled", "unknown") for client in self.recalls)


def recall_request(unique_key: str, due_ms: int, offset: int | None) -> RecallMessage:
    """A recall of a message in topic T, with the handle of its producer."""
    handle = RecallHandle("T", "b", due_ms, unique_key, None if offset is None else QueueOffset(offset)).encode()
    assert handle is not None
    return RecallMessage(ext=RecallExt(topic="T", recall_handle=handle))


class TimerMachine(RuleBasedStateMachine):
    """See the module. Searches of recalls read two messages at a time, so that they are under way while all else
    happens.
    """

    limits = WaitingLimits(recall_bytes_max=8192)

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.metadata = Metadata()
        config = TopicConfig(name="T", read_queues=QUEUES, write_queues=QUEUES)
        self.metadata.apply(PutTopic(config=config, timestamp_ms=1))
        self.store = QueueStore(self.directory.name, QueueStoreSettings())
        self.log = Log()
        self.now_ms = START_MS
        self.messages: dict[str, Message] = {}
        self.visible: Counter[str] = Counter()
        self.seen = [0] * QUEUES
        self.lead()

    def wall_clock_ms(self) -> int:
        return self.now_ms

    def lead(self) -> None:
        """A replica leads that has applied what is committed, and knows nothing else."""
        self.appender = lone_appender(
            self.log,
            host=HOST,
            entry_bytes_max=2048,
            rounds_in_flight=3,
            wall_clock_ms=self.wall_clock_ms,
            uncommitted_bytes_max=2**24,
        )
        self.tails = QueueTails(self.metadata, self.store.max_offset)
        context = context_of(
            settings=broker_settings(
                Path(self.directory.name),
                group="b",
                uncommitted_bytes_max=2**25,
                timer_delay_max_seconds=40 * DAY // 1000,
            ),
            limits=replace(DEFAULT, waiting=self.limits),
            metadata=self.metadata,
            store=self.store,
            appender=self.appender,
            queue_tails=self.tails,
            replica__log__pread=self.log.read,
            replica__log__memory_pos=0,  # none of it is on a disk
            replica__log__first_index=1,
            replica__log__last_index=0,
            environment__in_background=None,
            wall_clock_ms=self.wall_clock_ms,
            log=structlog.get_logger(),
        )
        self.places = WaitingQueues(context)
        self.timers = Timers(context)
        self.recalls = Recalls(context, timers=self.timers)
        self.appender.open()
        self.timers.lead()

    @rule(span_ms=SPANS, queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 3))
    def send(self, span_ms: int, queue_id: int, count: int) -> None:
        for _ in range(count):
            message = Message(f"m{len(self.messages)}", self.now_ms + span_ms)
            self.messages[message.name] = message
            properties = {props.UNIQUE_KEY: message.name, props.TIMER_DELIVER_MS: str(message.due_ms)}
            tail, properties = self.places.place(properties, "T", queue_id, self.now_ms)
            record = InternalRecord(
                tail=tail,
                body=message.name.encode(),
                properties=fit(properties),
                born_timestamp_ms=1,
                born_host=HOST,
                on_outcome=message.stored,
            )
            self.appender.add_atomically([record])

    @precondition(lambda self: self.messages)
    @rule(number=st.integers(0, 99), hint=st.booleans())
    def recall(self, number: int, hint: bool) -> None:
        self.try_recall(number, hint)

    def try_recall(self, number: int, hint: bool) -> Client:
        message = self.messages[f"m{number % len(self.messages)}"]
        others = list(message.recalls)

        def refused(error: Exception) -> None:
            assert isinstance(error, RequestRefused)
            if error.code == ResponseCode.ILLEGAL_OPERATION and "too late" not in str(error):
                is_consistent = self.visible[message.name] or any(
                    other.outcome not in ("refused", "given on") for other in others
                )
                assert is_consistent or not is_stored, f"{message.name} waits and is not found"

        is_stored = isinstance(message.outcome, Stored)
        client = Client(refused)
        connection: Any = client
        offset = message.outcome.queue_offset if hint and isinstance(message.outcome, Stored) else None
        request = recall_request(message.name, message.due_ms, offset)
        try:
            self.recalls.handle(Call(connection, request, b"", 0))
        except RequestRefused as error:
            client.outcome = "refused"
            refused(error)
        else:
            message.recalls.append(client)
        return client

    @rule(span_ms=SPANS)
    def pass_time(self, span_ms: int) -> None:
        self.now_ms += span_ms

    @rule(span_ms=st.integers(-2 * DAY, DAY))
    def step_clock(self, span_ms: int) -> None:
        self.now_ms += span_ms

    @rule()
    def to_the_next_turn(self) -> None:
        """Advance the clock until the next message is due, or is to be stored anew."""
        turns = [
            self.now_ms + 1 + (message.due_ms - self.now_ms - 1) % DAY
            for message in self.messages.values()
            if message.due_ms > self.now_ms and not self.visible[message.name]
        ]
        self.now_ms = min(turns, default=self.now_ms)
        self.run_timers(1)
        self.appender.start_round()

    @rule(count=st.integers(1, 50))
    def run_timers(self, count: int) -> None:
        for _ in range(count):
            self.timers.run()
            self.recalls.run()

    @rule()
    def store_pending(self) -> None:
        """Store all that is pending."""
        self.log.is_full = False
        while self.appender.start_round() or self.log.committed < len(self.log.ends):
            self.commit(9)

    @rule()
    def start_round(self) -> None:
        self.appender.start_round()

    @rule(count=st.integers(1, 4))
    def commit(self, count: int) -> None:
        for _ in range(min(count, len(self.log.ends) - self.log.committed)):
            self.apply(self.log.take())
        self.appender.on_commit(self.log.committed)

    @rule(is_full=st.booleans())
    def fill_disk(self, is_full: bool) -> None:
        self.log.is_full = is_full

    @rule(skew_ms=st.integers(-HOUR, HOUR), kept=st.integers(0, 9))
    def change_leader(self, skew_ms: int, kept: int) -> None:
        """The leader dies; some of its uncommitted entries have reached others."""
        self.timers.resign()
        self.recalls.resign()
        self.appender.close()
        self.appender.outcome_unknown(self.log.committed + 1)
        under_way = len(self.log.ends) - self.log.committed
        self.log.cut(under_way - min(kept, under_way))
        while self.log.committed < len(self.log.ends):
            self.apply(self.log.take())
        self.now_ms += skew_ms
        self.lead()

    def apply(self, body: bytes) -> None:
        runs, commands = scan_runs(body, PhysicalOffset(self.log.ends[self.log.committed - 1] - len(body)))
        for run in runs:
            self.store.append_run(run)
        for command in commands:
            self.metadata.apply(decode_command(command))
        self.store.check_invariants()
        self.metadata.check_invariants()
        for queue_id in range(QUEUES):
            queue = self.store.get("T", queue_id)
            if queue is None:
                continue
            for position, size, _ in QUEUE_ENTRY.iter_unpack(queue.read(QueueOffset(self.seen[queue_id]), 2**30)):
                record = decode_record(memoryview(self.log.read(position, size)))
                assert record.queue_offset == self.seen[queue_id]
                self.seen[queue_id] += 1
                message = self.messages[record.body.decode()]
                self.visible[message.name] += 1
                dequeued = record.properties.get(props.TIMER_DEQUEUE_MS)
                assert dequeued is None or int(dequeued) >= message.due_ms, f"{message.name} comes early"

    @invariant()
    def none_comes_twice_or_after_its_recall(self) -> None:
        for name, count in self.visible.items():
            assert count == 1, f"{name} came {count} times"
            assert not self.messages[name].is_recalled, f"{name} was recalled"

    def teardown(self) -> None:
        self.log.is_full = False
        self.now_ms = max([self.now_ms, *(message.due_ms for message in self.messages.values())])
        for _ in range(400):
            self.now_ms += 20
            self.run_timers(1)
            self.appender.start_round()
            while self.log.committed < len(self.log.ends):
                self.apply(self.log.take())
            self.appender.on_commit(self.log.committed)
        self.none_comes_twice_or_after_its_recall()
        for message in self.messages.values():
            assert message.outcome is not None, f"{message.name} has no outcome"
            assert all(client.outcome != "open" for client in message.recalls)
            count = self.visible[message.name]
            if isinstance(message.outcome, DiskFull | LeadershipLost):
                assert count == 0, f"{message.name} was refused"
            elif isinstance(message.outcome, Stored):
                assert count == 1 or message.may_be_recalled, f"{message.name} is lost"
                assert not (count and message.is_recalled)
        assert self.timers.pending_count == 0
        assert self.appender.pending_bytes == 0
        for (topic, queue_id), marks in self.metadata.marks.queues.items():
            assert (topic, marks.low, len(marks.bits)) == (TIMER_TOPIC, self.store.max_offset(topic, queue_id), 0)
        self.store.close()
        self.directory.cleanup()
