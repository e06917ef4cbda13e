"""A member is removed from its consumer group through the console, and let in again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq.client import Admin
from mq.client.sync import SyncAdmin, SyncPushConsumer
from mq.testing import SyncKit
from tests.support.console_browser import HOSTILE, Browser, quiet_kit
from tests.support.waiting import until


@pytest.fixture
def kit() -> Iterator[SyncKit]:
    with quiet_kit() as running:
        yield running


@pytest.fixture
def consumer(kit: SyncKit) -> Iterator[SyncPushConsumer]:
    """A member of group billing that has the queues of Orders."""
    with SyncAdmin(kit.namesrv) as admin:
        admin.create_topic("Orders")
    with SyncPushConsumer(kit.namesrv, group="billing", consume_from="first", ordered=False) as consumer:
        consumer.subscribe("Orders")
        consumer.wait_assigned()
        yield consumer


async def test_removing_a_member_needs_a_confirmation_page(
    kit: SyncKit, consumer: SyncPushConsumer, operator: Browser
) -> None:
    async with Admin(kit.namesrv) as admin:
        [member] = [each.client_id for each in await admin.group_members("billing")]
    page = await operator.get("/group?name=billing")
    assert f"member={member.replace('@', '%40').replace('#', '%23')}" in page.content, page.content
    preview = await operator.get(f"/remove-member?name=billing&member={member.replace('#', '%23')}")
    assert "Nothing is changed yet" in preview.content
    assert "nobody consumes for the group then" in preview.content
    form = {"name": "billing", "member": member, "minutes": "5", "reason": HOSTILE[0]}
    for wrong in (
        {"typed": "bill"},
        {"typed": "billing", "minutes": "0"},
        {"typed": "billing", "reason": "x" * 999},
    ):
        refused = await operator.post("/remove-member", form | wrong)
        assert refused.status == 400, wrong
    done = await operator.post("/remove-member", form | {"typed": "billing"})
    assert done.to.startswith("/group"), done.text
    page = await operator.get("/group?name=billing")
    assert "stays out for" in page.content
    assert "no members: nobody consumes" in page.content
    assert HOSTILE[0] not in page.content
    assert (await operator.get(f"/remove-member?name=billing&member={member.replace('#', '%23')}")).status == 404
    await operator.post("/let-in", {"name": "billing", "member": member})
    async with Admin(kit.namesrv) as admin:
        await until(lambda: admin.group_members("billing"))
    changes = (await operator.get("/changes")).content
    assert "remove member" in changes
    assert "let a member in" in changes
    assert HOSTILE[0] not in changes


async def test_read_only_console_removes_no_member(browser: Browser) -> None:
    form = {"name": "billing", "member": "somebody", "minutes": "5", "typed": "billing"}
    for path in ("/remove-member", "/let-in"):
        assert (await browser.post(path, form)).status == 403
