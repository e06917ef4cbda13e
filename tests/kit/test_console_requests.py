"""Every page of the console asks a broker for as much with many topics and groups as with one: counted on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import trio

from mq.client import Admin, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.console.app import PAGES
from mq.console.watch import MEMBERS_SECONDS
from mq.inspection.catalogue import CatalogueAdmin
from mq.inspection.survey import survey
from mq.protocol.codes import RequestCode
from mq.protocol.names import dead_letter_topic
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.topics import TopicConfig
from mq.testing import SyncKit
from tests.support.console_browser import console, count_requests, quiet_kit
from tests.support.waiting import until

TOPICS, GROUPS, QUEUES, MEMBERS = 400, 130, 4, 3
SHARED = {RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC}
"""What all pages show together, asked for at most every 2 s; and routes, which every client keeps."""
READS = {RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET}
"""By which messages are read: some for each queue of the one topic that is looked at."""
GROUP, TOPIC = "group-001", "Orders"
AT = f"topic={TOPIC}&broker=broker-a&queue=0"
QUERIES = {
    "/broker-group": "name=broker-a",
    "/members": "name=broker-a",
    "/member-change": "name=broker-a&action=remove&node=n0",
    "/settings": "",
    "/topic": f"name={TOPIC}",
    "/delete-topic": f"name={TOPIC}",
    "/messages": f"topic={TOPIC}",
    "/message": f"{AT}&offset=0",
    "/tail": f"topic={TOPIC}",
    "/send": f"topic={TOPIC}",
    "/group": f"name={GROUP}",
    "/reset": f"name={GROUP}&topic={TOPIC}&to=first",
    "/delete-group": f"name={GROUP}",
    "/remove-member": f"name={GROUP}&member=nobody",
    "/dead-letters": f"group={GROUP}",
    "/account": "name=*",
    "/job": "number=1",
}
MOST = {
    RequestCode.GET_BROKER_CONSUME_STATS: 2,  # one for ordered topics, one for others
    RequestCode.VIEW_BROKER_STATS_DATA: 2,  # messages and bytes
    RequestCode.QUERY_MESSAGE: 31,  # of one message: its trace, and its copies for ten consumer groups at most
}
"""How many requests of a kind a page makes of a broker; 1 of any other."""


@pytest.fixture(scope="module")
def kit() -> Iterator[SyncKit]:
    """A broker with many topics, and consumer groups that all read one topic and have dead letters."""
    with quiet_kit(fill) as running:
        yield running


async def fill(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(TOPIC, queues=QUEUES)
        for number in range(8):
            await producer.send(Message(TOPIC, b"%d" % number, keys=["key"]))
    names = [f"group-{number:03}" for number in range(GROUPS)]
    topics = [f"topic-{number:03}" for number in range(TOPICS)] + [dead_letter_topic(each) for each in names]
    async with CatalogueAdmin(namesrv) as admin, PullConsumer(namesrv, names[0]) as consumer:
        for begin in range(0, len(topics), 100):
            await admin.put_topics("broker-a", [TopicConfig(each, 1, 1) for each in topics[begin : begin + 100]])
        await admin.put_groups([SubscriptionGroupConfig(group_name=each) for each in names])
        queues = await consumer.queues(TOPIC)
        for name in names:
            for queue in queues:
                await admin.store_offset(name, queue, 0)


def test_every_page_has_a_query_here() -> None:
    """A new page is counted, too."""
    assert QUERIES.keys() <= PAGES.keys()


def count_by_address(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Counts the requests that the console sends, by broker and code."""
    counts: Counter[tuple[str, int]] = Counter()
    call = ClientCore.call

    async def counted(self: ClientCore, address: str, code: int, *arguments: object, **more: object) -> object:
        counts[address, code] += 1
        return await call(self, address, code, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientCore, "call", counted)
    return counts


@pytest.mark.parametrize(
    "address",
    [
        f"/reset?name={GROUP}&topic={TOPIC}&to=time&time=2020-01-01T00:00",
        f"/messages?topic={TOPIC}&by=time&time=2020-01-01T00:00",
    ],
)
async def test_offsets_by_time_take_one_request_for_all_queues(
    kit: SyncKit, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    counts = count_by_address(monkeypatch)
    async with console(kit.namesrv) as browser:
        answer = await browser.get(address)
        assert answer.status == 200, answer.content
        codes = [code for _, code in counts.elements()]
        assert codes.count(RequestCode.ASK_QUEUES) == 1
        assert RequestCode.SEARCH_OFFSET_BY_TIMESTAMP not in codes


async def consume_with(consumer: PushConsumer) -> None:
    async with consumer:
        await consumer.run()


async def test_group_page_asks_for_all_members_at_once(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker asks the members, and the page shows what each of them has."""
    counts = count_by_address(monkeypatch)
    async with console(kit.namesrv) as browser, trio.open_nursery() as nursery:
        names = []
        for _ in range(MEMBERS):
            consumer = PushConsumer(kit.namesrv, "members", consume_from="first")

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                del message

            nursery.start_soon(consume_with, consumer)
            names.append(consumer.client_id)

        async def all_have_a_queue() -> bool:
            content = (await browser.get("/group?name=members")).content
            queues = [f"{TOPIC} broker-a/{queue}" for queue in range(QUEUES)]
            return all(name in content for name in names) and all(queue in content for queue in queues)

        began = trio.current_time()
        await until(all_have_a_queue)
        codes = [code for _, code in counts.elements()]
        assert 1 <= codes.count(RequestCode.ASK_MEMBERS) <= 1 + (trio.current_time() - began) / MEMBERS_SECONDS
        assert RequestCode.GET_CONSUMER_RUNNING_INFO not in codes
        assert RequestCode.GET_CONSUMER_CONNECTION_LIST not in codes
        nursery.cancel_scope.cancel()


async def test_doctor_asks_a_broker_for_each_thing_once(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with many groups that lag, dead letters of each, and messages that retention deletes soon."""
    counts = count_by_address(monkeypatch)
    found = await survey(kit.namesrv, watch_seconds=0)
    assert found.consumers is not None, found.consumers_reason
    assert len(found.consumers.members) >= GROUPS
    assert found.open_name_servers == {kit.namesrv}, "it has no accounts"
    twice = {RequestCode.GET_BROKER_CONSUME_STATS: 4, RequestCode.ASK_QUEUES: 2}
    for (address, code), count in counts.items():
        assert count <= twice.get(RequestCode(code), 1), (address, RequestCode(code).name, count)


@pytest.mark.parametrize("path", PAGES)
async def test_page_asks_as_much_with_many_topics_and_groups(
    kit: SyncKit, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    total = count_requests(monkeypatch)
    counts = count_by_address(monkeypatch)
    async with console(kit.namesrv) as browser:
        await browser.get("/changes")  # the overview looks for what is wrong in the background
        await until(lambda: total[RequestCode.GET_BROKER_RUNTIME_INFO])
        counts.clear()
        answer = await browser.get(f"{path}?{QUERIES.get(path, '')}")
        assert answer.status == (404 if path in ("/job", "/remove-member", "/settings") else 200), answer.content
        asked = {(address, code): count for (address, code), count in counts.items() if code not in SHARED}
        for (address, code), count in asked.items():
            limit = 12 * QUEUES if code in READS else MOST.get(RequestCode(code), 1)
            assert count <= limit, (address, RequestCode(code).name, count)
