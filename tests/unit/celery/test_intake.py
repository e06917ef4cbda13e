"""What an intake does with messages that it has popped."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import trio

from mq.celery.intake import Delivery, Intake
from mq.celery.queue_calls import Source
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.errors import NoRoute
from tests.unit.client.popping import popped_message

pytestmark = pytest.mark.trio


async def test_messages_of_a_high_priority_are_delivered_also_if_the_pop_of_lower_ones_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """They stayed hidden for the visibility timeout, and nobody had them."""
    waiting = [popped_message(0, 1000)]
    waiting[0].body = b'{"properties": {}}'

    async def pop(source: Source, level: int, *_: Any) -> list[PoppedMessage]:
        if level == 0:
            raise NoRoute("q", "no leader")
        return [waiting.pop()] if waiting else []

    calls = mock.Mock(
        sources=mock.AsyncMock(return_value={Source("q", "b"): 2}),
        pop=pop,
        wait=mock.AsyncMock(),
        refresh=mock.AsyncMock(),
    )
    delivered: list[Delivery] = []
    intake = Intake(
        calls,
        mock.Mock(of_queue=lambda queue: queue),
        invisible=60.0,
        redeliveries_max=None,
        emit=delivered.append,
        fail=lambda error: pytest.fail(str(error)),
        unwanted=mock.AsyncMock(),
    )
    intake.limit(5)
    await intake.consume("q")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intake.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [each.message.receipt.offset for each in delivered if isinstance(each.message, PoppedMessage)] == [0]
