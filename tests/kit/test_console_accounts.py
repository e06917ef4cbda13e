"""Users, policies and settings of running brokers are changed through the console."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs

from mq.client.net.client_core import RemotingSettings
from mq.client.net.credentials import Credentials
from mq.testing import SyncKit
from tests.support.console_browser import HOSTILE, Answer, Browser, console, quiet_kit
from tests.support.waiting import until

SECRET = "correct-HORSE-battery"


ADMINISTRATOR = Credentials("administrator", "admin-SECRET")
ACCOUNTS = f"""
accounts:
- {{accessKey: {ADMINISTRATOR.access_key}, secretKey: {ADMINISTRATOR.secret_key}, admin: true}}
- accessKey: readers
  secretKey: reader-SECRET
  whiteRemoteAddress: 10.1.2.*
  defaultGroupPerm: SUB
  topicPerms: [Orders=SUB]
  groupPerms: [mail=PUB|SUB]
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncKit]:
    """A broker with accounts."""
    path = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    with quiet_kit(acl_file=path) as running:
        yield running


def accounts_console(
    kit: SyncKit, keys: Credentials = ADMINISTRATOR, **settings: Any
) -> AbstractAsyncContextManager[Browser]:
    return console(kit.namesrv, remoting=RemotingSettings(credentials=keys, tls=None), **settings)


@pytest.fixture
async def browser(kit: SyncKit) -> AsyncIterator[Browser]:
    async with accounts_console(kit) as browser:
        yield browser


@pytest.fixture
async def operator(kit: SyncKit) -> AsyncIterator[Browser]:
    async with accounts_console(kit, allow_changes=True) as browser:
        yield browser


async def create(browser: Browser, form: dict[str, str]) -> Answer:
    """The answer when the user is created: not before the broker has raised its format level, right after its start."""
    answer: Answer | None = None

    async def is_created() -> bool:
        nonlocal answer
        answer = await browser.post("/create-user", form)
        return answer.status == 303

    await browser.get("/accounts")
    await until(is_created)
    assert answer is not None
    return answer


NEW = {"name": "shop-one", "kind": "Normal", "password": SECRET, "again": SECRET}


async def test_user_is_created_changed_and_deleted(operator: Browser) -> None:
    page = await operator.follow(await create(operator, NEW))
    assert "may do nothing until a policy allows it" in page.text
    again = await operator.post("/create-user", NEW)
    assert (again.status, "already exists" in again.text) == (400, True)
    policy = {"name": "shop-one", "resource": "Topic:Orders*", "actions": ["Pub"], "decision": "Allow"}
    page = await operator.follow(await operator.post("/put-policy", policy | {"sources": "10.0.0.0/8, 192.168.1.7"}))
    for each in ("Topic:Orders*", "Pub", "Allow", "10.0.0.0/8, 192.168.1.7"):
        assert each in page.content, each
    change = {"name": "shop-one", "kind": "Super", "password": "", "again": ""}
    page = await operator.follow(await operator.post("/change-user", change))
    assert "<b>administrator</b>" in page.content
    assert "enabled: <b>no</b>" in page.content
    gone = {"name": "shop-one", "resource": "Topic:Orders*"}
    page = await operator.follow(await operator.post("/delete-policy", gone))
    assert "it may do nothing" in page.content
    refused = await operator.post("/delete-user", {"name": "shop-one", "typed": "shop"})
    assert (refused.status, "type shop-one to confirm" in refused.text) == (400, True)
    page = await operator.follow(await operator.post("/delete-user", {"name": "shop-one", "typed": "shop-one"}))
    assert "shop-one</a>" not in page.content
    assert (await operator.get("/account?name=shop-one")).status == 404


OWNER = Credentials("owner-user", "owner-SECRET")
BOSS = {"name": OWNER.access_key, "kind": "Super", "password": OWNER.secret_key, "again": OWNER.secret_key}


