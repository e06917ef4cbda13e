"""The console's pages about messages: one that is followed, a filter, a message sent by hand, what happened to one."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from mq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from mq.console import tails, watch
from mq.console.tails import TailFilter, TailLimits, Tails
from mq.inspection.cluster import GroupStatus
from mq.protocol.codes import RequestCode
from mq.testing import SyncKit
from tests.support.console_browser import HOSTILE, Browser, console, count_requests, quiet_kit
from tests.support.waiting import until


@pytest.fixture(scope="module")
def kit() -> Iterator[SyncKit]:
    """Brokers with the topic Orders of two queues, and one that was traced until the group mail gave it up."""
    with quiet_kit(fill) as running:
        yield running


async def fill(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("Orders", queues=2)
        await admin.create_topic("Letters", queues=1)
        for number in range(40):
            region = {"region": "eu" if number % 4 == 0 else "us", "amount": str(number)}
            await producer.send(Message("Orders", b"order %d" % number, tags="new", properties=region))
            await trio.sleep(0.002)  # messages of one millisecond have no order among queues
    async with Producer(namesrv, trace=True) as producer:
        await producer.send(Message("Letters", b"hello", keys=["l1"]))
    consumer = PushConsumer(
        namesrv, group="mail", ordered=False, max_reconsume_times=0, consume_from="first", trace=True
    )

    @consumer.on("Letters")
    async def fail(message: ReceivedMessage) -> None:
        consumer.stop()
        raise LookupError(f"no such address {HOSTILE[0]}")

    async with consumer:
        with trio.fail_after(30):
            await consumer.run()


async def test_topic_page_has_its_size_and_its_producers(kit: SyncKit, browser: Browser) -> None:
    async with Producer(kit.namesrv, group="shop") as producer:
        for _ in range(3):
            await producer.send(Message("Bills", b"b" * 1000))
        page = (await browser.get("/topic?name=Bills")).content
        assert f'<th scope="row">{producer.client_id}<td>' in page
        assert "<td>PYTHON<td" in page
        assert "<td>shop<td" in page
        assert "From the newest 3 messages" in page
        assert re.search(r"<b>\d[\d.]* kB</b>", page), "the bytes of the topic"


async def test_sql_filter_chooses_messages(browser: Browser) -> None:
    page = await browser.get("/messages?topic=Orders&sql=region%20%3D%20%27eu%27%20AND%20amount%20%3E%2020")
    assert re.findall(r"order \d+", page.content) == ["order 36", "order 32", "order 28", "order 24"]
    wrong = await browser.get("/messages?topic=Orders&sql=region%20%3D%20%3D")
    assert 'role="alert"' in wrong.content
    assert "order 1" not in wrong.content


@pytest.mark.parametrize(
    ("by", "more", "count"),
    [
        ("newest", "", 40),
        ("oldest", "", 40),
        ("offset", "&offset=5", 30),
        ("time", "&time=2020-01-01T00:00", 40),
        ("newest", "&tags=new", 40),
        ("newest", "&sql=region%20%3D%20%27eu%27", 10),
        ("oldest", "&queue=broker-a/1", 20),
    ],
)
async def test_message_pages_show_each_message_once(browser: Browser, by: str, more: str, count: int) -> None:
    address = f"/messages?topic=Orders&count=7&by={by}{more}"
    shown: list[str] = []
    for _ in range(10):
        page = await browser.get(address)
        assert 'role="alert"' not in page.content, page.content
        rows = re.findall(r"order \d+", page.content)
        assert len(rows) <= 7
        shown += rows
        following = re.search(r'rel="next" href="([^"]+)"', page.content)
        if following is None:
            break
        address = html.unescape(following[1])
    assert len(shown) == len(set(shown)) == count, shown
    if not more:
        numbers = [int(row.split()[1]) for row in shown]
        assert numbers == sorted(numbers, reverse=by == "newest")


async def test_page_of_a_missing_message_explains_why(browser: Browser) -> None:
    words = "This topic has no such message."
    for by in ("key", "id"):
        assert words in (await browser.get(f"/messages?topic=Letters&by={by}&value=nope")).content
    assert words not in (await browser.get("/messages?topic=Letters&by=key&value=l1")).content
    assert words not in (await browser.get("/messages?topic=Letters&by=key&value=")).content


async def test_message_may_be_in_a_broker_group_without_a_leader(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    async def without(admin: object) -> list[GroupStatus]:
        del admin
        return [GroupStatus("c", "broker-b", None, None, ())]

    monkeypatch.setattr(watch, "ask_brokers", without)
    async with console(kit.namesrv) as browser:
        for more in ("", "&by=key&value=nope"):
            page = await browser.get(f"/messages?topic=Letters{more}")
            assert "This is a part: broker-b without a leader" in page.content
            assert "This topic has no such message." not in page.content


@pytest.mark.parametrize("at", ["1", "1.2.3", "x.1", "-1.0", "1" * 30 + ".1", "."])
async def test_forged_page_address_of_messages_is_refused(browser: Browser, at: str) -> None:
    page = await browser.get(f"/messages?topic=Orders&at={at}&path=x")
    assert "begin again" in page.content


async def test_filter_does_not_reveal_hidden_properties(kit: SyncKit) -> None:
    async with console(kit.namesrv, hide_bodies=True) as browser:
        for address in ("/messages", "/tail"):
            page = await browser.get(f"{address}?topic=Orders&sql=region%20%3D%20%27eu%27")
            assert "would reveal them" in page.content, address
            assert 'name="sql"' not in page.content
        shown = await browser.get("/tail?topic=Orders")
        assert "<td" in shown.content
        assert "order 39" not in shown.content


async def test_tabs_that_follow_one_topic_share_its_pulls(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[TailFilter] = []
    begin = Tails._read

    async def noted(self: Tails, followed: TailFilter, tail: tails.Tail, show: tails.Show) -> None:
        opened.append(followed)
        await begin(self, followed, tail, show)

    monkeypatch.setattr(Tails, "_read", noted)
    async with console(kit.namesrv) as browser:
        page = await browser.get("/tail?topic=Orders")
        assert "order 39" in page.content, "the last ones are there at once"

        seen: list[trio.Event] = []

        async def show_new() -> None:
            seen.append(trio.Event())
            events = await browser.events("/tail?topic=Orders&live=1", 2, opened=seen[-1])
            assert "one more" in events[-1]

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(show_new)
            await until(lambda: len(seen) == 50)
            for event in seen:
                await event.wait()
            async with Producer(kit.namesrv) as producer:
                await producer.send(Message("Orders", b"one more"))
        assert opened == [TailFilter("Orders", "", "")]


ONE_TAIL = TailLimits(tails_max=1, watched_seconds=0.1)
"""A console follows a single topic, and only for a moment if nobody looks."""


async def test_console_stops_reading_a_topic_without_viewers(kit: SyncKit) -> None:
    async with console(kit.namesrv, tail_limits=ONE_TAIL) as browser:
        refused: list[str] = []

        async def is_refused() -> bool:
            for topic in ("Orders", "Letters"):
                answer = await browser.get(f"/tail?topic={topic}")
                if answer.status == 400:
                    assert "already follows" in answer.content
                    refused.append(topic)
            return bool(refused)

        async def is_shown() -> bool:
            return (await browser.get(f"/tail?topic={refused[-1]}")).status == 200

        # On a busy machine the first topic may be forgotten before the second one is asked for.
        await until(is_refused)
        await until(is_shown)


async def test_console_drops_an_unanswered_topic_without_viewers(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Tails._follow

    async def wait(self: Tails, followed: TailFilter, tail: tails.Tail, show: tails.Show) -> None:
        if followed.topic == "Orders":
            await trio.sleep_forever()
        await answer(self, followed, tail, show)

    monkeypatch.setattr(Tails, "_follow", wait)

    async def is_shown(browser: Browser) -> bool:
        return (await browser.get("/tail?topic=Letters")).status == 200

    async with console(kit.namesrv, tail_limits=ONE_TAIL) as browser:
        with trio.move_on_after(0.05):
            await browser.get("/tail?topic=Orders")
        await until(partial(is_shown, browser))


async def test_following_a_missing_topic_is_refused(browser: Browser) -> None:
    page = await browser.get("/tail?topic=Nowhere")
    assert 'role="alert"' in page.content
    wrong = await browser.get("/tail?topic=Orders&sql=a%20%3D%20%3D")
    assert 'role="alert"' in wrong.content


async def test_followed_busy_topic_shows_only_a_part(kit: SyncKit) -> None:
    async with console(kit.namesrv, tail_limits=TailLimits(per_second_max=5)) as browser:
        await browser.get("/tail?topic=Orders&tags=new")
        async with Producer(kit.namesrv) as producer:
            for number in range(60):
                await producer.send(Message("Orders", b"flood %d" % number, tags="new"))

        async def is_left_out() -> bool:
            return "came too fast" in (await browser.get("/tail?topic=Orders&tags=new")).content

        await until(is_left_out, seconds=20)


async def test_message_is_sent_by_hand(operator: Browser) -> None:
    await operator.get("/send?topic=Letters")
    form = {
        "name": "Letters",
        "body": "by hand\r\n" + HOSTILE[1],
        "tag": "t",
        "keys": "k1 k2",
        "properties": "a=b=c",
    }
    page = await operator.follow(await operator.post("/send", form))
    assert "Stored at broker-a/0" in page.text
    for each in ("by hand", "k1 k2", ">b=c<", "&lt;img"):
        assert each in page.content
    assert HOSTILE[1] not in page.text
    later = await operator.follow(await operator.post("/send", {"name": "Letters", "body": "x", "delay": "60"}))
    assert "comes to Letters in 60 s" in later.text
    for wrong in (
        {"body": ""},
        {"body": "x", "properties": "no value"},
        {"body": "x", "properties": "a=1\na=2"},
        {"body": "x", "delay": "-1"},
        {"body": "x", "tag": "a b|c", "keys": "k" * 70_000},
        {"name": "SCHEDULE_TOPIC_XXXX", "body": "x"},
        {"name": "", "body": "x"},
    ):
        assert (await operator.post("/send", {"name": "Letters"} | wrong)).status == 400, wrong
    assert (await operator.post("/send", {"name": "Nope", "body": "x"})).status in (400, 502)
    assert "Nope" not in (await operator.get("/topics")).content, "no topic is created"
    record = (await operator.get("/changes")).content
    assert "send a message" in record
    assert "by hand" not in record


async def test_message_page_shows_its_history(browser: Browser) -> None:
    page = await browser.get("/message?topic=Letters&broker=broker-a&queue=0&offset=0")
    text = re.sub(r"<[^>]+>", " ", page.content)
    for each in (
        "sent by",
        "stored by",
        "given up by mail",
        "no such address",
        "failed to handle it",
        "has got it",
    ):
        assert each in text, each
    assert "No client wrote a trace" not in text
    assert HOSTILE[0] not in page.text
    silent = await browser.get("/message?topic=Orders&broker=broker-a&queue=0&offset=0")
    assert silent.status == 200
    assert "No client wrote a trace" in silent.content
    assert 'role="alert"' not in silent.content


async def test_message_history_takes_few_requests(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_requests(monkeypatch)
    async with console(kit.namesrv) as browser:
        await browser.get("/message?topic=Letters&broker=broker-a&queue=0&offset=0")
        counts.clear()
        await browser.get("/message?topic=Letters&broker=broker-a&queue=0&offset=0")
        assert counts[RequestCode.QUERY_MESSAGE] <= 3, "the trace, and the redeliveries of one group"
