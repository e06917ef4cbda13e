"""The appender against a log that refuses, loses leadership and gets it again, at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.broker.net.call import Call
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.entry_builder import QueuedMessage
from mq.broker.write_path.gathering import WAIT_SECONDS_MAX
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Stored, Unknown
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup, PendingSend
from mq.broker.write_path.queue_tails import QueueTail, TopicName
from mq.broker.write_path.send_block import QueuedSend, SendBlock
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.records import decode_records, encode_host
from mq.protocol.numbers import QueueOffset
from mq.protocol.wire.encoding import encode_request
from mq.store.annotation import encode_runs, split_commands
from mq.store.built_runs import BuiltRun
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY_BYTES, QueueRun
from raftlog import Refusal
from tests.support.appender_rounds import lone_appender
from tests.support.running_broker import send_ext

HOST = encode_host("127.0.0.1", 10911)
FATES = ("stored", "unknown", "refused", "returned")


class Log:
    """Entries that were framed and are not committed yet; refuses what it is told to."""

    def __init__(self) -> None:
        self.refusals: list[Refusal | None] = []
        self.framed: list[bytes] = []
        self.annotations: dict[int, bytes] = {}
        self.committed = 0
        self.pos = 48

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal:
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            return refusal
        body, annotation = build(self.pos)
        self.annotations[self.committed + len(self.framed) + 1] = annotation
        assert len(body) == nbytes
        self.pos += nbytes + 48
        self.framed.append(body)
        return self.committed + len(self.framed)


class Client:
    """A connection with a single request on it."""

    host = HOST

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end

    def send(self, data: bytes) -> None:
        for response, _, _ in decode_chunk(data)[0]:
            assert isinstance(response, Response)
            self._end("stored" if response.code == ResponseCode.SUCCESS else "refused")

    def answer(self, request: Any, reply: bytes) -> None:
        self.send(reply)

    def close(self, reason: str) -> None:
        self._end("unknown")

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        self._end("returned")


def told(end: Callable[[str], None]) -> OnOutcome:
    fates = {Stored: "stored", DiskFull: "refused", LeadershipLost: "returned", Unknown: "unknown"}
    return lambda outcome: end(fates[type(outcome)])


class AppenderMachine(RuleBasedStateMachine):
    """Whatever is added ends once, with the outcome that it has in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.now = 0.0
        self.turns_asked = 0
        self.appender = lone_appender(
            self.log,
            entry_bytes_max=600,
            rounds_in_flight=2,
            disk_used=lambda: 0.95,
            clock=lambda: self.now,
            turn_within=self.ask_turn,
        )
        self.appender.on_queued = self.follow
        self.appender.awaited_queues = {"a queue"}
        self.followers = 0
        self.fates: dict[int, str] = {}
        self.waiting: set[int] = set()
        self.durable: list[int] = []
        self.numbers = 0
        self.next_offset = 0
        self.lead()

    def ask_turn(self, seconds: float) -> None:
        assert 0 < seconds <= WAIT_SECONDS_MAX + 1e-9
        self.turns_asked += 1

    def lead(self) -> None:
        self.tail = QueueTail(TopicName("T"), 0, QueueOffset(self.next_offset))
        self.appender.open()

    def begin(self) -> tuple[int, bytes, Callable[[str], None]]:
        number = self.numbers
        self.numbers += 1
        self.waiting.add(number)

        def end(fate: str) -> None:
            assert number in self.waiting, f"{number} was {self.fates[number]} and is {fate} as well"
            self.waiting.discard(number)
            self.fates[number] = fate

        return number, b"%d" % number, end

    def call(self, body: bytes, end: Callable[[str], None]) -> Call[Any]:
        ext = {name: str(value).lower() for name, value in send_ext().items()}
        [(request, _, _)], _ = decode_chunk(encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext=ext, body=body))
        client: Any = Client(end)
        return Call(client, request, body, 0)

    @precondition(lambda self: self.appender.is_open)
    @rule(size=st.sampled_from([0, 100, 700]))
    def add_message(self, size: int) -> None:
        _, body, end = self.begin()
        body = body.ljust(size + len(body))
        message = QueuedMessage(self.tail.fixed_bytes + len(body), 0, body, b"", 0)
        self.appender.add(SendBlock(QueuedSend(self.call(body, end), self.tail, [message], message.size, b"K")))

    @precondition(lambda self: self.appender.is_open)
    @rule(count=st.integers(1, 8))
    def add_batch(self, count: int) -> None:
        _, body, end = self.begin()
        messages = [QueuedMessage(self.tail.fixed_bytes + len(body), 0, body, b"", 0)] * count
        self.appender.add(
            SendBlock(QueuedSend(self.call(body, end), self.tail, messages, sum(each.size for each in messages), b"K"))
        )

    @precondition(lambda self: self.appender.is_open)
    @rule(command=st.booleans())
    def add_group(self, command: bool) -> None:
        _, body, end = self.begin()

        record = InternalRecord(
            tail=self.tail, body=body, properties=b"", born_timestamp_ms=1, born_host=HOST, on_outcome=told(end)
        )
        group: PendingGroup = [record]
        if command:
            _, body, end_command = self.begin()
            group.append(PendingCommand(body, told(end_command)))
        self.appender.add_atomically(group)

    @precondition(lambda self: self.appender.is_open)
    @rule(before=st.booleans(), size=st.sampled_from([0, 700]))
    def add_send(self, before: bool, size: int) -> None:
        _, body, end = self.begin()
        body = body.ljust(size + len(body))
        nbytes = self.tail.fixed_bytes + len(body)
        send = PendingSend(nbytes, self.call(body, end), self.tail, b"", 0, b"K", 1)
        group: PendingGroup = [send]
        if before:
            _, command, end_command = self.begin()
            group.insert(0, PendingCommand(command, told(end_command)))
        self.appender.add_atomically(group)

    def follow(self, runs: Sequence[object]) -> None:
        """Have a command follow the entry that was just framed, as pops that wait do."""
        assert runs
        if self.followers:
            self.followers -= 1
            _, body, end = self.begin()
            self.appender.add_command(body, told(end))

    @rule()
    def let_commands_follow(self) -> None:
        self.followers = 2

    @rule(refusals=st.lists(st.sampled_from([None, None, Refusal.DISK_FULL, Refusal.NOT_LEADER]), max_size=4))
    def start_round(self, refusals: list[Refusal | None]) -> None:
        self.log.refusals = list(refusals)
        may_start = self.appender.is_open and self.appender.may_start and self.appender.pending_items
        asked, framed = self.turns_asked, len(self.log.framed)
        started = self.appender.start_round()
        assert started is (len(self.log.framed) > framed)
        # Nothing is left behind without a turn in which it starts.
        assert not may_start or started or refusals or self.turns_asked > asked
        self.log.refusals = []

    @rule(seconds=st.sampled_from([0.0001, 0.001, 0.1]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.log.framed)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.log.framed)))
        for index, body in enumerate(self.log.framed[:count], self.log.committed + 1):
            self.keep(body)
            self.look_at_runs(index, body)
        del self.log.framed[:count]
        self.log.committed += count
        self.appender.on_commit(self.log.committed)

    def look_at_runs(self, index: int, body: bytes) -> None:
        """What is applied here is what the others read in the annotation."""
        annotation = self.log.annotations[index]
        assert self.appender.own_entry(index, bytes(bytearray(annotation)) or b"-") is None, "another annotation"
        built = self.appender.own_entry(index, annotation)
        assert built is not None
        runs = built.runs
        commands = [record.body for record in decode_records(body) if record.topic == META_TOPIC]
        if commands:
            shipped, annotation = split_commands(annotation, body)
            assert shipped == commands
        assert annotation == encode_runs(QueueRun(run[0].topic, run[0].queue_id, run[1], run[3]) for run in runs)
        assert [run[2] * QUEUE_ENTRY_BYTES for run in runs] == [len(run[3]) for run in runs]

    def keep(self, body: bytes) -> None:
        for record in decode_records(body):
            if record.topic == "T":
                assert record.queue_offset == self.next_offset
                self.next_offset += 1
            self.durable.append(int(record.body))

    @precondition(lambda self: self.appender.is_open)
    @rule(survive=st.integers(0, 3), again=st.booleans())
    def lose_leadership(self, survive: int, again: bool) -> None:
        if self.log.framed:
            self.appender.outcome_unknown(self.log.committed + 1)
        self.appender.close()
        for body in self.log.framed[:survive]:  # the next leader has these
            self.keep(body)
        self.log.framed.clear()
        self.log.committed += survive
        self.appender.on_commit(self.log.committed)
        if again:
            self.lead()

    @precondition(lambda self: not self.appender.is_open)
    @rule()
    def win_leadership(self) -> None:
        self.lead()

    @invariant()
    def outcomes_match_the_log(self) -> None:
        self.appender.check_invariants()
        durable = set(self.durable)
        for number, fate in self.fates.items():
            assert fate in FATES
            if fate == "stored":
                assert number in durable, f"{number} was acknowledged"
            elif fate != "unknown":
                assert number not in durable, f"{number} was {fate}"
        if not self.log.framed and not self.appender.pending_items:
            assert self.waiting == set()
            assert self.appender.pending_bytes == 0
        if not self.appender.is_open:
            assert self.appender.pending_items == []


AppenderMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAppender = AppenderMachine.TestCase


def answered_round(messages_of_each: int) -> tuple[Appender, list[float], Callable[..., None]]:
    """An appender whose first round, of 8 senders, took 3 ms and is answered; turns that it asks for; adds sends."""
    log, asked, now = Log(), list[float](), [0.0]
    appender = lone_appender(
        log,
        clock=lambda: now[0],
        turn_within=asked.append,
    )
    appender.open()
    tail = QueueTail(TopicName("T"), 0, QueueOffset(0))
    ext = {name: str(value).lower() for name, value in send_ext().items()}
    [(decoded, _, _)], _ = decode_chunk(encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext=ext, body=b"body"))
    request: Any = decoded

    def add(senders: int, each: int = 1) -> None:
        for _ in range(senders):
            client: Any = Client(lambda fate: None)
            for _ in range(each):
                message = QueuedMessage(tail.fixed_bytes + 4, 0, b"body", b"", 0)
                appender.add(
                    SendBlock(QueuedSend(Call(client, request, b"body", 0), tail, [message], message.size, b"K"))
                )

    add(8, messages_of_each)
    assert appender.start_round()
    now[0] = 0.003
    appender.on_commit(1)
    return appender, asked, add


def test_round_waits_for_the_senders_that_were_just_answered() -> None:
    appender, asked, add = answered_round(1)
    add(6)
    assert not appender.start_round()
    assert len(asked) == 1
    add(1)
    assert appender.start_round()


