"""Somebody sets the clock of the machine on which the brokers of the test kit run: these believe it a minute later."""

from __future__ import annotations

import datetime as dt

import pytest

from mq.client import Admin, Every, Message, Producer, Schedule
from mq.testing import open_kit
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

DAY_MS = 24 * 3_600_000
MINUTE = dt.timedelta(minutes=1)


@pytest.mark.parametrize("days", [1, -1])
async def test_kit_time_follows_the_broker_clock_after_a_jump(days: int) -> None:
    """What is due by the clock of the machine is not due by theirs, and was waited for in vain."""
    async with open_kit() as kit, Admin(kit.namesrv) as admin, Producer(kit.namesrv) as producer:
        await admin.create_topic("T")
        await admin.schedules.create(Schedule("each minute", "T", b"tick", Every(MINUTE)))
        await producer.send(Message("T", b"delayed", delay=90))
        await kit.advance(minutes=2)
        kit.assert_stored("T", b"tick", b"delayed", b"tick")
        before = kit.now()
        kit._core._cluster.clock._epoch_ms += days * DAY_MS
        await producer.send(Message("T", b"later", delay=50))
        await kit.advance(seconds=55)
        assert kit.now() - before < MINUTE, "they do not believe it yet"
        assert b"later" in [each.body for each in kit.messages("T")]
        await kit.advance(seconds=10)
        assert abs(kit.now() - before - dt.timedelta(days=days)) < 2 * MINUTE