async def test_console_refuses_changes_to_its_own_account(kit: SyncKit, operator: Browser) -> None:
    """Without a login the console signs with keys of its own: they are the user then."""
    await create(operator, BOSS)
    async with accounts_console(kit, OWNER, allow_changes=True) as browser:
        page = await browser.get("/account?name=owner-user")
        assert "Delete the user" not in page.content
        for address, form in (
            ("/delete-user", {"typed": "owner-user"}),
            ("/change-user", {"kind": "Normal", "enabled": "yes"}),
            ("/change-user", {"kind": "Super"}),
            ("/change-user", {"kind": "Super", "enabled": "yes", "password": SECRET, "again": SECRET}),
        ):
            answer = await browser.post(address, {"name": "owner-user"} | form)
            assert answer.status == 400, form
            assert "console" in answer.content
        assert (await browser.get("/accounts")).status == 200


async def test_user_logs_in_again_after_changing_the_own_password(kit: SyncKit) -> None:
    async with accounts_console(kit, allow_changes=True, login=True) as browser:
        await browser.post("/login", {"user": ADMINISTRATOR.access_key, "secret": ADMINISTRATOR.secret_key})
        await create(browser, BOSS | {"name": "other-boss"})
        await browser.post("/login", {"user": "other-boss", "secret": OWNER.secret_key})
        await browser.get("/account?name=other-boss")
        change = {"name": "other-boss", "kind": "Super", "enabled": "yes", "password": SECRET, "again": SECRET}
        answer = await browser.post("/change-user", change)
        assert (answer.status, answer.to) == (303, "/login?next=%2Faccounts")
        answer = await browser.post("/login", {"user": "other-boss", "secret": SECRET, "next": "/accounts"})
        page = await browser.follow(answer)
        assert (page.status, "other-boss" in page.content) == (200, True)


async def test_password_appears_on_no_page_and_in_no_log(operator: Browser) -> None:
    with capture_logs() as logs:
        await operator.get("/accounts")
        seen = ""
        for form in (
            NEW | {"name": "teller"},
            NEW | {"name": "teller"},  # exists
            NEW | {"name": HOSTILE[0]},
            NEW | {"name": "other", "again": "different"},
            NEW | {"name": "other", "kind": "King"},
        ):
            answer = await operator.post("/create-user", form)
            seen += answer.text + repr(answer.headers)
        for address in ("/accounts", "/account?name=teller", "/changes"):
            seen += (await operator.get(address)).text
        assert SECRET not in seen
        assert HOSTILE[0] not in seen
        assert "teller" in seen
    assert SECRET not in repr(logs)
    assert [each for each in logs if each["event"] == "console_change"]


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("/create-user", NEW | {"name": "a-user", "password": "", "again": ""}),
        ("/create-user", NEW | {"name": ""}),
        ("/put-policy", {"name": "x-user", "resource": "Topic:*", "decision": "Allow"}),
        ("/put-policy", {"name": "x-user", "resource": "Topic:*", "actions": "Pub", "decision": "Perhaps"}),
        ("/put-policy", {"name": "x-user", "resource": "", "actions": "Pub", "decision": "Allow"}),
        ("/change-user", {"name": "x-user", "kind": ""}),
        ("/delete-policy", {"name": "x-user"}),
    ],
)
async def test_meaningless_form_about_users_is_refused(operator: Browser, address: str, form: dict[str, str]) -> None:
    await operator.get("/new-topic")
    assert (await operator.post(address, form)).status == 400


async def settings_page(browser: Browser) -> str:
    overview = await browser.get("/broker-group?name=broker-a")
    [address] = set(re.findall(r'href="(/settings\?address=[^"]+)"', overview.content))
    return str(address)


