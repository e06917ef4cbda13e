"""Pages of a cluster with 10,000 topics, 5,000 consumer groups, and 200 members of a group: their time and size."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import trio

from mq.client.message import MessageQueue
from mq.client.net.client_core import RemotingSettings
from mq.console.app import Console
from mq.console.events import EVENTS_MAX
from mq.console.settings import ConsoleSettings
from mq.console.tails import ROWS_MAX, Tail
from mq.console.users import Users
from mq.console.views.messages import MessageRow
from mq.console.watch import Shared, Watch
from mq.inspection.cluster import GroupStatus, ReplicaStatus
from mq.inspection.looking import Held, LookingAdmin
from mq.inspection.members import Member
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import ClientConnectionData, SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.relayed import ProcessQueueInfo
from mq.protocol.requests.topics import QueueEnds, TopicConfig
from mq.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from tests.support.console_browser import NOW_MS, Browser

TOPICS, GROUPS, MEMBERS, QUEUES = 10_000, 5_000, 200, 8
USERS, POLICIES, SETTINGS = 2_000, 5, 300
ADDRESS = "10.0.0.1:10911"
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

    async def all_progress(self) -> dict[str, dict[MessageQueue, GroupProgress]]:
        return {group_name(number): progress_of(number % 10) for number in range(GROUPS)}

    async def consumer_groups(self) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        return {group_name(n): {"broker-a": SubscriptionGroupConfig(group_name=group_name(n))} for n in range(GROUPS)}

    async def group_members(self, group: str) -> list[ClientConnectionData]:
        return clients()

    async def users(self, name_part: str = "") -> dict[str, list[UserInfo]]:
        users = [UserInfo(name=f"user-of-a-team-{number:05}", user_type="Normal") for number in range(USERS)]
        return {"broker-a": [user for user in users if name_part in user.name]}

    async def policies(self, name_part: str = "", resource_part: str = "") -> dict[str, list[AclInfo]]:
        entries = [
            PolicyEntryInfo(resource=f"Topic:{topic_name(number)}", actions=["Pub"], decision="Allow")
            for number in range(POLICIES)
        ]
        policies = [PolicyInfo(entries=entries)]
        acls = [AclInfo(subject=f"User:user-of-a-team-{number:05}", policies=policies) for number in range(USERS)]
        return {"broker-a": [acl for acl in acls if name_part in acl.subject and not resource_part]}

    async def broker_settings(self, address: str) -> dict[str, str]:
        return {f"raftmq.setting_{number}": "x" * 200 for number in range(SETTINGS)}

    async def group_progress(self, group: str) -> dict[MessageQueue, GroupProgress]:
        return progress_of(0)


def topic_name(number: int) -> str:
    return f"topic-of-a-team-with-a-long-name-{number:05}"


def progress_of(number: int) -> dict[MessageQueue, GroupProgress]:
    one = GroupProgress(QueueOffset(1000), QueueOffset(900), NOW_MS - 60_000)
    return {MessageQueue(topic_name(number), "broker-a", queue): one for queue in range(QUEUES)}


def group_name(number: int) -> str:
    return f"group-of-a-team-{number:05}"


def clients() -> list[ClientConnectionData]:
    return [ClientConnectionData(f"10.0.{n}.7@4711", f"10.0.{n}.7:50000", "JAVA", 409) for n in range(MEMBERS)]


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
    found = Watch("127.0.0.1:1", RemotingSettings(), Answers("127.0.0.1:1"), cast("Any", None), cast("Any", None))
    found.topics = known({topic_name(number): {"broker-a": config} for number in range(TOPICS)})
    groups = [group_name(number) for number in range(GROUPS)]
    found.groups = known({name: {"broker-a": SubscriptionGroupConfig(group_name=name)} for name in groups})
    found.progress = known({name: progress_of(number) for number, name in enumerate(groups)})
    one = ProcessQueueInfo(QueueOffset(900), QueueOffset(900), QueueOffset(910), 10, 1, False, False)
    queues = {MessageQueue(topic_name(0), "broker-a", number): one for number in range(QUEUES)}
    members = known([Member(client, queues) for client in clients()])
    found.members = lambda group: members  # type: ignore[method-assign]
    figures = {"raftmq.logScrubs": "1"}
    replicas = tuple(ReplicaStatus(f"n{number}", ADDRESS, "follower", figures=figures) for number in range(5))
    found.cluster = known([GroupStatus("C", f"broker-{number}", None, "n0", replicas) for number in range(20)])
    found.survey = cast("Any", SimpleNamespace(latest=lambda nursery: None))  # what is wrong is asked in the background
    found.names = known([topic_name(number) for number in range(TOPICS)])
    for number in range(2 * EVENTS_MAX):  # each look finds that a leader changed
        leader = f"n{number % 2}"
        found.events.add([GroupStatus("C", "broker-a", None, leader, replicas)], float(number))
    for number in range(60):
        found.lags.add({name: progress_of(number) for name in groups[:100]}, 60.0 * number)
    rows = [
        MessageRow("2026-03-01T09:30:00.000Z", "broker-a/7 1,000", "tag", "k" * 100, "1,000 B", "b" * 120, "/message")
        for _ in range(ROWS_MAX)
    ]
    tail = Tail()
    tail.rows.extend(rows)
    tail.has_begun.set()
    found.tails.look = lambda followed, show: tail  # type: ignore[method-assign]
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
        f"/delete-topic?name={topic_name(7)}",
        "/delete-group?name=group-of-a-team-00000",
        f"/reset?name=group-of-a-team-00000&topic={topic_name(0)}&to=first",
        f"/tail?topic={topic_name(7)}",
        "/",
        "/broker-group?name=broker-7",
        f"/settings?address={ADDRESS}",
        "/events",
        "/accounts",
        "/accounts?page=40",
        "/account?name=user-of-a-team-00007",
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
    for _ in range(2):
        if seconds >= SECONDS_MAX:  # a processor that others use takes longer for the same
            seconds, nbytes = trio.run(main)
    assert seconds < SECONDS_MAX
    assert nbytes < BYTES_MAX
