"""Messages that wait, stored while the clock of the leader was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mq.protocol.messages.delay import timer_slot
from mq.protocol.names import TIMER_TOPIC
from tests.support.running_broker import Client, broker_client, properties, running
from tests.support.stored_messages import figure, stored, wait_stored
from tests.support.waiting_messages import WallClock, beats

SECOND, HOUR, DAY, YEAR = 1000, 3_600_000, 86_400_000, 31_536_000_000

RELATIVE = ({"TIMER_DELAY_MS": "5000"}, {"TIMER_DELAY_SEC": "5"}, {"DELAY": "2"}, {"DELAY": "3"})
"""Five seconds each, with the levels of `LEVELS`: the last one waits as a timer."""
LEVELS = "1s 5s 5s"


async def send_each(client: Client) -> None:
    for number, given in enumerate(RELATIVE):
        assert (await client.send(body=b"%d" % number, i=properties(**given))).code == 0


async def check_that_each_waits(client: Client, clock: WallClock, seconds: int = 5) -> None:
    """From now on."""
    await beats(client)
    assert await stored(client) == []
    clock.now_ms += seconds * SECOND - 1
    await beats(client)
    assert await stored(client) == [], "nobody gets them earlier"
    clock.now_ms += 1
    assert sorted(message.body for message in await wait_stored(client, len(RELATIVE))) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("ahead_ms", [YEAR, 10 * HOUR, 30 * SECOND])
async def test_delay_restarts_when_the_clock_is_set_back(tmp_path: Path, clock: WallClock, ahead_ms: int) -> None:
    async with broker_client(tmp_path, delay_levels=LEVELS) as client:
        await client.send(body=b"before", topic="Other")
        clock.now_ms += ahead_ms
        await beats(client)
        await send_each(client)
        clock.now_ms -= ahead_ms
        with capture_logs() as logs:
            await check_that_each_waits(client, clock)
        assert "messages_from_the_future" in {line["event"] for line in logs}
        clock.now_ms += 2 * YEAR
        await beats(client)
        assert len(await stored(client)) == len(RELATIVE), "each comes once"


@pytest.mark.parametrize("ahead_ms", [YEAR, 10 * HOUR])
async def test_delay_restarts_with_the_next_leader(tmp_path: Path, clock: WallClock, ahead_ms: int) -> None:
    clock.now_ms += ahead_ms
    async with running(tmp_path, delay_levels=LEVELS) as broker:
        await send_each(await broker.connect())
    clock.now_ms -= ahead_ms
    async with running(tmp_path, delay_levels=LEVELS) as broker:
        await check_that_each_waits(await broker.connect(), clock)


async def test_message_with_a_delivery_time_is_delivered_at_that_time(client: Client, clock: WallClock) -> None:
    start_ms = clock.now_ms
    due_ms = start_ms + 3 * DAY
    clock.now_ms += 2 * DAY
    assert (await client.send(body=b"absolute", i=properties(TIMER_DELIVER_MS=str(due_ms)))).code == 0
    clock.now_ms = start_ms
    await wait_stored(client, 2, TIMER_TOPIC, timer_slot(due_ms))
    for day in (1, 2, 3):
        await beats(client)
        assert await stored(client) == []
        clock.now_ms = start_ms + day * DAY
    [message] = await wait_stored(client, 1)
    assert (message.body, message.store_timestamp_ms) == (b"absolute", due_ms)


async def test_small_clock_changes_do_not_move_delayed_messages(client: Client, clock: WallClock) -> None:
    for number in range(20):
        await client.send(body=b"%d" % number, i=properties(TIMER_DELAY_SEC=str(3600 + 60 * number)))
    clock.now_ms += 10 * 60 * SECOND
    await beats(client)
    clock.now_ms -= 10 * 60 * SECOND
    await beats(client)
    assert (await figure(client, "timersRolled"), await figure(client, "timersPending")) == (0, 20)