async def test_setting_of_a_running_broker_is_changed(operator: Browser) -> None:
    page = await operator.get(await settings_page(operator))
    name = re.findall(r'name="name" value="([^"]+)"', page.content)[-1]
    form = {"name": name, "setting": "retention_hours", "value": "99.5", "all": "yes"}
    page = await operator.follow(await operator.post("/change-setting", form))
    assert "retention_hours is 99.5" in page.text
    assert re.search(r'scope="row">retention_hours<td>99.5<', page.content)
    for wrong in (
        {"value": "-1"},
        {"setting": "node_id", "value": "n7"},
        {"setting": "nope", "value": "1"},
        {"value": "1\nraftmq.auto_create_topics=false"},
        {"setting": "retention_hours=1\nraftmq.delete_when", "value": "1"},
        {"name": "10.0.0.1:1"},
    ):
        answer = await operator.post("/change-setting", form | wrong)
        assert answer.status in (400, 403, 502), wrong
    page = await operator.get(await settings_page(operator))
    assert re.search(r'scope="row">retention_hours<td>99.5<', page.content), "as it was"
    assert "auto_create_topics<td>True" in page.content.replace("true", "True")


async def test_read_only_console_cannot_change_users_or_settings(browser: Browser) -> None:
    await browser.get("/accounts")
    for address in (
        *("/create-user", "/change-user", "/delete-user", "/put-policy", "/delete-policy", "/change-setting"),
        "/set-quota",
    ):
        assert (await browser.post(address, NEW)).status == 403, address
    for address in ("/accounts", await settings_page(browser)):
        assert 'method="post"' not in (await browser.get(address)).content


async def test_accounts_of_the_file_are_shown_without_their_keys(operator: Browser) -> None:
    page = await operator.get("/accounts")
    assert re.search(r"administrator</a><td>administrator<td>yes<td>acl_file<td>all replicas", page.content)
    assert re.search(r"readers</a><td>ordinary<td>yes<td>acl_file", page.content)
    one = await operator.get("/account?name=readers")
    for row in ("Topic:Orders<td>SUB", "Group:mail<td>PUB, SUB", "other topics<td>nothing", "other groups<td>SUB"):
        assert f'<th scope="row">{row}' in one.content, row
    assert "10.1.2.*" in one.content
    for form in ("/change-user", "/delete-user", "/put-policy"):
        assert form not in one.content, "it is changed in the file"
    assert '/set-quota"' in one.content
    for text in (page.text, one.text):
        assert ADMINISTRATOR.secret_key not in text
        assert "reader-SECRET" not in text


async def test_user_of_an_accounts_name_is_refused(operator: Browser) -> None:
    await operator.get("/accounts")
    answer = await operator.post("/create-user", NEW | {"name": "readers"})
    assert (answer.status, "readers" in answer.content) == (403, True), answer.content


async def test_quota_of_a_user_is_set_and_removed(operator: Browser) -> None:
    await operator.get("/new-topic")
    for name in ("readers", "*", "nobody-yet"):
        form = {"name": name, "produce_messages": "50", "connections": "3", "consume_bytes": ""}
        page = await operator.follow(await operator.post("/set-quota", form))
        assert "produce 50 messages/s; connections 3" in page.content, name
        assert 'name="produce_messages" type="number" min="1" value="50"' in page.content
    listed = await operator.get("/accounts")
    assert listed.content.count("produce 50 messages/s; connections 3") == 3
    assert re.search(r"nobody-yet</a><td>no such user", listed.content)
    for name in ("readers", "*", "nobody-yet"):
        assert (await operator.post("/set-quota", {"name": name, "produce_messages": ""})).status == 303
    assert "produce 50" not in (await operator.get("/accounts")).content
    assert (await operator.get("/account?name=nobody-yet")).status == 404
    assert "readers: no limit" in (await operator.get("/changes")).content


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "1" + "0" * 16, "٣"])
async def test_invalid_limit_is_refused(operator: Browser, limit: str) -> None:
    await operator.get("/new-topic")
    answer = await operator.post("/set-quota", {"name": "readers", "consume_bytes": limit})
    assert answer.status == 400
    assert "quota of" not in answer.content
    nothing = await operator.post("/set-quota", {"name": "readers"})
    assert (nothing.status, "no limit was given" in nothing.content) == (400, True)
