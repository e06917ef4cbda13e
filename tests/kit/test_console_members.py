"""Members of a broker group are changed through the console, with three replicas in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from mq.testing import SyncKit
from tests.support.console_browser import HOSTILE, Browser, console, ended, quiet_kit


@pytest.fixture
def kit() -> Iterator[SyncKit]:
    with quiet_kit(replicas=3) as running:
        yield running


FORM = {"name": "broker-a", "address": "", "replaced": "", "voter": ""}


async def test_console_removes_a_voter_and_adds_a_learner_after_a_preview(kit: SyncKit) -> None:
    leader = await trio.to_thread.run_sync(lambda: kit.leader) or ""
    leaver = next(node for node in ("n0", "n1", "n2") if node != leader)
    async with console(kit.namesrv, allow_changes=True) as browser:
        page = await browser.get("/members?name=broker-a")
        assert page.status == 200
        assert page.content.count("<tr>") == 4
        preview = await browser.get(f"/member-change?name=broker-a&action=remove&node={leaver}")
        assert "Nothing is changed yet" in preview.content
        assert "2 voters then, instead of 3" in preview.content
        remove = FORM | {"action": "remove", "node": leaver}
        for typed in ("", "n", leader, leaver.upper()):
            refused = await browser.post("/member-change", remove | {"typed": typed})
            assert (refused.status, f"type {leaver} to confirm" in refused.text) == (400, True), typed
        job = await ended(browser, (await browser.post("/member-change", remove | {"typed": leaver})).to)
        assert "<b>1</b> done" in job
        page = await browser.get("/members?name=broker-a")
        assert f'scope="row">{leaver}<' not in page.content

        harm = FORM | {"action": "add", "node": "n8", "address": f"{HOSTILE[1]}:1"}
        pages = await ended(browser, (await browser.post("/member-change", harm)).to)
        pages += (await browser.get("/members?name=broker-a")).text + (await browser.get("/changes")).text
        assert "&lt;img" in pages
        assert "<img" not in pages
        await ended(browser, (await browser.post("/member-change", remove | {"node": "n8", "typed": "n8"})).to)
        add = FORM | {"action": "add", "node": "n9", "address": "198.18.0.9:10912"}
        await ended(browser, (await browser.post("/member-change", add)).to)
        page = await browser.get("/members?name=broker-a")
        assert "198.18.0.9:10912" in page.content
        assert "Promote a learner" in page.content
        promote = FORM | {"action": "promote", "node": "n9"}
        job = await ended(browser, (await browser.post("/member-change", promote)).to)
        assert "It stopped: NOT_CAUGHT_UP" in job, "the leader's refusal is shown"
        remove |= {"node": "n9", "typed": "n9"}
        await ended(browser, (await browser.post("/member-change", remove)).to)
        record = (await browser.get("/changes")).content
        assert "member change ended" in record
        assert "NOT_CAUGHT_UP" in record


async def test_console_refuses_impossible_member_changes(operator: Browser) -> None:
    await operator.get("/new-topic")
    for wrong in (
        {"action": "remove", "node": "n7", "typed": "n7"},
        {"action": "promote", "node": HOSTILE[0]},
        {"action": "replace", "node": "n9", "address": "h:1", "replaced": "n7", "typed": "n7"},
        {"action": "force", "node": "n0"},
        {"action": "add", "node": "n9", "address": "h:²"},
    ):
        answer = await operator.post("/member-change", FORM | wrong)
        assert answer.status == 400, wrong
        assert HOSTILE[0] not in answer.text
    missing = await operator.post("/member-change", FORM | {"name": "nowhere", "action": "promote", "node": "n0"})
    assert missing.status == 400
    assert (await operator.get("/members?name=nowhere")).status == 404


async def test_read_only_console_shows_members_without_changes(browser: Browser) -> None:
    for address in ("/members?name=broker-a", "/member-change?name=broker-a&action=remove&node=n1"):
        page = await browser.get(address)
        assert page.status == 200
        assert "<form" not in page.content
    answer = await browser.post("/member-change", FORM | {"action": "remove", "node": "n1", "typed": "n1"})
    assert answer.status == 403
