"""The pages and changes of the console, with brokers in memory."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

from mq.client import Admin, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, RequestTimeout
from mq.console.watch import Watch
from mq.inspection.cluster_queries import QueryingAdmin
from mq.inspection.dead_letters import read_letters
from mq.inspection.survey import survey
from mq.protocol.codes import RequestCode
from mq.testing import SyncKit
from tests.support.console_browser import HOSTILE, Browser, console, count_requests, ended, quiet_kit
from tests.support.waiting import until

PAGES = (
    *("/", "/alarms", "/topics", "/topics?kind=all", "/topic?name=Orders", "/messages?topic=Orders", "/groups"),
    *("/message?topic=Orders&broker=broker-a&queue=0&offset=0", "/group?name=mail", "/dead-letters?group=mail"),
    *(
        "/reset?name=mail&topic=Orders&to=first",
        "/dead-letter-groups",
        "/changes",
        "/events",
        "/members?name=broker-a",
        "/broker-group?name=broker-a",
    ),
    *("/accounts", "/readers", "/tail?topic=Orders", "/send?topic=Orders", "/pending", "/schedules"),
    *("/delete-topic?name=Orders", "/delete-group?name=mail"),
    *("/new-topic", "/messages?topic=Orders&by=key&value=k1", "/messages?topic=Orders&by=time&time=2026-01-01T00:00"),
)


@pytest.fixture(scope="module")
def kit() -> Iterator[SyncKit]:
    """Brokers with the topic Orders of one queue, ten messages in it, which are dead letters of the group mail, too."""
    with quiet_kit(fill) as running:
        yield running


async def fill(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("Orders", queues=1)
        for number in range(10):
            message = Message(
                "Orders",
                json.dumps({"order": number, "note": HOSTILE[number]}).encode(),
                tags=HOSTILE[number].replace("\x1b", "").replace("\x07", "").strip() or None,
                keys=[f"k{number}", HOSTILE[number].replace(" ", "")],
                properties={HOSTILE[number]: HOSTILE[number]} if HOSTILE[number].isprintable() else {},
            )
            await producer.send(message)
    consumer = PushConsumer(namesrv, group="mail", ordered=False, max_reconsume_times=0, consume_from="first")
    failed = 0

    @consumer.on("Orders")
    async def fail(message: ReceivedMessage) -> None:
        nonlocal failed
        failed += 1
        if failed == 10:
            consumer.stop()
        raise LookupError(f"no such address {HOSTILE[0]}")

    async with consumer:
        with trio.fail_after(30):
            await consumer.run()


async def test_every_page_is_shown(operator: Browser) -> None:
    for address in PAGES:
        answer = await operator.get(address)
        assert answer.status == 200, (address, answer.content)
        assert 'role="alert"' not in answer.text, (address, answer.content)
        assert len(answer.text) < 100_000, address


async def test_console_answers_404_for_unknown_names(browser: Browser) -> None:
    for address in (
        *("/topic?name=Nope", "/group?name=nope", "/broker-group?name=nope", "/settings?address=10.0.0.1:1"),
        *("/message?topic=Orders&broker=broker-a&queue=0&offset=99", "/job?number=7", "/topic", "/nope"),
    ):
        answer = await browser.get(address)
        assert answer.status == 404, (address, answer.status)


async def test_hostile_content_is_shown_as_text(operator: Browser) -> None:
    pages = [await operator.get(address) for address in PAGES]
    pages += [await operator.get(f"/message?topic=Orders&broker=broker-a&queue=0&offset={n}") for n in range(10)]
    pages += [
        await operator.get(f"/message?topic=Orders&broker=broker-a&queue=0&offset={n}&as=text") for n in range(10)
    ]
    for text in HOSTILE:
        for address in (
            *("/topics?part=", "/groups?part=", "/messages?topic=", "/group?name=", "/dead-letters?key="),
            *("/account?name=", "/members?name=", "/schedules?part=", "/pending?kind=", "/tail?topic="),
            *("/send?topic=", "/messages?topic=Orders&sql=", "/messages?topic=Orders&tags=", "/settings?address="),
            "/member-change?name=broker-a&action=add&address=h:1&node=",
            "/member-change?name=broker-a&action=add&node=n9&voter=",
            "/member-change?name=broker-a&action=replace&replaced=n0&node=n9&address=h:1",
            "/member-change?name=broker-a&action=",
            "/message?topic=Orders&broker=broker-a&queue=0&offset=0&as=",
        ):
            pages.append(await operator.get(address + "".join(f"%{each:02x}" for each in text.encode())))
    # What somebody typed into a field is in it again, as it was.
    whole = re.sub(r' value="[^"]*"', "", "".join(page.text for page in pages))
    for harm in (*HOSTILE[:4], "<img", "<svg", "<script>", "\u202e", "\x1b", 'href="javascript'):
        assert harm not in whole, whole[whole.find(harm) - 100 :][:200]
    assert "{{7*7}}" in whole
    assert html.escape(HOSTILE[0]) in whole, "it is shown"
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"


async def test_read_only_console_has_no_buttons_and_refuses_forms(browser: Browser) -> None:
    for address in PAGES:
        page = await browser.get(address)
        for button in (
            '/requeue"',
            "Pause</button>",
            "Delete this",
            "Hand over</button>",
            "Create</button>",
            "Send all",
        ):
            assert button not in page.text or button == '/requeue"', (address, button)
    await browser.get("/")
    for address in ("/create-topic", "/change-topic", "/reset", "/enable", "/requeue", "/transfer", "/send"):
        answer = await browser.post(address, {"name": "X", "queues": "1", "group": "mail", "which": "all"})
        assert (answer.status, "--allow-changes" in answer.text) == (403, True), address


async def test_forms_of_other_sites_change_nothing(operator: Browser) -> None:
    await operator.get("/new-topic")
    form = {"name": "Stolen", "queues": "1"}
    token, operator.token = operator.token, "guess"
    assert (await operator.post("/create-topic", form)).status == 403
    operator.token = token
    assert (await operator.post("/create-topic", form, origin="https://evil.example")).status == 403
    assert (await operator.post("/create-topic", form, origin="")).status == 403
    assert (await operator.post("/create-topic", form, host="evil.example")).status == 421
    operator.cookies.clear()
    assert (await operator.post("/create-topic", form)).status == 403
    assert (await operator.get("/create-topic")).status == 405
    assert "Stolen" not in (await operator.get("/topics")).text


async def test_topic_is_created_and_changed(operator: Browser) -> None:
    await operator.get("/new-topic")
    page = await operator.follow(await operator.post("/create-topic", {"name": "Bills", "queues": "2"}))
    assert "was created with 2 queues" in page.text
    again = await operator.post("/create-topic", {"name": "Bills", "queues": "3"})
    assert (again.status, "already exists" in again.text) == (400, True)
    fewer = await operator.post("/change-topic", {"name": "Bills", "queues": "1", "access": ["read", "write"]})
    assert (fewer.status, "would hide messages" in fewer.text) == (400, True)
    changed = await operator.post("/change-topic", {"name": "Bills", "queues": "4", "access": ["read"]})
    page = await operator.follow(changed)
    assert "<dd>read</dd>" in page.text
    assert "<dd>4</dd>" in page.text
    for wrong in ("0", "1025", "-1", "x", "", "٣"):
        assert (await operator.post("/create-topic", {"name": "Other", "queues": wrong})).status == 400
    for name in ("a b", "x" * 128, "<b>", "../x"):
        assert (await operator.post("/create-topic", {"name": name, "queues": "1"})).status == 400
    record = (await operator.get("/changes")).text
    assert "Bills: 2 queues, access 6 to 4, 4" in record
    assert "already exists" in record


async def test_group_is_reset_after_a_preview(operator: Browser) -> None:
    preview = await operator.get("/reset?name=mail&topic=Orders&to=first")
    assert "Nothing is changed yet" in preview.text
    assert "messages again" in preview.text
    page = await operator.follow(
        await operator.post("/reset", {"name": "mail", "topic": "Orders", "to": "first", "time": ""})
    )
    assert "goes on in Orders at the first message" in page.text
    assert "<b>10</b> messages to consume" in page.text
    bad = await operator.post("/reset", {"name": "mail", "topic": "Orders", "to": "time", "time": "noon"})
    assert bad.status == 400


async def test_group_is_paused_and_resumed(operator: Browser) -> None:
    await operator.get("/group?name=mail")
    page = await operator.follow(await operator.post("/enable", {"name": "mail", "enabled": "no"}))
    assert "This group is paused" in page.text
    page = await operator.follow(await operator.post("/enable", {"name": "mail", "enabled": "yes"}))
    assert "This group is paused" not in page.text


async def test_dead_letters_are_requeued(operator: Browser) -> None:
    page = await operator.get("/dead-letters?group=mail")
    assert page.text.count('name="letter"') == 10
    none = await operator.post("/requeue", {"group": "mail", "which": "chosen"})
    assert (none.status, "no dead letter was chosen" in none.text) == (400, True)
    form = {"group": "mail", "which": "chosen", "letter": ["broker-a/0 1", "broker-a/0 99"]}
    job = await ended(operator, (await operator.post("/requeue", form)).to)
    assert "<b>1</b> done, <b>1</b> failed" in job
    assert "broker-a/0 99: there is no such dead letter" in job
    all_of_them = {"group": "mail", "which": "all", "to": "group"}
    job = await ended(operator, (await operator.post("/requeue", all_of_them)).to)
    assert "<b>10</b> done, <b>0</b> failed" in job
    assert 'name="letter"' not in (await operator.get("/dead-letters?group=mail")).text
    assert (await operator.get("/dead-letters?group=mail&all=yes")).text.count('name="letter"') == 10
    record = (await operator.get("/changes")).text
    assert "1 sent, 1 failed" in record
    assert "10 sent, 0 failed" in record


async def test_matching_dead_letters_are_requeued(operator: Browser) -> None:
    page = await operator.get("/dead-letters?group=mail&all=yes&key=k3")
    assert page.text.count('name="letter"') == 1
    assert "Send all that match again" in page.content
    assert 'value="all">' not in page.content, "it would send those that are not shown, too"
    form = {"group": "mail", "which": "matching", "key": "k3", "why": "no such address", "all": "yes"}
    job = await ended(operator, (await operator.post("/requeue", form)).to)
    assert "<b>1</b> done, <b>0</b> failed" in job
    job = await ended(operator, (await operator.post("/requeue", form | {"why": "something else"})).to)
    assert "<b>0</b> done, <b>0</b> failed" in job
    none = await operator.post("/requeue", {"group": "mail", "which": "matching"})
    assert (none.status, "which dead letters match" in none.text) == (400, True)
    exported = await operator.get("/export-dead-letters?group=mail&all=yes&key=k3")
    assert [json.loads(row)["keys"][0] for row in exported.text.splitlines()] == ["k3"]


async def test_requeue_after_a_failure_does_not_send_letters_twice(
    kit: SyncKit, operator: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    refused = {4}

    async def requeue(self: Admin, group: str, letter: ReceivedMessage[Any], **more: Any) -> None:
        del self, group, more
        if letter.queue_offset in refused:
            raise RequestTimeout("127.0.0.1:1", RequestCode.SEND_MESSAGE, 3.0)
        sent.append(letter.queue_offset)

    monkeypatch.setattr(Admin, "requeue_dead_letter", requeue)
    await operator.get("/new-topic")
    async with read_letters(kit.namesrv, "mail", everything=True) as consumer:
        firsts = dict.fromkeys(consumer.assignment, 0)
        await consumer.commit(firsts)
        job = await ended(operator, (await operator.post("/requeue", {"group": "mail", "which": "all"})).to)
        assert "<b>4</b> done, <b>1</b> failed" in job
        assert "it may have been sent all the same" in job
        assert "broker-a/0: 5 behind the one that failed were not sent" in job
        refused.clear()
        await ended(operator, (await operator.post("/requeue", {"group": "mail", "which": "all"})).to)
        assert sent == list(range(10)), "each once, in their order"
        await consumer.commit(firsts)


async def test_change_record_notes_a_stopped_requeue(operator: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*arguments: Any) -> Any:
        raise RequestTimeout("127.0.0.1:1", RequestCode.PULL_MESSAGE, 3.0)

    await operator.get("/new-topic")
    monkeypatch.setattr(PullConsumer, "read_to_end", silent)
    job = await ended(operator, (await operator.post("/requeue", {"group": "mail", "which": "all"})).to)
    assert "It stopped: no answer from 127.0.0.1:1" in job
    record = (await operator.get("/changes")).content
    assert re.search(r'class="bad">.*requeue ended.*0 sent, 0 failed; it stopped: no answer', record)


async def has_looked(browser: Browser) -> bool:
    return "looking" not in (await browser.get("/alarms")).text


async def test_dead_letters_are_exported_line_by_line(browser: Browser) -> None:
    answer = await browser.get("/export-dead-letters?group=mail&all=yes")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert sorted(json.loads(row["body"])["order"] for row in rows) == list(range(10))
    assert answer.headers["content-disposition"] == 'attachment; filename="dead-letters-mail.jsonl"'
    assert (await browser.get("/export-dead-letters?group=nobody")).text == ""
    assert (await browser.get("/export-dead-letters")).status == 404
    bad = await browser.get("/export-dead-letters?group=%0d%0aset-cookie:%20a")
    assert "\n" not in bad.headers.get("content-disposition", "")


async def test_hidden_bodies_appear_on_no_page(kit: SyncKit) -> None:
    async with console(kit.namesrv, hide_bodies=True) as browser:
        for address in (*PAGES, "/export-dead-letters?group=mail&all=yes"):
            answer = await browser.get(address)
            assert answer.status == 200
            for secret in ("order&#34;", '\\"order', "no such address"):
                assert secret not in answer.text, (address, secret)


async def test_fifty_tabs_cost_as_many_requests_as_one(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_requests(monkeypatch)
    async with console(kit.namesrv) as browser:
        await browser.get("/")
        await browser.get("/alarms")
        await until(partial(has_looked, browser), seconds=20)
        counts.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(browser.events, "/?live=1", 1)
        assert counts[RequestCode.GET_BROKER_RUNTIME_INFO] <= 2


async def test_list_pages_send_one_request_per_broker_group(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_requests(monkeypatch)
    async with console(kit.namesrv) as browser:
        await browser.get("/changes")
        await until(lambda: counts[RequestCode.GET_BROKER_RUNTIME_INFO])  # for the chart of rates
        counts.clear()
        await browser.get("/topics?kind=all")
        assert counts == {RequestCode.GET_ALL_TOPIC_CONFIG: 1, RequestCode.ASK_TOPIC_ENDS: 1}
        counts.clear()
        await browser.get("/groups")
        assert counts == {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: 1,
            RequestCode.GET_BROKER_CONSUME_STATS: 2,  # of unordered and of ordered topics
        }


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("/", {}),
        ("/broker-group?name=broker-a", {}),
        ("/events", {}),
        ("/changes", {}),
        ("/members?name=broker-a", {RequestCode.MANAGE_GROUP: 1}),
        ("/accounts", {RequestCode.AUTH_LIST_USER: 1, RequestCode.AUTH_LIST_ACL: 1}),
        (
            "/delete-topic?name=Orders",
            {RequestCode.GET_TOPIC_STATS_INFO: 1, RequestCode.GET_BROKER_CONSUME_STATS: 2},
        ),
    ],
)
async def test_page_asks_each_broker_group_once(
    kit: SyncKit, monkeypatch: pytest.MonkeyPatch, address: str, asked: dict[int, int]
) -> None:
    """What several pages show was asked for all of them: how the brokers are."""
    counts = count_requests(monkeypatch)
    async with console(kit.namesrv) as browser:
        await browser.get("/")
        await until(lambda: counts[RequestCode.GET_BROKER_RUNTIME_INFO])
        before = counts.copy()
        assert (await browser.get(address)).status == 200
        shared = {RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CLUSTER_INFO}
        found = {code: count for code, count in (counts - before).items() if code not in shared}
        assert {code: found.get(code, 0) for code in asked} == asked
        assert max(found.values(), default=0) <= 2, found


async def test_tabs_opened_together_share_one_watch(kit: SyncKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new session opened a watch of its own, and only the last one was closed."""
    opened: list[object] = []
    init = Watch.__init__

    def noted(self: Watch, *arguments: Any, **more: Any) -> None:
        opened.append(self)
        init(self, *arguments, **more)

    monkeypatch.setattr(Watch, "__init__", noted)
    async with console(kit.namesrv) as browser:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(browser.get, "/changes")
        assert len(opened) == 1


