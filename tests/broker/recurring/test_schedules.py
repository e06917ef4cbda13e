"""Schedules on the test kit: real brokers on virtual time, with the SDK."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from mq.broker.recurring.requests import PAGE_MAX
from mq.client import (
    Admin,
    BrokerError,
    Cron,
    Every,
    MessageRefused,
    NoRoute,
    Once,
    Schedule,
    ScheduleConflict,
    ScheduleNotFound,
    TopicNotFound,
)
from mq.client.sync import SyncAdmin
from mq.protocol.codes import PERM_READ
from mq.testing import Kit, open_kit, running_kit
from tests.support.virtual_time import VIRTUAL_TIME

MINUTE = Every(dt.timedelta(minutes=1))


def dues(kit: Kit, topic: str = "T") -> list[int]:
    return [int(each.properties["RAFTMQ_SCHEDULE_DUE"]) for each in kit.messages(topic)]


def check_minutes(kit: Kit, topic: str = "T") -> None:
    """Every minute once, in order, and none early."""
    found = dues(kit, topic)
    assert found == list(range(found[0], found[0] + 60_000 * len(found), 60_000))
    assert all(each.stored_at.timestamp() * 1000 >= due for each, due in zip(kit.messages(topic), found, strict=True))


@VIRTUAL_TIME
async def test_every_tick_is_a_message_with_its_time() -> None:
    async with open_kit() as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic("T", queues=4)
        schedule = Schedule("a", "T", b"hi", MINUTE, tags="red", keys=["k1", "k2"], properties={"x": "y"})
        created = await admin.schedules.create(schedule)
        assert len(created.next) == 3
        await kit.advance(minutes=5)
        messages = kit.messages("T")
        assert len(messages) == 5
        check_minutes(kit)
        assert {(each.body, each.tags, tuple(each.keys)) for each in messages} == {(b"hi", "red", ("k1", "k2"))}
        assert {each.properties["RAFTMQ_SCHEDULE"] for each in messages} == {"a"}
        assert {each.properties["x"] for each in messages} == {"y"}
        assert len({each.queue.queue_id for each in messages}) == 1, "one queue, so they are in order"
        assert len({each.message_id for each in messages}) == 5
        status = await admin.schedules.get("a")
        assert (status.sent, status.skipped) == (5, 0)
        assert status.last is not None
        assert status.last.timestamp() * 1000 == dues(kit)[-1]


@VIRTUAL_TIME
async def test_leader_failure_neither_loses_nor_repeats_ticks() -> None:
    async with open_kit(replicas=3) as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic("T", queues=1)
        await admin.schedules.create(Schedule("a", "T", b"hi", MINUTE))
        for _ in range(2):
            await kit.advance(minutes=2)
            lost = await kit.lose_leader()
            await kit.advance(minutes=2)
            await kit.restore(lost)
        assert len(kit.messages("T")) == 8
        check_minutes(kit)


def test_schedule_can_be_paused_resumed_triggered_and_deleted() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        admin.schedules.create(Schedule("a", "T", b"hi", MINUTE))
        kit.advance(minutes=2)
        admin.schedules.pause("a")
        admin.schedules.pause("a")
        assert admin.schedules.get("a").next == []
        kit.advance(minutes=10)
        assert len(kit.messages("T")) == 2
        admin.schedules.trigger("a")
        assert len(kit.messages("T")) == 3
        admin.schedules.resume("a")
        assert len(kit.messages("T")) == 3, "ticks of the pause are not sent"
        kit.advance(minutes=1)
        assert len(kit.messages("T")) == 4
        admin.schedules.delete("a")
        kit.advance(minutes=5)
        assert len(kit.messages("T")) == 4
        for call in (admin.schedules.get, admin.schedules.delete, admin.schedules.pause, admin.schedules.trigger):
            with pytest.raises(ScheduleNotFound, match="no schedule 'a'"):
                call("a")
        admin.schedules.create(Schedule("a", "T", b"again", MINUTE))
        kit.advance(minutes=1)
        assert kit.messages("T")[-1].body == b"again"


def test_change_expects_a_version() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        first = admin.schedules.create(Schedule("a", "T", b"one", MINUTE))
        with pytest.raises(ScheduleConflict, match="exists with version 1"):
            admin.schedules.create(Schedule("a", "T", b"two", MINUTE))
        second = admin.schedules.update(Schedule("a", "T", b"two", MINUTE), expected_version=first.version)
        assert second.version > first.version
        assert admin.schedules.update(Schedule("a", "T", b"two", MINUTE)).version == second.version, "nothing changed"
        with pytest.raises(ScheduleConflict):
            admin.schedules.update(Schedule("a", "T", b"three", MINUTE), expected_version=first.version)
        with pytest.raises(ScheduleConflict):
            admin.schedules.delete("a", expected_version=first.version)
        with pytest.raises(ScheduleNotFound):
            admin.schedules.update(Schedule("b", "T", b"x", MINUTE))
        kit.advance(minutes=1)
        assert [each.body for each in kit.messages("T")] == [b"two"]


def test_refused_schedules_name_the_reason() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)

        def refused(match: str, error: type[Exception] = BrokerError, topic: str = "T", **given: Any) -> None:
            values: dict[str, Any] = {"body": b"x", "rule": MINUTE} | given
            schedule = Schedule("a", topic, **values)
            with pytest.raises(error, match=match):
                admin.schedules.create(schedule)

        refused("Wrong number of fields", rule=Cron("* * *"))
        refused("there is no time zone 'Mars/Base'", rule=Cron("* * * * *", "Mars/Base"))
        refused("would never tick", rule=Once(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)))
        refused("would never tick", end=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        refused("every_ms is 500; allowed", rule=Every(dt.timedelta(milliseconds=500)))
        refused("size of body is 65537", body=bytes(65_537))
        refused("the body is empty", ValueError, body=b"")
        refused("needs a time zone", ValueError, rule=Once(dt.datetime(2030, 1, 1)))  # noqa: DTZ001 - that is the point
        refused("queue id 5 is illegal, T has 1 queues", queue_id=5)
        refused("RAFTMQ_SEQUENCE: names that begin with RAFTMQ_", properties={"RAFTMQ_SEQUENCE": "1-1"})
        refused("is reserved", MessageRefused, properties={"DELAY": "3"})
        refused("Unknown", TopicNotFound, topic="Unknown")
        admin.create_topic("Latest", queues=1, compacted=True, retention_hours=24)
        refused("the message has no key: topic Latest", topic="Latest")
        refused("the message has no key: topic Latest", topic="Latest", keys=(" ",))
        admin.schedules.create(Schedule("keyed", "Latest", b"x", MINUTE, keys=("k",)))
        admin.schedules.delete("keyed")
        refused("a topic of the system", topic="SELF_TEST_TOPIC")
        with pytest.raises(NoRoute, match="broker group nobody has none"):
            admin.schedules.create(Schedule("a", "T", b"x", MINUTE), broker="nobody")
        assert admin.schedules.list() == []


def test_ticks_are_not_sent_to_a_restorable_topic() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=4)
        admin.schedules.create(Schedule("a", "T", b"x", MINUTE))
        admin.schedules.create(Schedule("b", "T", b"y", MINUTE, queue_id=2))
        kit.advance(minutes=1)
        admin.delete_topic("T", restorable=True)
        with pytest.raises(BrokerError, match="TOPIC_NOT_EXIST"):
            admin.schedules.trigger("a")
        kit.advance(minutes=3)
        admin.restore_topic("T")
        kit.advance(minutes=1)
        for name in "a", "b":
            status = admin.schedules.get(name)
            assert (status.sent, status.skipped) == (2, 3), name
        queues: dict[bytes, set[int]] = {}
        for message in kit.messages("T"):
            queues.setdefault(message.body, set()).add(message.queue.queue_id)
        assert len(kit.messages("T")) == 4
        assert len(queues[b"x"]) == 1, "the messages of a schedule are in one queue"
        assert queues[b"y"] == {2}


def test_ticks_are_not_sent_to_an_unwritable_topic() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        admin.schedules.create(Schedule("a", "T", b"x", MINUTE))
        kit.advance(minutes=1)
        admin.create_topic("T", queues=1, perm=PERM_READ)
        kit.advance(minutes=2)
        with pytest.raises(BrokerError, match="the topic T is not writable"):
            admin.schedules.trigger("a")
        status = admin.schedules.get("a")
        assert (status.sent, status.skipped) == (1, 2)
        admin.create_topic("T", queues=1)
        kit.advance(minutes=1)
        assert admin.schedules.get("a").sent == 2


def test_ticks_are_skipped_while_the_topic_is_deleted() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        admin.schedules.create(Schedule("a", "T", b"x", MINUTE))
        kit.advance(minutes=1)
        admin.delete_topic("T")
        kit.advance(minutes=3)
        status = admin.schedules.get("a")
        assert (status.sent, status.skipped) == (1, 3)
        admin.create_topic("T", queues=1)
        kit.advance(minutes=1)
        assert admin.schedules.get("a").sent == 2
        assert len(kit.messages("T")) == 1


def test_single_time_is_sent_once_and_stays_listed() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        at = kit.now() + dt.timedelta(days=3)
        admin.schedules.create(Schedule("a", "T", b"x", Once(at)))
        kit.advance(days=2)
        assert kit.messages("T") == []
        kit.advance(days=10)
        assert len(kit.messages("T")) == 1
        assert admin.schedules.get("a").next == []
        assert len(admin.schedules.list()) == 1


def test_many_schedules_are_listed_in_pages() -> None:
    count = 2 * PAGE_MAX + 10
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        for number in range(count):
            owner = "even" if number % 2 == 0 else "odd"
            admin.schedules.create(Schedule(f"s{number:03}", "T", b"x" * 100, MINUTE, owner=owner))
        found = admin.schedules.list()
        assert [each.schedule.name for each in found] == [f"s{number:03}" for number in range(count)]
        assert {each.schedule.body for each in found} == {b""}
        assert len(admin.schedules.list(owner="odd", bodies=True)) == count // 2
        kit.advance(minutes=2)
        assert len(kit.messages("T")) == 2 * count


def test_kit_advances_to_the_next_schedule() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("T", queues=1)
        admin.schedules.create(Schedule("a", "T", b"x", Cron("0 8 * * *", "Europe/Vienna")))
        following = kit.advance_to_next()
        assert following is not None
        assert (following.kind, following.topic, following.message.body) == ("schedule", "T", b"x")
        assert len(kit.messages("T")) == 1
