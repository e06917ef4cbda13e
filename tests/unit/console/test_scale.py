"""Pages of a cluster with 10,000 topics, 5,000 consumer groups, and 200 members of a group: their time and size."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import trio

from mq.client.errors import TopicNotFound
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import RemotingSettings
from mq.console.app import PAGES, Console
from mq.console.events import EVENTS_MAX
from mq.console.pages import messages
from mq.console.pages.visit import Visit
from mq.console.settings import ConsoleSettings
from mq.console.tails import ROWS_MAX, Tail
from mq.console.users import Users
from mq.console.views.messages import MessageRow
from mq.console.watch import SharedAnswer, Watch
from mq.inspection.cluster import GroupStatus, ReplicaStatus
from mq.inspection.cluster_queries import MessageCount, OfReplicas, QueryingAdmin
from mq.inspection.members import Member
from mq.protocol.messages.records import Host, StoredMessage
from mq.protocol.names import dead_letter_topic
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.accounts import AccountInfo, AccountList
from mq.protocol.requests.broker import BrokerStatsData
from mq.protocol.requests.bulk import LeaseInfo, LeaseList
from mq.protocol.requests.consumer_groups import ClientConnectionData, SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.pending import KINDS, SHOWN_MAX, PendingInfo, PendingMessage
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import NamedQuota, QuotaList
from mq.protocol.requests.relayed import ProcessQueueInfo
from mq.protocol.requests.topic_use import QueueSize, Sender, TopicUse
from mq.protocol.requests.topics import QueueEnds, TopicConfig
from mq.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from tests.support.console_browser import NOW_MS, Browser

TOPICS, GROUPS, MEMBERS, QUEUES = 10_000, 5_000, 200, 8
USERS, POLICIES, SETTINGS = 2_000, 5, 300
ACCOUNTS, ONLY_OFFSETS, LEASES, SENDERS = 500, 1_000, 64, 1_024
ADDRESS = "10.0.0.1:10911"
SECONDS_MAX = 1.0
"""Of a processor. The dearest page takes 0.1 s here; a look at each pair of topics takes far longer."""
BYTES_MAX = 1_000_000


class Answers(QueryingAdmin):
    """What brokers of such a cluster answer, at once; ``asked`` counts what was asked for, by name."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(namesrv)
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in Answers.__dict__ and not name.startswith("_"):
            self.asked[name] += 1
        return super().__getattribute__(name)

    async def quotas(self) -> dict[str, QuotaList]:
        users = [NamedQuota(user=user_name(number), quota=Quota(connections=3)) for number in range(USERS)]
        return {"broker-a": QuotaList(users=users)}

    async def accounts(self) -> OfReplicas[AccountList]:
        rights = {topic_name(number): ["PUB", "SUB"] for number in range(POLICIES)}
        accounts = [AccountInfo(access_key=f"account-{number:05}", topics=rights) for number in range(ACCOUNTS)]
        return OfReplicas({f"broker-a n{number}": AccountList(has_file=True, accounts=accounts) for number in range(5)})

    async def figure(self, name: str, key: str) -> dict[str, BrokerStatsData]:
        return {f"broker-{number}": BrokerStatsData() for number in range(20)}

    async def leases(self) -> OfReplicas[LeaseList]:
        leases = [
            LeaseInfo(lease_id=f"spark-{number}", position=PhysicalOffset(0), seconds=600) for number in range(LEASES)
        ]
        return OfReplicas({f"broker-{number} {ADDRESS}": LeaseList(leases=leases) for number in range(20)})

    async def group_offsets(self) -> dict[str, dict[MessageQueue, int]]:
        known = {group_name(number): dict.fromkeys(progress_of(number % 10), 900) for number in range(GROUPS)}
        return known | {f"deleted-{number:05}": dict.fromkeys(progress_of(7), 900) for number in range(ONLY_OFFSETS)}

    async def trace(self, message_id: str, **more: Any) -> Any:
        raise TopicNotFound("the topic of traces")

    async def messages_by_key(self, *arguments: Any, **more: Any) -> list[ReceivedMessage]:
        return []

    async def message_counts(self, topics: Mapping[str, Sequence[str]]) -> dict[str, MessageCount]:
        assert len(topics) <= 50, "a page"
        return {name: MessageCount(1000, QUEUES) for name in topics}

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueEnds]:
        ends = QueueEnds(QueueOffset(0), QueueOffset(1000), NOW_MS)
        return {MessageQueue(topic, "broker-a", number): ends for number in range(QUEUES)}

    async def topic_use(self, topic: str) -> dict[str, TopicUse]:
        sizes = [QueueSize(number, 10**9, False) for number in range(QUEUES)]
        senders = [
            Sender(address=f"10.0.{number}.7", messages=1, last_ms=NOW_MS, client_id=f"10.0.{number}.7@4711")
            for number in range(SENDERS)
        ]
        return {"broker-a": TopicUse(queues=sizes, senders=senders, looked_at=SENDERS)}

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        return {"broker-a": TopicConfig(topic, QUEUES, QUEUES)}

    async def all_progress(self) -> dict[str, dict[MessageQueue, GroupProgress]]:
        return {group_name(number): progress_of(number % 10) for number in range(GROUPS)}

    async def consumer_groups(self) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        return {group_name(n): {"broker-a": SubscriptionGroupConfig(group_name=group_name(n))} for n in range(GROUPS)}

    async def group_members(self, group: str) -> list[ClientConnectionData]:
        return clients()

    async def users(self, name_part: str = "") -> dict[str, list[UserInfo]]:
        users = [UserInfo(name=user_name(number), user_type="Normal") for number in range(USERS)]
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