async def test_hidden_failure_reasons_are_not_searchable(kit: SyncKit) -> None:
    async with console(kit.namesrv, hide_bodies=True) as browser:
        found = await browser.get("/dead-letters?group=mail&all=yes&why=no+such+address")
        missed = await browser.get("/dead-letters?group=mail&all=yes&why=something+else")
        assert found.text.count("<tr") == missed.text.count("<tr") == 11


async def test_requeue_by_reason_is_refused_when_reasons_are_hidden(kit: SyncKit) -> None:
    """It would send all of them: what is hidden chooses nothing."""
    async with console(kit.namesrv, hide_bodies=True, allow_changes=True) as browser:
        page = await browser.get("/dead-letters?group=mail&all=yes&why=no+such+address")
        assert "all that match" not in page.content
        assert 'name="why"' not in page.content
        form = {"group": "mail", "which": "matching", "why": "something else", "all": "yes"}
        for key in ("", "k3"):
            answer = await browser.post("/requeue", form | {"key": key})
            assert (answer.status, "reasons are hidden" in answer.text) == (400, True)
        assert "all that match" in (await browser.get("/dead-letters?group=mail&all=yes&key=k3&why=x")).content


async def test_open_page_shows_changes(browser: Browser) -> None:
    await browser.get("/")
    [event] = await browser.events("/topic?name=Orders&live=1", 1)
    assert "<b>10</b> messages" in event
    assert "<!doctype" not in event