def test_round_does_not_wait_for_senders_of_many_messages() -> None:
    appender, asked, add = answered_round(3)
    add(1)
    assert appender.start_round()
    assert asked == []


def test_appender_frames_following_messages_in_the_same_round() -> None:
    log = Log()
    appender = lone_appender(
        log,
    )
    appender.open()
    tail = QueueTail(TopicName("T"), 3, QueueOffset(7))
    seen, outcomes = list[tuple[str, int, int, int]](), list[str]()

    def follow(runs: Sequence[BuiltRun]) -> None:
        seen.extend((end.topic, end.queue_id, first, count) for end, first, count, _ in runs)
        appender.add_command(b"command", lambda outcome: outcomes.append(type(outcome).__name__))

    appender.on_queued = follow
    appender.awaited_queues = {"a queue"}
    appender.add_record(InternalRecord(tail=tail, body=b"message", properties=b"", born_timestamp_ms=1, born_host=HOST))
    assert appender.start_round()
    assert seen == [("T", 3, 7, 1)]
    assert [[each.body for each in decode_records(body)] for body in log.framed] == [[b"message"], [b"command"]]
    assert not appender.may_start
    appender.on_commit(1)
    assert (outcomes, appender.may_start) == ([], False)  # the round ends with its last entry
    appender.on_commit(2)
    assert (outcomes, appender.may_start, appender.is_idle) == (["Stored"], True, True)


def test_full_entry_starts_a_round_at_once() -> None:
    appender, asked, add = answered_round(1)
    add(1, 1000)
    assert appender.start_round()
    assert asked == []