def user_name(number: int) -> str:
    return f"user-of-a-team-{number:05}"


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


def received(queue: MessageQueue, offset: int) -> ReceivedMessage:
    """A message of 64 KiB at an offset."""
    host, place, body = Host("10.0.0.1", 50_000), PhysicalOffset(4096), b"b" * 65_536
    properties = {"KEYS": "k", "UNIQ_KEY": "7F" * 16}
    at = QueueOffset(offset)
    record = StoredMessage(
        queue.topic, queue.queue_id, 0, at, place, 0, 0, host, NOW_MS, host, 0, place, body, properties, 0
    )
    return ReceivedMessage(record, queue, record.body)


def known(value: Any) -> SharedAnswer[Any]:
    async def ask() -> Any:
        return value

    return SharedAnswer(ask, 1e9)


@pytest.fixture(scope="module")
def watch() -> Watch:
    config = TopicConfig("T", QUEUES, QUEUES)
    found = Watch("127.0.0.1:1", RemotingSettings(), Answers("127.0.0.1:1"), cast("Any", None), cast("Any", None))
    letters = [dead_letter_topic(group_name(number)) for number in range(GROUPS)]
    all_topics = [*(topic_name(number) for number in range(TOPICS)), *letters]
    found.topics = known({name: {"broker-a": config} for name in all_topics})
    groups = [group_name(number) for number in range(GROUPS)]
    found.groups = known({name: {"broker-a": SubscriptionGroupConfig(group_name=name)} for name in groups})
    found.progress = known({name: progress_of(number) for number, name in enumerate(groups)})
    one = ProcessQueueInfo(QueueOffset(900), QueueOffset(900), QueueOffset(910), 10, 1, False, False)
    queues = {MessageQueue(topic_name(0), "broker-a", number): one for number in range(QUEUES)}
    members = known([Member(client, queues) for client in clients()])
    found.members = lambda group: members  # type: ignore[method-assign]
    figures = {"raftmq.logScrubs": "1", "raftmq.role": "follower"}
    replicas = tuple(ReplicaStatus(f"n{number}", ADDRESS, "follower", figures=figures) for number in range(5))
    found.cluster = known([GroupStatus("C", f"broker-{number}", None, "n0", replicas) for number in range(20)])
    found.survey = cast("Any", SimpleNamespace(latest=lambda nursery: None))  # what is wrong is asked in the background
    found.names = known(all_topics)
    waiting = [
        PendingMessage(
            topic=topic_name(number),
            message_id="7F" * 16,
            offset_message_id="7F" * 16,
            stored_ms=NOW_MS,
            body_bytes=100,
            keys="k" * 100,
            due_ms=NOW_MS,
            handle="h" * 120,
            group=group_name(number),
        )
        for number in range(SHOWN_MAX)
    ]
    info = PendingInfo(total=10**6, looked_at=10**6, counts=[], messages=waiting)
    found.pending = {kind: known({"broker-a": info}) for kind in KINDS}
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
    found.tails.follow = lambda choice, show: tail  # type: ignore[method-assign]
    return found


