"""The SDK's tests run on both event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.from_thread
import pytest

from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[FakeCluster]:
    """A cluster for tests without an event loop."""
    with (
        anyio.from_thread.start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(FakeCluster.start(topics={"T": 1})) as started,
    ):
        yield started


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[FakeCluster]:
    """A cluster in the event loop of the test; its topic T has one queue."""
    async with FakeCluster.start(topics={"T": 1}) as started:
        yield started
