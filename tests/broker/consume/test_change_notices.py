"""Telling the members of groups that they are others now, small groups and large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mq.broker.consume.change_notices import LATER_AT_ONCE, SENDER_TICKS, ChangeNotices
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import limited, running


class Member:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.closed = False
        self.told = 0

    def send(self, frame: bytes) -> None:
        assert not self.closed
        self.told += 1


def members(count: int) -> list[Any]:
    return [Member() for _ in range(count)]


def test_small_group_is_notified_at_once() -> None:
    group = members(50)
    notices = ChangeNotices(50)
    notices.notify("G", group)
    assert {member.told for member in group} == {1}


def test_sender_of_a_change_is_notified_last_and_once() -> None:
    group = members(3)
    notices = ChangeNotices(50)
    notices.notify("G", group, sender=group[1])
    notices.notify("G", group, sender=group[1])
    assert [member.told for member in group] == [2, 0, 2]
    for _ in range(SENDER_TICKS - 1):
        notices.send_some()
    assert group[1].told == 0
    notices.send_some()
    notices.send_some()
    assert [member.told for member in group] == [2, 1, 2]


def test_large_group_is_notified_gradually() -> None:
    group = members(2 * LATER_AT_ONCE)
    notices = ChangeNotices(50)
    notices.notify("G", group)
    assert not any(member.told for member in group)
    group[-1].closed = True
    notices.send_some()
    assert sum(member.told for member in group) == LATER_AT_ONCE
    notices.send_some()
    assert sum(member.told for member in group) == 2 * LATER_AT_ONCE - 1


def test_changes_during_a_round_are_announced_once_to_all() -> None:
    first = members(2 * LATER_AT_ONCE)
    notices = ChangeNotices(50)
    notices.notify("G", first)
    notices.send_some()
    newcomers = members(10)
    for count in range(1, 11):
        notices.notify("G", first + newcomers[:count])
    for _ in range(10):
        notices.send_some()
    assert {member.told for member in first} == {2}
    assert {member.told for member in newcomers} == {1}


def test_notifications_alternate_between_large_groups() -> None:
    groups = {name: members(3 * LATER_AT_ONCE) for name in ("G", "H")}
    notices = ChangeNotices(50)
    for name, group in groups.items():
        notices.notify(name, group)
    for _ in range(2):
        notices.send_some()
    assert [sum(member.told for member in group) for group in groups.values()] == [LATER_AT_ONCE, LATER_AT_ONCE]


async def test_members_of_a_large_group_are_notified_of_a_newcomer(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(consume={"notices_at_once_max": 1})) as broker:
        one, two = await broker.connect(), await broker.connect()
        await one.heartbeat("one", "G")
        await one.notice()
        assert (await two.heartbeat("two", "G")).code == ResponseCode.SUCCESS
        for client in (one, two):
            assert await client.notice() == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