@pytest.fixture(scope="module", autouse=True)
def only_our_garbage(watch: Watch) -> Iterator[None]:
    """What other tests left in memory is no work of the console: collecting it took most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read by a consumer, which these brokers in name only do not serve."""

    async def read_at(visit: Visit, queue: MessageQueue, offset: int) -> ReceivedMessage:
        return received(queue, offset)

    monkeypatch.setattr(messages, "read_at", read_at)


QUERIES = {
    "/topics": ("", "page=200", "part=9", "kind=all"),
    "/topic": (f"name={topic_name(7)}",),
    "/groups": ("", "order=behind&page=100"),
    "/group": ("name=group-of-a-team-00000",),
    "/delete-topic": (f"name={topic_name(7)}",),
    "/delete-group": ("name=group-of-a-team-00000",),
    "/remove-member": ("name=group-of-a-team-00000&member=10.0.7.7%404711",),
    "/reset": (f"name=group-of-a-team-00000&topic={topic_name(0)}&to=first",),
    "/tail": (f"topic={topic_name(7)}",),
    "/send": (f"topic={topic_name(7)}",),
    "/message": (f"topic={topic_name(7)}&broker=broker-a&queue=1&offset=950",),
    "/broker-group": ("name=broker-7",),
    "/settings": (f"address={ADDRESS}",),
    "/dead-letter-groups": ("", "page=50"),
    "/pending": ("", "kind=half", "kind=given-up"),
    "/accounts": ("", "page=40"),
    "/account": ("name=user-of-a-team-00007", "name=account-00007"),
}
ELSEWHERE = {
    "/members": "a group has some nodes, whatever else the cluster has",
    "/member-change": "the same",
    "/messages": "its rows are counted by the address, at most 200",
    "/dead-letters": "it reads at most 100",
    "/schedules": "its brokers are asked over the wire, in tests/kit/test_console_waiting.py",
    "/job": "it shows one change",
}
"""Pages whose length does not grow with the cluster, and why."""
MOST = {"messages_by_key": 30, "figure": 2}
"""How often a page asks for a thing: the copies of a message for ten groups at most, messages and bytes that were sent
to a topic, and anything else once."""
ADDRESSES = [f"{path}?{query}" for path in PAGES if path not in ELSEWHERE for query in QUERIES.get(path, ("",))]


@pytest.mark.parametrize("address", ADDRESSES)
def test_pages_of_a_large_cluster_are_quick_and_small(watch: Watch, address: str) -> None:
    asked = cast("Answers", watch.querying_admin).asked

    async def main() -> tuple[float, int]:
        users = cast("Users", FakeUsers(watch))
        app = Console(ConsoleSettings(allow_changes=True), users, structlog.get_logger(), lambda: NOW_MS).app()
        browser = Browser(app)
        await browser.get("/changes")
        asked.clear()
        began = time.thread_time()
        answer = await browser.get(address)
        seconds = time.thread_time() - began
        assert answer.status == 200, answer.text
        assert 'role="alert"' not in answer.text
        return seconds, len(answer.text)

    seconds, nbytes = trio.run(main)
    assert seconds < SECONDS_MAX
    assert nbytes < BYTES_MAX
    assert {name: count for name, count in asked.items() if count > MOST.get(name, 1)} == {}
