"""Ticks against a log that answers as the test says: changes in flight, refusals, lost leadership, wrong clocks."""

from __future__ import annotations

from typing import Any

from mq.broker.limits import DEFAULT
from mq.broker.recurring.ticks import Ticks
from mq.broker.state.commands import PutTopic, TopicConfig, decode_command
from mq.broker.state.metadata import Metadata
from mq.broker.state.schedules import PutSchedule, SettleTick, SwitchSchedule
from mq.broker.write_path.outcome import DiskFull, Outcome, Stored, Unknown
from mq.broker.write_path.pending import InternalRecord, PendingCommand
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol import properties as props
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset
from mq.protocol.requests.schedules import ANY_VERSION, DUE_MS, ScheduleDefinition
from tests.support.broker_contexts import context_of

SECOND = 1000
STORED = Stored(FIRST_OFFSET, PhysicalOffset(0))


class Log:
    """The groups that a leader appends; `end_oldest` commits or fails the oldest one."""

    is_open = True
    pending_bytes = 0

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.groups: list[list[Any]] = []

    def add_atomically(self, group: list[Any]) -> None:
        self.groups.append(group)

    def end_oldest(self, outcome: Outcome = STORED) -> list[int]:
        """The outcome of the oldest group; returns the ticks in it."""
        group = self.groups.pop(0)
        if isinstance(outcome, Stored):
            for each in group:
                if isinstance(each, PendingCommand):
                    self.metadata.apply(decode_command(each.body))
        for each in group:
            if each.on_outcome is not None:
                each.on_outcome(outcome)
        records = [each for each in group if isinstance(each, InternalRecord)]
        return [int(props.decode(each.properties.decode())[DUE_MS]) for each in records]


