"""Pages that begin at a time: of which queues they tell, and what they say of others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, cast

import pytest

from mq.client.errors import BrokerError
from mq.client.message import MessageQueue
from mq.console.pages.groups import offsets_of_all
from mq.inspection.cluster_queries import QueryingAdmin

TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TOLD, SLOW, GONE = (MessageQueue("T", "broker-a", number) for number in range(3))


class Answers:
    """A cluster in which one queue is answered together with others, one alone, and one not at all."""

    async def offsets_at(self, times: Mapping[MessageQueue, dt.datetime]) -> dict[MessageQueue, int]:
        return {queue: 7 for queue in times if queue == TOLD}

    async def offset(self, queue: MessageQueue, time: dt.datetime) -> int:
        assert time == TIME
        if queue == GONE:
            raise BrokerError(1, "the archive cannot be read", "127.0.0.1:1")
        return 9


async def offsets(*queues: MessageQueue) -> dict[MessageQueue, Any]:
    return await offsets_of_all(cast("QueryingAdmin", Answers()), queues, TIME)


async def test_slow_queues_are_included() -> None:
    assert await offsets(TOLD, SLOW) == {TOLD: 7, SLOW: 9}


async def test_queue_without_an_answer_is_an_error() -> None:
    with pytest.raises(BrokerError, match="the archive cannot be read"):
        await offsets(TOLD, GONE)
