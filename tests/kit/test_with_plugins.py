"""The test kit in tests that plugins of pytest run: of AnyIO, on both event loops, and of trio with its clocks."""

from __future__ import annotations

import pytest
import trio.testing

from mq.client import Message, Producer
from mq.testing import open_kit


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.anyio
async def test_kit_runs_in_anyio_tests() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Letters", b"late", delay=3600.0))
        await kit.advance(hours=1)
        kit.assert_stored("Letters", b"late")


async def test_trio_with_a_clock_that_jumps(autojump_clock: trio.testing.MockClock) -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Letters", b"late", delay=2.0))
        await trio.sleep(3)  # the clock of the brokers runs with that of the event loop
        kit.assert_stored("Letters", b"late")


async def test_trio_with_a_clock_that_stands_still(mock_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ValueError, match="use one that jumps when all tasks wait"):
        async with open_kit():
            pass