async def test_live_pages_beyond_the_limit_are_refused(kit: SyncKit) -> None:
    async with console(kit.namesrv, streams_max=1) as browser:
        await browser.get("/")
        async with trio.open_nursery() as nursery:
            opened = trio.Event()
            nursery.start_soon(partial(browser.events, "/?live=1", 99, opened=opened))
            await opened.wait()
            assert await browser.events("/changes?live=1", 1) == []
            nursery.cancel_scope.cancel()


async def test_console_shows_readers_that_hold_log_leases(kit: SyncKit, browser: Browser) -> None:
    assert "nobody reads in bulk now" in (await browser.get("/readers")).content
    async with QueryingAdmin(kit.namesrv) as admin:
        [address] = [
            row for each in (await admin.cluster_info()).brokers.values() for row in each.broker_addrs.values()
        ]
        fields = {"leaseId": f"spark-{HOSTILE[0]}", "position": "0", "seconds": "600"}
        await admin._open_core().call(address, RequestCode.HOLD_LOG, fields)

    async def is_shown() -> bool:
        row = (await browser.get("/readers")).content
        return f"spark-{html.escape(HOSTILE[0])}" in row and "10 min" in row

    await until(is_shown, seconds=20)


async def test_survey_accepts_retention_before_year_one(kit: SyncKit) -> None:
    """Brokers in memory keep messages for a time that begins before the year 1."""
    found = await survey(kit.namesrv, watch_seconds=0.0)
    assert found.consumers is not None
    assert found.consumers.at_risk == {}
