"""What the tests of lite topics begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.lite_topics import lite_client
from tests.support.running_broker import Client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a broker that has a topic for lite topics, and a group that is bound to it."""
    async with lite_client(tmp_path) as client:
        yield client
