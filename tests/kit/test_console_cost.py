"""What an open overview costs the leader of a broker group, in processor time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
import trio

from mq.client import Admin
from mq.inspection.cluster import ask_brokers
from mq.inspection.cluster_queries import QueryingAdmin
from mq.inspection.survey import survey
from mq.testing import SyncKit
from tests.support.console_browser import quiet_kit

MINUTE = {"brokers": 30, "survey": 2, "progress": 1}
"""What an open overview asks for in a minute: counted in tests/unit/console/test_cost.py."""
OF_A_CORE = 0.01


@pytest.fixture(scope="module")
def kit() -> Iterator[SyncKit]:
    """A broker with a few topics."""
    with quiet_kit() as running:
        yield running


def test_open_overview_costs_a_leader_little(kit: SyncKit) -> None:
    """The processor time of this process counts the console's part as well, which is more than that of the leader."""

    async def minute(parts: dict[str, int]) -> float:
        async with QueryingAdmin(kit.namesrv) as admin:
            await ask_brokers(admin)
            began = time.process_time()
            for _ in range(parts["brokers"]):
                await ask_brokers(admin)
            for _ in range(parts["survey"]):
                await survey(kit.namesrv, watch_seconds=0)
            for _ in range(parts["progress"]):
                await admin.all_progress()
            return time.process_time() - began

    async def create() -> None:
        async with Admin(kit.namesrv) as admin:
            for number in range(5):
                await admin.create_topic(f"Topic{number}", queues=8)

    trio.run(create)
    gc.collect()
    gc.freeze()
    try:
        seconds = trio.run(minute, MINUTE)
    finally:
        gc.unfreeze()
    assert seconds < 60 * OF_A_CORE
