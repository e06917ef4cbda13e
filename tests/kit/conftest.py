"""The brokers of a test, clients of them, and browsers of a console in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mq.client import Admin, Producer
from mq.testing import Kit, SyncKit, open_kit
from tests.support.console_browser import Browser, console


@pytest.fixture
def replicas() -> int:
    """How many replicas the group of brokers has; a test gives another number by `parametrize`."""
    return 1


@pytest.fixture
async def kit(replicas: int) -> AsyncIterator[Kit]:
    """In the event loop of the test; modules that want it in a thread, or with settings, have one of their own."""
    async with open_kit(replicas=replicas) as kit:
        yield kit


@pytest.fixture
async def producer(kit: Kit) -> AsyncIterator[Producer]:
    async with Producer(kit.namesrv) as producer:
        yield producer


@pytest.fixture
async def admin(kit: Kit) -> AsyncIterator[Admin]:
    async with Admin(kit.namesrv) as admin:
        yield admin


@pytest.fixture
async def browser(kit: SyncKit) -> AsyncIterator[Browser]:
    """Of a console that only shows."""
    async with console(kit.namesrv) as browser:
        yield browser


@pytest.fixture
async def operator(kit: SyncKit) -> AsyncIterator[Browser]:
    """The browser of somebody whose console may change things."""
    async with console(kit.namesrv, allow_changes=True) as browser:
        yield browser