class Rig:
    """A leader with one schedule of a second."""

    def __init__(self, **given: Any) -> None:
        self.now_ms = 0
        self.metadata = Metadata()
        self.log = Log(self.metadata)
        self.logged: list[str] = []
        topic = TopicConfig(name="T", read_queues=1, write_queues=1)
        self.metadata.apply(PutTopic(config=topic, timestamp_ms=0))
        self.put(**given)
        self.ticks = self.leader()

    def put(self, **given: Any) -> None:
        definition = ScheduleDefinition(name="a", topic="T", **({"every_ms": SECOND, "anchor_ms": 0} | given))
        self.metadata.apply(PutSchedule(definition=definition, expected=ANY_VERSION, timestamp_ms=self.now_ms))

    def leader(self) -> Ticks:
        context = context_of(
            metadata=self.metadata,
            appender=self.log,
            queue_tails=QueueTails(self.metadata, lambda topic, queue_id: FIRST_OFFSET, 4),
            unique_keys__next=lambda: "U",
            store_host=bytes(8),
            settings__cluster="C",
            settings__uncommitted_bytes_max=1 << 20,
            settings__priority_order_asc=True,
            wall_clock_ms=lambda: self.now_ms,
            clock=lambda: self.now_ms / 1000 + 50,
            limits=DEFAULT,
            log__warning=lambda event, **values: self.logged.append(event),
        )
        ticks = Ticks(context)
        ticks.lead()
        return ticks

    def run(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.ticks.run()

    def check_tick(self, now_ms: int) -> None:
        """A tick that was due at this time is sent and stored."""
        self.run(now_ms)
        assert self.log.end_oldest() == [now_ms]

    def check_no_tick(self, now_ms: int) -> None:
        self.run(now_ms)
        assert self.log.groups == []


def test_one_tick_is_in_flight_at_a_time() -> None:
    rig = Rig(catch_up="all")
    rig.run(3 * SECOND)
    rig.run(3 * SECOND)
    assert len(rig.log.groups) == 1
    assert rig.log.end_oldest() == [SECOND]
    rig.run(3 * SECOND)
    assert rig.log.end_oldest() == [2 * SECOND]
    rig.check_tick(3 * SECOND)
    rig.check_no_tick(3 * SECOND)
    assert rig.ticks.counters()["schedule_ticks_sent"] == 3


def test_clock_steps_neither_repeat_ticks_nor_flood() -> None:
    rig = Rig()
    rig.check_tick(SECOND)
    rig.check_no_tick(0)
    rig.check_tick(86_400 * SECOND)
    rig.check_no_tick(86_400 * SECOND)
    rig.run(2 * SECOND)
    rig.ticks = rig.leader()
    rig.check_no_tick(3 * SECOND)
    assert "schedule_ahead_of_clock" in rig.logged
    # What an operator does then: pause and resume, so that it goes on from now.
    for enabled in (False, True):
        rig.metadata.apply(SwitchSchedule(name="a", enabled=enabled, timestamp_ms=rig.now_ms))
    rig.ticks = rig.leader()
    rig.check_tick(4 * SECOND)


def test_refused_tick_is_sent_later() -> None:
    rig = Rig()
    rig.run(SECOND)
    rig.log.end_oldest(DiskFull("the disk is full"))
    rig.run(SECOND + 500)
    assert rig.log.groups == [], "not at once"
    rig.run(2 * SECOND + 100)
    assert rig.log.end_oldest() == [2 * SECOND]
    assert rig.ticks.counters()["schedule_ticks_skipped"] == 1


def test_tick_with_an_unknown_outcome_is_left_to_the_next_leader() -> None:
    rig = Rig()
    rig.run(SECOND)
    [group] = rig.log.groups
    rig.ticks.resign()
    rig.log.end_oldest(Unknown())
    rig.check_no_tick(2 * SECOND)
    # It was stored after all: the next leader has applied it before it begins.
    rig.metadata.apply(decode_command(group[-1].body))
    rig.ticks.lead()
    rig.check_no_tick(SECOND)
    rig.check_tick(2 * SECOND)


def test_schedule_does_not_tick_during_its_change() -> None:
    rig = Rig()
    first, second = rig.ticks.change("a"), rig.ticks.change("a")
    rig.check_no_tick(SECOND)
    rig.put(body=b"new")
    first()
    rig.run(SECOND)
    assert rig.log.groups == [], "another change is still in flight"
    second()
    rig.run(SECOND)
    [[record, _]] = rig.log.groups
    assert record.body == b"new"


def test_change_of_an_earlier_leadership_ends_silently() -> None:
    rig = Rig()
    old = rig.ticks.change("a")
    rig.ticks.resign()
    rig.ticks.lead()
    new = rig.ticks.change("a")
    old()
    rig.check_no_tick(SECOND)
    new()
    rig.check_tick(SECOND)


def test_schedule_change_waits_for_a_tick_in_flight() -> None:
    rig = Rig()
    rig.run(SECOND)
    end = rig.ticks.change("a")
    assert rig.log.end_oldest() == [SECOND]
    rig.check_no_tick(2 * SECOND)
    rig.put(every_ms=5 * SECOND)
    end()
    rig.check_tick(5 * SECOND)
    skipped = [each for each in rig.logged if each == "schedule_ticks_skipped"]
    assert skipped == []


def test_unreadable_rule_does_not_stop_other_schedules() -> None:
    rig = Rig(every_ms=0, anchor_ms=None, cron="* * * * *", time_zone="Moon/Base")
    other = ScheduleDefinition(name="b", topic="T", every_ms=SECOND, anchor_ms=0)
    rig.metadata.apply(PutSchedule(definition=other, expected=ANY_VERSION, timestamp_ms=0))
    rig.ticks.lead()
    rig.check_tick(SECOND)
    assert rig.ticks.counters()["schedules_unusable"] == 1
    assert rig.logged == ["schedule_unusable"]


def test_mark_is_in_each_entry() -> None:
    rig = Rig()
    rig.run(SECOND)
    [[record, command]] = rig.log.groups
    assert isinstance(record, InternalRecord)
    mark = decode_command(command.body)
    assert mark == SettleTick(name="a", version=1, settled_ms=SECOND, due_ms=SECOND)


def test_skipped_ticks_of_centuries_fit_into_one_command() -> None:
    """As when the clock of a leader is wrong by centuries."""
    rig = Rig()
    rig.check_tick(2 * 10**9 * SECOND)


def test_scheduler_rests_until_the_next_tick() -> None:
    rig = Rig()
    [(_, _, rests_until)] = rig.ticks.periodic()
    assert rests_until() == float("-inf"), "the next ticks are not known yet"
    rig.run(0)
    assert rests_until() == 51.0
    rig.run(SECOND)
    assert rests_until() == float("inf"), "one is in flight"
    rig.log.end_oldest()
    assert rests_until() == 52.0
    rig.ticks.resign()
    assert rests_until() == float("inf")


def test_repeated_changes_of_a_yearly_schedule_do_not_use_more_memory() -> None:
    """Its ticks of former versions are due in a year, and would stay until then."""
    rig = Rig(every_ms=365 * 86_400 * SECOND)
    for number in range(1000):
        end = rig.ticks.change("a")
        rig.put(every_ms=365 * 86_400 * SECOND, body=b"%d" % number)
        end()
    assert len(rig.ticks._due) <= 2 + 64
    rig.run(365 * 86_400 * SECOND)
    assert rig.log.end_oldest() == [365 * 86_400 * SECOND]  # the last version still ticks
