"""What an open page costs the brokers: requests are counted on a virtual clock, with one tab and with fifty."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from mq.client.message import MessageQueue
from mq.client.net.client_core import RemotingSettings
from mq.console import watch as watching
from mq.console.app import Console
from mq.console.settings import ConsoleSettings
from mq.console.users import Users
from mq.inspection.cluster import GroupStatus, ReplicaStatus
from mq.inspection.cluster_queries import QueryingAdmin
from mq.inspection.survey import Consumers, Survey
from mq.protocol.requests.group_progress import GroupProgress
from tests.support.console_browser import NOW_MS, Browser

ADDRESS = "10.0.0.1:10911"
SECONDS = 600
REPLICA = ReplicaStatus("n0", ADDRESS, "leader", figures={"raftmq.role": "leader"})
GROUPS = [GroupStatus("C", "broker-a", None, "n0", (REPLICA,))]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often the servers were asked for a thing; they answer at once."""
    counts: Counter[str] = Counter()

    def answering(name: str, answer: Any) -> Any:
        async def ask(*arguments: Any, **more: Any) -> Any:
            counts[name] += 1
            return answer

        return ask

    monkeypatch.setattr(watching, "ask_brokers", answering("brokers", GROUPS))
    monkeypatch.setattr(watching, "survey", answering("survey", Survey(GROUPS, {}, {}, {})))
    for name in ("all_progress", "topic_configs", "consumer_groups", "group_offsets"):
        monkeypatch.setattr(QueryingAdmin, name, answering(name, {}))
    return counts


@pytest.mark.slow
def test_large_cluster_is_looked_through_less_often(asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader paid 0.3 s for the progress of 5,000 groups in 8 queues each: more than the hundredth, each 15 s."""
    queues = {MessageQueue("T", "broker-a", number): GroupProgress() for number in range(8)}
    progress = {f"group-{number}": queues for number in range(5000)}
    consumers = Consumers(progress, progress, 3.0, {}, {}, {}, {}, {}, None, NOW_MS)

    async def survey(*arguments: Any, **more: Any) -> Survey:
        asked["survey"] += 1
        return Survey(GROUPS, {}, {}, {}, consumers=consumers)

    async def all_progress(*arguments: Any) -> Any:
        asked["all_progress"] += 1
        return progress

    monkeypatch.setattr(watching, "survey", survey)
    monkeypatch.setattr(QueryingAdmin, "all_progress", all_progress)
    found = asked_with(1, asked)
    answers = 2 * found["survey"] + found["all_progress"]
    assert 0 < answers * 0.32 < SECONDS * 0.01
    assert found["brokers"] >= SECONDS / 2 * 0.8, "what is cheap is asked as often"


def asked_with(tabs: int, asked: Counter[str]) -> Counter[str]:
    """What was asked for while so many tabs showed the overview."""

    async def main() -> Counter[str]:
        async with trio.open_nursery() as nursery:
            users = Users("127.0.0.1:1", RemotingSettings(credentials=None, tls=None), nursery)
            app = Console(ConsoleSettings(), users, structlog.get_logger(), lambda: NOW_MS).app()
            browser = Browser(app)
            await browser.get("/changes")
            asked.clear()
            for _ in range(tabs):
                nursery.start_soon(browser.events, "/?live=1", 10**9)
            await trio.sleep(SECONDS)
            found = asked.copy()
            nursery.cancel_scope.cancel()
        return found

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_open_overview_asks_the_brokers_every_two_seconds(asked: Counter[str]) -> None:
    """What these requests cost a leader is measured in tests/kit/test_cost.py."""
    found = asked_with(1, asked)
    assert found.keys() == {"brokers", "survey", "all_progress"}
    for name, seconds in (("brokers", 2), ("survey", 30), ("all_progress", 60)):
        assert SECONDS / seconds * 0.8 <= found[name] <= SECONDS / seconds + 2, (name, found)


def test_fifty_open_overviews_ask_as_often_as_one(asked: Counter[str]) -> None:
    assert asked_with(50, asked) == asked_with(1, asked)


def test_unwatched_console_asks_only_for_its_charts(asked: Counter[str]) -> None:
    found = asked_with(0, asked)
    assert found.keys() == {"brokers", "all_progress"}
    assert found["brokers"] <= SECONDS / 10 + 1
    assert found["all_progress"] <= SECONDS / 60
