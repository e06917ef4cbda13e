"""Transactions with leaders that come and go between any two steps, against a plain table of how each one ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq.broker.consume.cold_reads import ColdReads
from mq.broker.limits import DEFAULT, WaitingLimits
from mq.broker.net.call import Call
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.refusals import RequestRefused
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.state.commands import PutTopic, TopicConfig, decode_command
from mq.broker.state.completion_marks import CompleteEntries
from mq.broker.state.metadata import Metadata
from mq.broker.transaction.check_back import CheckBacks
from mq.broker.transaction.half_messages import HALF_QUEUE_ID, HalfMessages
from mq.broker.transaction.staged_sets import StagedSets
from mq.broker.transaction.transactions import Transactions
from mq.broker.write_path.outcome import Outcome, Stored
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.records import RecordError, decode_records
from mq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, UNENDED_TOPIC
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from mq.protocol.requests.transactions import CheckTransactionState
from mq.protocol.wire.encoding import encode_request
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY
from raftlog import Refusal
from tests.support.appender_rounds import lone_appender
from tests.support.broker_contexts import context_of
from tests.support.model_log import HOST, Log
from tests.support.running_broker import broker_settings

COMMIT, ROLLBACK = 8, 12
CHECKS_MAX = 3
TIMEOUT, INTERVAL = 6.0, 30.0
IMMUNE_MS = 600_000
PUT_OFF_MAX = 3
SETTINGS = broker_settings(Path("unused"), transaction_checks_max=CHECKS_MAX)
TOPIC = PutTopic(config=TopicConfig(name="T", read_queues=2, write_queues=2), timestamp_ms=1)


class HalfQueue:
    """The consume queue of half messages, as far as it is committed."""

    key = (HALF_TOPIC, 0)

    def __init__(self) -> None:
        self.min_offset = 0
        self.entries: list[bytes] = []

    @property
    def max_offset(self) -> int:
        return len(self.entries)

    def read(self, offset: int, count: int) -> bytes:
        return b"".join(self.entries[offset : offset + count])

    def get(self, topic: str, queue_id: int) -> HalfQueue | None:
        assert (topic, queue_id) == (HALF_TOPIC, 0)
        return self if self.entries else None


class Producer:
    """A connection of a producer, on which brokers ask."""

    host = HOST
    closed = False
    waiting_bytes = 0

    def __init__(self, machine: TransactionsMachine) -> None:
        self._machine = machine

    def send(self, data: bytes) -> None:
        [(request, _, _)], _ = decode_chunk(data)
        assert isinstance(request, CheckTransactionState)
        self._machine.asked_about(request.ext.half_queue_offset)


class Ending:
    """A connection with a single END_TRANSACTION on it."""

    host = HOST

    def __init__(self, machine: TransactionsMachine, request: Any) -> None:
        self._machine, self.request = machine, request
        self.answers: list[int] = []

    def send(self, data: bytes) -> None:
        [(response, _, _)], _ = decode_chunk(data)
        assert isinstance(response, Response)
        self.answers.append(response.code)
        if response.code == ResponseCode.SUCCESS:
            self._machine.told_success(self.request)

    def answer(self, request: Any, reply: bytes) -> None:
        if not request.flag & 2:
            self.send(reply)

    def close(self, reason: str) -> None:
        raise AssertionError(f"an end is repeated, not given up: {reason}")

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        assert not body, "nothing bounds what many requests carry along in vain"
        self._machine.serve(self)


class Leader:
    """One leadership: everything is derived from what is committed."""

    def __init__(self, machine: TransactionsMachine, metadata: Metadata) -> None:
        self.metadata = metadata
        self.appender = lone_appender(
            machine.log,
            entry_bytes_max=1500,
            rounds_in_flight=2,
            wall_clock_ms=machine.wall_clock_ms,
            disk_used=lambda: 0.95,
        )
        self.tails = QueueTails(metadata, lambda topic, queue_id: QueueOffset(machine.ends.get((topic, queue_id), 0)))
        context = context_of(
            settings=SETTINGS,
            limits=replace(DEFAULT, waiting=WaitingLimits(postponed_checks_max=PUT_OFF_MAX)),
            metadata=metadata,
            store=machine.queue,
            replica__log__pread=machine.log.pread,
            replica__log__memory_pos=0,  # none of it is on a disk
            environment__in_background=None,
            appender=self.appender,
            queue_tails=self.tails,
            store_host=HOST,
            clients=machine.clients,
            ageing_clock=lambda: machine.now,
            wall_clock_ms=machine.wall_clock_ms,
            log=structlog.get_logger(),
        )
        self.halves = HalfMessages(
            context, cold_reads=ColdReads(log=context.replica.log, in_background=context.environment.in_background)
        )
        self.transactions = Transactions(
            context,
            halves=self.halves,
            places=WaitingQueues(context),
            sets=cast("StagedSets", None),  # no half message here is one
        )
        self.check_backs = CheckBacks(
            context,
            halves=self.halves,
            transactions=self.transactions,
        )
        self.appender.open()
        self.check_backs.lead()


class TransactionsMachine(RuleBasedStateMachine):
    """Half messages, ends in every order and number, checks, replicas that lead one after the other, odd clocks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.wall_ms = 1_700_000_000_000
        self.log = Log()
        self.queue = HalfQueue()
        self.ends: dict[tuple[str, int], int] = {}
        self.clients: ClientRegistry[Producer] = ClientRegistry()
        self.follower = Metadata()
        self.follower.apply(TOPIC)
        self.positions: list[int] = []
        """Of committed half messages, by offset."""
        self.outcomes: dict[int, str] = {}
        """How half messages ended: committed, rolled back, or put aside."""
        self.wished: dict[int, set[int]] = {}
        """What was ever asked of a half message's end."""
        self.asked: Counter[int] = Counter()
        self.immune_from_ms: dict[int, int] = {}
        self.known: set[int] = set()
        self.endings: list[Ending] = []
        self.held: list[Ending] = []
        self.committed_at: dict[int, float] = {}
        self.leader = self._lead(self.follower)

    def wall_clock_ms(self) -> int:
        return self.wall_ms

    def _lead(self, state: Metadata) -> Leader:
        metadata = Metadata()
        metadata.restore(state.snapshot())
        self.led_since = self.now
        for offset in metadata.checks.put_off:
            self.asked[offset] = 0  # nobody keeps count of these
        return Leader(self, metadata)

    # -- what happens ------------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 3),
        delayed=st.booleans(),
        size=st.sampled_from([5, 5, 900]),
        immune=st.sampled_from([False, False, True]),
    )
    def begin(self, count: int, delayed: bool, size: int, immune: bool) -> None:
        for _ in range(count):
            known = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "u"} | ({"DELAY": "1"} if delayed else {})
            if immune:
                known["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(IMMUNE_MS // 1000)
            tail, kept = self.leader.transactions.place_half(known, "T", 1)
            record = InternalRecord(
                tail=tail,
                body=b"x" * size,
                properties=props.encode(kept).encode(),
                born_timestamp_ms=self.wall_ms,
                born_host=HOST,
                on_outcome=self.begun,
            )
            self.leader.appender.add_record(record)

    def begun(self, at: Outcome) -> None:
        if isinstance(at, Stored):
            self.known.add(at.queue_offset)

    @rule(
        data=st.data(), outcome=st.sampled_from([COMMIT, COMMIT, ROLLBACK]), checked=st.booleans(), oneway=st.booleans()
    )
    def end(self, data: st.DataObject, outcome: int, checked: bool, oneway: bool) -> None:
        if self.known:
            self._end(data.draw(st.sampled_from(sorted(self.known))), outcome, checked, oneway)

    @rule(offset=st.integers(-1, 8), shift=st.sampled_from([-1, 0, 1, 100]), group=st.sampled_from("PQ"))
    def end_what_is_not_there(self, offset: int, shift: int, group: str) -> None:
        there = 0 <= offset < len(self.positions)
        if not there or shift or (group != "P" and offset not in self.outcomes and offset not in self.wished):
            position = (self.positions[offset] if there else 0) + shift
            ending = Ending(self, self._request(offset, position, COMMIT, False, False, group))
            self.serve(ending)
            assert ending.answers == [ResponseCode.SYSTEM_ERROR]

    @rule(seconds=st.sampled_from([0.5, 3.0, 7.0, 31.0]), step_ms=st.sampled_from([0, 0, -100_000, 500_000]))
    def time_passes(self, seconds: float, step_ms: int) -> None:
        self.now += seconds
        self.wall_ms += int(seconds * 1000) + step_ms
        self.leader.check_backs.run()

    @rule(there=st.booleans())
    def producer(self, there: bool) -> None:
        for connection in self.clients.producers("P"):
            self.clients.connection_closed(connection)
        if there:
            data = HeartbeatData("p", producers=[ProducerData("P")])
            self.clients.heartbeat(self.now, Producer(self), data, None, 0)

    @rule(refusals=st.lists(st.sampled_from([None, None, Refusal.DISK_FULL, Refusal.NOT_LEADER]), max_size=3))
    def start_round(self, refusals: list[Refusal | None]) -> None:
        self.log.refusals = refusals
        self.leader.transactions.end_turn()
        self.leader.appender.start_round()
        self.log.refusals = []

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if self.log.framed:
            self.apply(data.draw(st.integers(1, len(self.log.framed))), by_leader=True)

    @rule(survive=st.integers(0, 3), unknown_first=st.booleans())
    def another_leads(self, survive: int, unknown_first: bool) -> None:
        old, first_unknown = self.leader, len(self.log.committed) + 1
        if unknown_first and self.log.framed:
            old.appender.outcome_unknown(first_unknown)
        old.appender.is_open = False
        old.transactions.resign()
        old.check_backs.resign()
        old.appender.close()
        old.appender.outcome_unknown(first_unknown)
        assert old.appender.pending_bytes == 0
        self.apply(min(survive, len(self.log.framed)), by_leader=False)
        self.log.cut()
        self.leader = self._lead(self.follower)
        held, self.held = self.held, []
        for ending in held:
            self.serve(ending)

    # -- what comes of it --------------------------------------------------------------------------------------------

    def _request(self, offset: int, position: int, outcome: int, checked: bool, oneway: bool, group: str = "P") -> Any:
        fields = {
            "producerGroup": group,
            "tranStateTableOffset": str(offset),
            "commitLogOffset": str(position),
            "commitOrRollback": str(outcome),
            "fromTransactionCheck": str(checked).lower(),
            "msgId": "u",
        }
        [(request, _, _)], _ = decode_chunk(encode_request(RequestCode.END_TRANSACTION, 1, ext=fields, oneway=oneway))
        return request

    def _end(self, offset: int, outcome: int, checked: bool, oneway: bool) -> None:
        self.wished.setdefault(offset, set()).add(outcome)
        ending = Ending(self, self._request(offset, self.positions[offset], outcome, checked, oneway))
        self.endings.append(ending)
        self.serve(ending)

    def serve(self, ending: Ending) -> None:
        if not self.leader.appender.is_open:
            self.held.append(ending)
            return
        connection: Any = ending
        try:
            answer = self.leader.transactions.handle_end(Call(connection, ending.request, b"?", 0))
        except RequestRefused as refused:
            if not ending.request.flag & 2:
                ending.answers.append(refused.code)
        else:
            if answer is not None and not ending.request.flag & 2:
                ending.send(answer)

    def apply(self, count: int, *, by_leader: bool) -> None:
        for entry in self.log.framed[:count]:
            self.log.committed.append(entry)
            ended: set[int] = set()
            aside = 0
            marked: list[int] = []
            for record in decode_records(entry[1]):
                self.ends[record.topic, record.queue_id] = record.queue_offset + 1
                if record.topic == HALF_TOPIC:
                    assert record.queue_offset == len(self.positions)
                    self.positions.append(record.physical_offset)
                    self.committed_at[record.queue_offset] = self.now
                    if "CHECK_IMMUNITY_TIME_IN_SECONDS" in record.properties:
                        self.immune_from_ms[record.queue_offset] = record.store_timestamp_ms
                    self.queue.entries.append(QUEUE_ENTRY.pack(record.physical_offset, record.size, 0))
                elif record.topic == META_TOPIC:
                    command = decode_command(record.body)
                    self.follower.apply(command)
                    if by_leader:
                        self.leader.metadata.apply(command)
                    if isinstance(command, CompleteEntries) and command.queue_id == HALF_QUEUE_ID:
                        marked += command.offsets
                elif record.topic == HALF_OP_TOPIC:
                    for offset in map(int, record.body.decode().removesuffix(",").split(",")):
                        if offset not in ended:
                            self.note(ended, offset, "rolled back")
                elif record.topic == UNENDED_TOPIC:
                    aside += 1
                else:
                    assert record.sys_flag == COMMIT
                    assert record.properties[props.REAL_TOPIC] == "T"
                    self.note(ended, self.positions.index(record.prepared_offset), "committed")
            for offset in sorted(set(marked) - ended):
                self.note(ended, offset, "put aside")
                aside -= 1
            assert (sorted(marked), aside) == (sorted(ended), 0), "ended and marked in one entry"
        del self.log.framed[:count]
        if by_leader:
            self.leader.appender.on_commit(len(self.log.committed))

    def unended(self) -> list[int]:
        return [offset for offset in range(len(self.positions)) if offset not in self.outcomes]

    def note(self, ended: set[int], offset: int, outcome: str) -> None:
        assert offset not in self.outcomes, f"{offset} was {self.outcomes[offset]}, and now {outcome}"
        self.outcomes[offset] = outcome
        ended.add(offset)
        if outcome == "put aside":
            return
        wanted = COMMIT if outcome == "committed" else ROLLBACK
        assert wanted in self.wished.get(offset, ()), f"{offset} is {outcome}, which nobody asked for"

    def told_success(self, request: Any) -> None:
        offset, outcome = request.ext.half_queue_offset, request.ext.commit_or_rollback
        assert offset in self.outcomes, f"{offset} is not ended"
        assert (self.outcomes[offset] == "committed") == (outcome == COMMIT)

    def asked_about(self, offset: int) -> None:
        assert offset not in self.outcomes, f"{offset} is {self.outcomes[offset]}"
        assert self.now - max(self.committed_at[offset], self.led_since) >= TIMEOUT
        if offset in self.immune_from_ms:
            assert not 0 <= self.wall_ms - self.immune_from_ms[offset] < IMMUNE_MS, f"{offset} is asked about too soon"
        self.asked[offset] += 1
        # While the clock is back before its birth, one that is immune is asked about as others are.
        assert self.asked[offset] <= CHECKS_MAX * (2 if offset in self.immune_from_ms else 1)

    @invariant()
    def marks_say_what_ended(self) -> None:
        marks = self.follower.marks.get(HALF_TOPIC, 0)
        assert list(marks.open_offsets(QueueOffset(0), QueueOffset(len(self.positions)))) == self.unended()
        assert all(len(ending.answers) <= 1 for ending in self.endings)

    def teardown(self) -> None:
        """Left alone with a leader, everything comes to an end, and whoever asked is answered."""
        self.producer(True)
        for _ in range(600):
            self.time_passes(3.0, 0)
            self.start_round([])
            if self.log.framed:
                self.apply(len(self.log.framed), by_leader=True)
            if not self.unended() and not self.log.framed and not self.leader.appender.pending_items:
                break
        assert not self.unended()
        assert len(self.leader.metadata.checks.put_off) <= PUT_OFF_MAX
        assert all(ending.answers or ending.request.flag & 2 for ending in self.endings)
        assert not self.held


TransactionsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTransactions = pytest.mark.slow(TransactionsMachine.TestCase)


@pytest.fixture
def machine() -> Iterator[TransactionsMachine]:
    machine = TransactionsMachine()
    machine.producer(True)
    yield machine
    machine.teardown()


def pass_time(machine: TransactionsMachine, seconds: float) -> None:
    """All is committed as soon as it is in the log."""
    for _ in range(round(seconds / 3)):
        machine.time_passes(3.0, 0)
        machine.start_round([])
        machine.apply(len(machine.log.framed), by_leader=True)


def test_long_immunity_of_a_message_does_not_delay_others(machine: TransactionsMachine) -> None:
    machine.begin(1, False, 5, True)
    machine.begin(2, False, 5, False)
    pass_time(machine, TIMEOUT + (CHECKS_MAX + 1) * (INTERVAL + 9))
    assert machine.outcomes == {1: "put aside", 2: "put aside"}
    assert list(machine.leader.metadata.checks.put_off) == [0]
    assert machine.asked == {1: CHECKS_MAX, 2: CHECKS_MAX}
    machine.another_leads(0, False)
    assert list(machine.leader.metadata.checks.put_off) == [0]
    machine.begin(1, False, 5, False)
    pass_time(machine, IMMUNE_MS / 1000)
    assert machine.outcomes[3] == "put aside"
    pass_time(machine, TIMEOUT + (CHECKS_MAX + 1) * (INTERVAL + 9))
    assert machine.asked[0] == CHECKS_MAX
    assert machine.outcomes[0] == "put aside"
    pass_time(machine, 9)
    assert list(machine.leader.metadata.checks.put_off) == []


def test_postponed_half_message_can_be_ended_at_any_time(machine: TransactionsMachine) -> None:
    machine.begin(2, False, 5, True)
    pass_time(machine, TIMEOUT + (CHECKS_MAX + 1) * (INTERVAL + 9))
    assert list(machine.leader.metadata.checks.put_off) == [0, 1]
    machine._end(0, COMMIT, checked=False, oneway=False)
    pass_time(machine, 9)
    assert machine.outcomes == {0: "committed"}
    assert list(machine.leader.metadata.checks.put_off) == [1]


def test_half_messages_wait_while_too_many_are_postponed(machine: TransactionsMachine) -> None:
    machine.begin(PUT_OFF_MAX + 1, False, 5, True)
    machine.begin(1, False, 5, False)
    pass_time(machine, TIMEOUT + (CHECKS_MAX + 1) * (INTERVAL + 9))
    assert machine.leader.metadata.checks.put_off == tuple(range(PUT_OFF_MAX))
    assert machine.outcomes == {}
    assert machine.asked == {PUT_OFF_MAX + 1: CHECKS_MAX - 1}


def test_half_message_that_is_being_ended_is_not_put_aside(machine: TransactionsMachine) -> None:
    """Its last check may be over while its commit is gathered for the log: consumers get it, and nobody else does."""
    machine.begin(2, False, 5, False)
    pass_time(machine, 3)
    machine._end(0, COMMIT, checked=False, oneway=False)
    give_up = machine.leader.check_backs._give_up
    assert give_up is not None
    give_up.run([QueueOffset(0), QueueOffset(1)], machine.wall_ms)
    pass_time(machine, 6)
    assert machine.outcomes == {0: "committed", 1: "put aside"}


@pytest.mark.parametrize("is_asked_about", [False, True])
def test_unreadable_half_message_does_not_block_putting_others_aside(
    machine: TransactionsMachine, monkeypatch: pytest.MonkeyPatch, is_asked_about: bool
) -> None:
    read = machine.log.pread
    tries: list[float] = []

    def read_or_fail(position: int, size: int) -> bytes:
        if position == machine.positions[0]:
            tries.append(machine.now)
            raise RecordError(0, "the body's checksum is wrong")
        return read(position, size)

    give_up = machine.leader.check_backs._give_up
    assert give_up is not None
    machine.begin(2, False, 5, False)
    with monkeypatch.context() as patched:
        patched.setattr(give_up._delivery, "_read", read_or_fail)
        if not is_asked_about:
            patched.setattr(machine.leader.halves, "_read", read_or_fail)
        pass_time(machine, TIMEOUT + (CHECKS_MAX + 1) * (INTERVAL + 9))
        assert machine.outcomes == {1: "put aside"}
        tries.clear()
        pass_time(machine, 300)
        assert 3 <= len(tries) <= 8, "it is not tried again, or not ever less often"
        assert machine.outcomes == {1: "put aside"}
    pass_time(machine, TIMEOUT + (CHECKS_MAX + 1) * (INTERVAL + 9))
    assert machine.outcomes == {0: "put aside", 1: "put aside"}


def test_half_message_that_retention_removed_was_not_committed(machine: TransactionsMachine) -> None:
    """A replica that still has its log file must neither confirm a commit that nobody sees, nor refuse a rollback."""
    machine.begin(4, False, 5, False)
    pass_time(machine, 3)
    machine._end(1, COMMIT, False, False)
    pass_time(machine, 3)
    assert machine.outcomes == {1: "committed"}
    machine._end(2, COMMIT, False, False)
    machine.queue.min_offset = 3
    pass_time(machine, 3)
    assert machine.outcomes == {1: "committed", 2: "committed"}, "that one was on its way"
    assert machine.leader.check_backs.counters()["transactions_expired"] == 1
    machine.queue.min_offset = 0
    machine.another_leads(0, False)
    machine.outcomes[0] = "expired"
    answers = {}
    for offset, outcome in ((0, COMMIT), (0, ROLLBACK), (1, COMMIT), (1, ROLLBACK), (2, ROLLBACK)):
        ending = Ending(machine, machine._request(offset, machine.positions[offset], outcome, False, False))
        machine.serve(ending)
        answers[offset, outcome] = ending.answers
    assert answers == {
        (0, COMMIT): [ResponseCode.SYSTEM_ERROR],
        (0, ROLLBACK): [ResponseCode.SUCCESS],
        (1, COMMIT): [ResponseCode.SUCCESS],
        (1, ROLLBACK): [ResponseCode.SYSTEM_ERROR],
        (2, ROLLBACK): [ResponseCode.SYSTEM_ERROR],
    }


def test_only_the_latest_rollbacks_are_kept() -> None:
    limits = replace(DEFAULT, waiting=WaitingLimits(discarded_remembered_max=10))
    metadata, nothing = Metadata(), cast("Any", None)
    halves = HalfMessages(
        context_of(limits=limits, metadata=metadata, store=nothing, replica__log__pread=nothing),
        cold_reads=cast("Any", SimpleNamespace(load=nothing)),
    )
    for offset in range(100):
        for command in halves.discards([QueueOffset(offset)] if offset % 3 else []):
            metadata.apply(command)
        metadata.apply(CompleteEntries(topic=HALF_TOPIC, queue_id=HALF_QUEUE_ID, offsets=[QueueOffset(offset)]))
        answers = [halves.is_discarded(QueueOffset(each)) for each in range(offset + 1)]
        forgotten = answers.count(None)
        assert answers == [None] * forgotten + [each % 3 > 0 for each in range(forgotten, offset + 1)]
        assert min(offset + 1, 10) <= offset + 1 - forgotten < 30
    assert len(metadata.marks.get(HALF_TOPIC, 1).bits) < 10


@contextmanager
def slow_disk() -> Iterator[list[Callable[[], None]]]:
    """Half messages are only on disk; yields what follows the loads of them."""
    loading: list[Callable[[], None]] = []

    def load(_: HalfMessages, offsets: list[int], then: Callable[[], None]) -> bool:
        loading.extend([then] if offsets else [])
        return bool(offsets)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HalfMessages, "load", load)
        yield loading


def test_half_messages_are_checked_although_others_arrive_during_each_load(machine: TransactionsMachine) -> None:
    machine.producer(there=True)
    with slow_disk() as loading:
        for _ in range(8):
            machine.begin(1, delayed=False, size=5, immune=False)
            machine.start_round([])
            machine.apply(len(machine.log.framed), by_leader=True)
            machine.time_passes(7.0, 0)
            while loading:
                loading.pop()()
    assert machine.asked[0]
