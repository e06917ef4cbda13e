"""The console's pages about what waits: delayed messages, open and given up transactions, schedules."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from mq.broker.admin.pending import STEP_ENTRIES
from mq.client import Admin, BrokerError, Every, Message, Producer, Schedule, TransactionProducer
from mq.client.net.client_core import ClientCore
from mq.console import watch
from mq.inspection.cluster import GroupStatus
from mq.inspection.cluster_queries import QueryingAdmin
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pending import KINDS, SHOWN_MAX
from mq.store.consume_queue import ConsumeQueue
from mq.testing import SyncKit, open_kit
from tests.support.console_browser import HOSTILE, Browser, console, count_requests, quiet_kit
from tests.support.waiting import until, wait_until


@pytest.fixture(scope="module")
def kit() -> Iterator[SyncKit]:
    """Brokers with 3 timed messages, one of a delay level, a transaction given up, an open one, and a schedule."""
    with quiet_kit(transaction_timeout_seconds=5, transaction_checks_max=1) as running:
        trio.run(transaction, running.namesrv, "lost")
        wait_until(lambda: [each.kind for each in running.pending("Orders")] == ["transaction"])
        running.advance_until(lambda: not running.pending("Orders"), timeout=120)
        trio.run(fill, running.namesrv)
        yield running


async def transaction(namesrv: str, key: str) -> None:
    async with Admin(namesrv) as admin:
        if "Orders" not in await admin.topics():
            await admin.create_topic("Orders", queues=1)
    message = Message("Orders", b"body of " + key.encode(), keys=[key])
    async with (
        TransactionProducer(namesrv, "shop", check=lambda message: None) as producer,
        producer.transaction(message) as begun,
    ):
        begun.leave_open()


async def fill(namesrv: str) -> None:
    await transaction(namesrv, "open")
    async with Producer(namesrv) as producer:
        for seconds in (30, 5000, 3 * 86_400):
            await producer.send(Message("Orders", b"timed", keys=[f"in{seconds}", "x<img>"], delay=seconds))
        await producer.send(Message("Orders", b"delayed", keys=["level"], delay_level=18))
    async with Admin(namesrv) as admin:
        await admin.schedules.create(
            Schedule(HOSTILE[0], "Orders", b"tick", Every(dt.timedelta(hours=1)), owner=HOSTILE[1])
        )


def rows_of(page: str) -> list[str]:
    return [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)][1:]


async def test_console_shows_delayed_messages_in_due_order(browser: Browser) -> None:
    page = await browser.get("/pending")
    assert page.status == 200
    assert "<b>4</b> wait" in page.content
    order = [key for row in rows_of(page.content) for key in ("in30 ", "in5000", "level", "in259200") if key in row]
    assert order[0] == "in30 "
    assert sorted(order) == ["in259200", "in30 ", "in5000", "level"]
    assert "delay level 18" in page.content
    assert "Recall</button>" not in page.content, "this console only shows"
    assert "x<img>" not in page.content


async def test_delayed_message_is_recalled(kit: SyncKit, operator: Browser) -> None:
    async with Producer(kit.namesrv) as producer:
        await producer.send(Message("Orders", b"never", keys=["regret"], delay=7200))
    page = await operator.get("/pending")
    assert page.content.count("Recall</button>") == 4, "one of a delay level cannot be recalled"
    [row] = [row for row in re.findall(r"<tr.*?</tr>", page.content, re.DOTALL) if "regret" in row]
    [handle] = re.findall(r'name="handle" value="([^"]+)"', row)
    done = await operator.follow(await operator.post("/recall", {"handle": handle}))
    assert "was recalled" in done.text
    assert "regret" not in done.content
    again = await operator.post("/recall", {"handle": handle})
    assert again.status == 502
    assert "recalled" in again.content
    for wrong in ("", "nonsense", "djEgYQ=="):
        assert (await operator.post("/recall", {"handle": wrong})).status == 400, wrong


async def test_console_resumes_an_abandoned_transaction(operator: Browser) -> None:
    [open_one] = rows_of((await operator.get("/pending?kind=half")).content)
    for each in ("open", "shop", "Orders", "never asked"):
        assert each in open_one
    page = await operator.get("/pending?kind=given-up")
    [lost] = rows_of(page.content)
    assert "lost" in lost
    form = {name: re.findall(rf'name="{name}" value="([^"]+)"', page.content)[-1] for name in ("broker", "id")}
    done = await operator.follow(await operator.post("/resume", form))
    assert "is open again" in done.text
    assert len(rows_of(done.content)) == 2
    assert "none" in rows_of((await operator.get("/pending?kind=given-up")).content)[0]
    twice = await operator.follow(await operator.post("/resume", form))
    assert len(rows_of(twice.content)) == 2, "resumed once"
    for wrong in ({"id": "xyz"}, {"broker": "nowhere"}, {"id": ""}):
        assert (await operator.post("/resume", form | wrong)).status in (400, 502), wrong


async def test_schedules_are_shown_paused_and_sent(operator: Browser) -> None:
    page = await operator.get("/schedules")
    [row] = rows_of(page.content)
    assert "every 3600s" in row
    assert "active" in row
    assert HOSTILE[0] not in page.content
    form = {"name": HOSTILE[0], "broker": "broker-a"}
    page = await operator.follow(await operator.post("/change-schedule", form | {"action": "pause"}))
    assert "paused" in rows_of(page.content)[0]
    page = await operator.follow(await operator.post("/change-schedule", form | {"action": "resume"}))
    assert "active" in rows_of(page.content)[0]
    await operator.post("/change-schedule", form | {"action": "trigger"})

    async def has_come() -> bool:
        return "tick" in (await operator.get("/messages?topic=Orders")).content

    await until(has_come)
    assert (await operator.post("/change-schedule", form | {"action": "delete"})).status == 400
    assert (await operator.post("/change-schedule", form | {"name": "nope", "action": "pause"})).status == 502


async def test_pending_page_takes_one_request_per_broker_group(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_requests(monkeypatch)
    async with console(kit.namesrv) as browser:
        await browser.get("/changes")
        counts.clear()
        for kind in ("timed", "half", "given-up", "timed"):
            assert (await browser.get(f"/pending?kind={kind}")).status == 200
        assert counts[RequestCode.ASK_PENDING] == 3


@pytest.mark.parametrize("address", ["/pending", "/pending?kind=half", "/schedules", "/accounts", "/topics", "/groups"])
async def test_list_names_broker_groups_without_a_leader(
    kit: SyncKit, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without(admin: object) -> list[GroupStatus]:
        del admin
        return [GroupStatus("c", "broker-b", None, None, ())]

    monkeypatch.setattr(watch, "ask_brokers", without)
    async with console(kit.namesrv) as browser:
        assert "This is a part: broker-b without a leader" in (await browser.get(address)).content


async def test_console_shows_brokers_without_these_requests(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ClientCore.call

    async def unknown(self: ClientCore, address: str, code: int, *arguments: Any, **more: Any) -> Any:
        if code >= 9000 or code in (RequestCode.AUTH_LIST_USER, RequestCode.AUTH_LIST_ACL):  # as RocketMQ 4's
            raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported", address)
        return await call(self, address, code, *arguments, **more)

    monkeypatch.setattr(ClientCore, "call", unknown)
    async with console(kit.namesrv) as browser:
        for kind in KINDS:
            assert "do not tell what waits" in (await browser.get(f"/pending?kind={kind}")).content
        page = await browser.get("/schedules")
        assert (page.status, "These brokers have no schedules" in page.content) == (200, True)
        page = await browser.get("/members?name=broker-a")
        assert (page.status, "This broker does not know that" in page.text) == (404, True), page.text
        for address, words in (
            ("/accounts", ("have no users that are created by command", "have no quotas", "what is in an acl_file")),
            ("/readers", ("cannot say who reads",)),
        ):
            page = await browser.get(address)
            assert page.status == 200
            for each in words:
                assert each in page.content, (address, page.content)
        topic = await browser.get("/delete-topic?name=Orders")
        assert topic.status in (200, 404), "these requests are RocketMQ's"


async def test_pages_of_a_read_only_console_have_no_forms(browser: Browser) -> None:
    await browser.get("/pending")
    for address in ("/recall", "/resume", "/change-schedule"):
        assert (await browser.post(address, {"handle": "x", "name": "x", "broker": "x", "id": "x"})).status == 403
    for address in ("/pending", "/pending?kind=given-up", "/schedules"):
        assert 'method="post"' not in (await browser.get(address)).content


async def test_answers_about_pending_messages_contain_no_bodies(kit: SyncKit) -> None:
    async with QueryingAdmin(kit.namesrv) as admin:
        found = await admin.pending("half", 10**6)
        assert found is not None
        assert len(found["broker-a"].messages) <= SHOWN_MAX
        assert "body of" not in repr(found)
        assert (await admin.pending("half", -1) or {})["broker-a"].messages == []
        with pytest.raises(BrokerError, match="is unknown; allowed: timed, half, given-up"):
            await admin.pending("all", 1)  # type: ignore[arg-type]


async def test_finished_messages_after_an_open_one_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction that stays open for days must not make each look cost as much as all that were finished."""
    begun: list[int] = []
    read = ConsumeQueue.read

    def counted(self: ConsumeQueue, offset: QueueOffset, count: int) -> bytes:
        if count == STEP_ENTRIES:
            begun.append(offset)
        return read(self, offset, count)

    async with open_kit() as kit:
        await transaction(kit.namesrv, "open")
        async with TransactionProducer(kit.namesrv, "shop", check=lambda message: None) as producer:
            for number in range(STEP_ENTRIES + 20):
                async with producer.transaction(Message("Orders", b"%d" % number)):
                    pass
        await transaction(kit.namesrv, "last")
        async with QueryingAdmin(kit.namesrv) as admin:
            monkeypatch.setattr(ConsumeQueue, "read", counted)
            found = (await admin.pending("half", 10) or {})["broker-a"]
        assert (found.total, [each.keys for each in found.messages]) == (2, ["open", "last"])
        assert begun == [0, STEP_ENTRIES + 21]
