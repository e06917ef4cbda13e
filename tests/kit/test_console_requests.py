"""Every page of the console asks a broker for as much with many topics and groups as with one: counted on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import structlog
import trio

from mq.client import Admin, Message, Producer, PullConsumer
from mq.client.net.client_core import ClientCore
from mq.console.app import PAGES
from mq.inspection.catalogue import CatalogueAdmin
from mq.protocol.codes import RequestCode
from mq.protocol.names import dead_letter_topic
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.topics import TopicConfig
from mq.testing import SyncKit, running_kit
from tests.support.console_browser import Browser, count_requests, run
from tests.support.waiting import until

TOPICS, GROUPS, QUEUES = 400, 130, 4
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
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with running_kit() as running:
        trio.run(fill, running.namesrv)
        yield running
    structlog.reset_defaults()


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


@pytest.mark.parametrize("path", PAGES)
def test_a_page_asks_as_much_with_many_topics_and_groups(
    kit: SyncKit, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    total = count_requests(monkeypatch)
    call = ClientCore.call

    async def counted(self: ClientCore, address: str, code: int, *arguments: object, **more: object) -> object:
        counts[address, code] += 1
        return await call(self, address, code, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientCore, "call", counted)

    async def main(browser: Browser) -> None:
        await browser.get("/changes")  # the overview looks for what is wrong in the background
        await until(lambda: total[RequestCode.GET_BROKER_RUNTIME_INFO])
        counts.clear()
        answer = await browser.get(f"{path}?{QUERIES.get(path, '')}")
        assert answer.status == (404 if path in ("/job", "/remove-member", "/settings") else 200), answer.content
        asked = {(address, code): count for (address, code), count in counts.items() if code not in SHARED}
        for (address, code), count in asked.items():
            limit = 12 * QUEUES if code in READS else MOST.get(RequestCode(code), 1)
            assert count <= limit, (address, RequestCode(code).name, count)

    run(main, kit)
