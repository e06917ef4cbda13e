"""Messages with sequence numbers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from mq.protocol.codes import ResponseCode
from tests.support.running_broker import (
    Answer,
    Client,
    RunningBroker,
    properties,
    running,
)


@contextlib.asynccontextmanager
async def one(directory: Path, **given: Any) -> AsyncIterator[tuple[RunningBroker, Client]]:
    async with running(directory, **given) as broker:
        yield broker, await broker.connect()


def numbered(number: object, producer: str = "p1", **given: str) -> str:
    return properties(RAFTMQ_PRODUCER=producer, RAFTMQ_SEQUENCE=str(number), **given)


def place(answer: Answer) -> dict[str, str]:
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.ext
