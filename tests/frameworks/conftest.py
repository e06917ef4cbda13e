"""A broker in a thread of its own: the frameworks run on asyncio, the broker on trio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.from_thread
import pytest

from tests.support.name_server_and_broker import cluster_and_broker


@contextmanager
def _started(directory: Path) -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(cluster_and_broker(directory)) as (namesrv, _),
    ):
        yield namesrv


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker that all tests here share: each has topics of its own."""
    with _started(tmp_path_factory.mktemp("frameworks")) as namesrv:
        yield namesrv


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
