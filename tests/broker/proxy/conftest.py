"""A proxy, the brokers behind it, and an operator; in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mq.client import Admin
from mq.testing import Kit, open_kit
from tests.support.proxies import InMemoryProxy, open_proxy


@pytest.fixture
def replicas() -> int:
    """How many replicas the group of brokers has; a test gives another number by `parametrize`."""
    return 1


@pytest.fixture
async def kit(replicas: int) -> AsyncIterator[Kit]:
    """Brokers with a topic of each kind."""
    async with open_kit(replicas=replicas) as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic("Orders", 2)
        await admin.create_topic("Steps", 2, message_type="FIFO")
        await admin.create_topic("Later", 2, message_type="DELAY")
        await admin.create_topic("Payments", 2, message_type="TRANSACTION")
        yield kit


@pytest.fixture
async def admin(kit: Kit) -> AsyncIterator[Admin]:
    async with Admin(kit.namesrv) as admin:
        yield admin


@pytest.fixture
async def proxy(kit: Kit) -> AsyncIterator[InMemoryProxy]:
    async with open_proxy(kit) as proxy:
        yield proxy
