"""Pages of a cluster with 10,000 topics, 5,000 consumer groups, and 200 members of a group: their time and size."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
import structlog
import trio

from mq.client.message import MessageQueue
from mq.console.app import Console
from mq.console.settings import ConsoleSettings
from mq.console.users import Users
from mq.console.watch import Shared, Watch
from mq.inspection.looking import Held, LookingAdmin
from mq.inspection.members import Member
from mq.protocol.group_bodies import ClientConnectionData, ProcessQueueInfo
from mq.protocol.numbers import QueueOffset
from mq.protocol.operator_bodies import GroupProgress, QueueEnds, SubscriptionGroupConfig
from mq.protocol.registration import TopicConfig
from tests.support.console_browser import NOW_MS, Browser

TOPICS, GROUPS, MEMBERS, QUEUES = 10_000, 5_000, 200, 8
SECONDS_MAX = 0.3
BYTES_MAX = 1_000_000


class Answers(LookingAdmin):
    """What brokers of such a cluster answer, at once."""

    async def held(self, topics: Mapping[str, Sequence[str]]) -> dict[str, Held]:
        assert len(topics) <= 50, "a page"
        return {name: Held(1000, QUEUES) for name in topics}

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueEnds]:
        ends = QueueEnds(QueueOffset(0), QueueOffset(1000), NOW_MS)
        return {MessageQueue(topic, "broker-a", number): ends for number in range(QUEUES)}

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        return {"broker-a": TopicConfig(topic, QUEUES, QUEUES)}

    async def group_progress(self, group: str) -> dict[MessageQueue, GroupProgress]:
        return progress_of(0)


def topic_name(number: int) -> str:
    return f"topic-of-a-team-with-a-long-name-{number:05}"


def progress_of(number: int) -> dict[MessageQueue, GroupProgress]:
    one = GroupProgress(QueueOffset(1000), QueueOffset(900), NOW_MS - 60_000)
    return {MessageQueue(topic_name(number), "broker-a", queue): one for queue in range(QUEUES)}


class FakeUsers:
    """Everybody sees the same cluster."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def enter(self, session: str, credentials: object) -> None:
        pass

    def leave(self, session: str) -> None:
        pass

    def watch_of(self, session: str) -> Watch:
        return self._watch


def known(value: Any) -> Shared[Any]:
    async def ask() -> Any:
        return value

    return Shared(ask, 1e9)


@pytest.fixture(scope="module")
def watch() -> Watch:
    config = TopicConfig("T", QUEUES, QUEUES)
    found = Watch("127.0.0.1:1", cast("Any", None), Answers("127.0.0.1:1"), cast("Any", None), cast("Any", None))
    found.topics = known({topic_name(number): {"broker-a": config} for number in range(TOPICS)})
    groups = [f"group-of-a-team-{number:05}" for number in range(GROUPS)]
    found.groups = known({name: {"broker-a": SubscriptionGroupConfig(group_name=name)} for name in groups})
    found.progress = known({name: progress_of(number) for number, name in enumerate(groups)})
    one = ProcessQueueInfo(QueueOffset(900), QueueOffset(900), QueueOffset(910), 10, 1, False, False)
    queues = {MessageQueue(topic_name(0), "broker-a", number): one for number in range(QUEUES)}
    clients = [ClientConnectionData(f"10.0.{n}.7@4711", f"10.0.{n}.7:50000", "JAVA", 409) for n in range(MEMBERS)]
    members = known([Member(client, queues) for client in clients])
    found.members = lambda group: members  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    "address",
    [
        "/topics",
        "/topics?page=200",
        "/topics?part=9",
        f"/topic?name={topic_name(7)}",
        "/groups",
        "/groups?order=behind&page=100",
        "/group?name=group-of-a-team-00000",
    ],
)
def test_pages_of_a_large_cluster_are_quick_and_small(watch: Watch, address: str) -> None:
    async def main() -> tuple[float, int]:
        users = cast("Users", FakeUsers(watch))
        app = Console(ConsoleSettings(), users, structlog.get_logger(), lambda: NOW_MS).app()
        browser = Browser(app)
        await browser.get("/changes")
        began = time.process_time()
        answer = await browser.get(address)
        assert answer.status == 200, answer.text
        assert 'role="alert"' not in answer.text
        return time.process_time() - began, len(answer.text)

    seconds, nbytes = trio.run(main)
    assert seconds < SECONDS_MAX
    assert nbytes < BYTES_MAX
