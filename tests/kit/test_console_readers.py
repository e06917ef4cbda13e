"""Who reads a topic, as the console's pages of a topic and of a message say it: with members or with offsets only."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from mq.client import Admin, Message, Producer, PullConsumer
from mq.testing import SyncKit
from tests.support.console_browser import Answer, Browser, quiet_kit


@pytest.fixture(scope="module")
def kit() -> Iterator[SyncKit]:
    """Brokers with five messages in one queue, of which two groups have consumed three; one of these was deleted."""
    with quiet_kit(fill) as running:
        yield running


async def fill(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("Orders", queues=1)
        for number in range(5):
            await producer.send(Message("Orders", b"%d" % number, keys=[f"k{number}"]))
        for group in ("nightly", "deleted"):
            async with PullConsumer(namesrv, group, consume_from="first") as consumer:
                [queue] = await consumer.queues("Orders")
                await consumer.assign([queue])
                await consumer.commit({queue: 3})
        await admin.delete_consumer_group("deleted", offsets=False)


def row_of(page: Answer, group: str) -> str:
    [row] = re.findall(rf'<tr><th scope="row"><a href="/group\?name={group}">.*', page.content)
    return str(row)


async def test_topic_names_groups_that_have_offsets_only(browser: Browser) -> None:
    page = await browser.get("/topic?name=Orders")
    assert page.status == 200
    for group in ("nightly", "deleted"):
        assert '<td class="n">2<' in row_of(page, group), group
    assert "it has offsets only" in row_of(page, "deleted")


async def test_message_page_shows_progress_of_groups_without_members(browser: Browser) -> None:
    for offset, words in ((2, "has got it"), (3, "stands at it"), (4, "has not come to it")):
        page = await browser.get(f"/message?topic=Orders&broker=broker-a&queue=0&offset={offset}")
        row = page.content.split(">deleted<", 1)[1].split("</tr>", 1)[0]
        assert words in row, (offset, row)


async def test_page_of_a_group_with_offsets_only_shows_its_queues(browser: Browser) -> None:
    page = await browser.get("/group?name=deleted")
    assert "<b>2</b> messages to consume" in page.content
