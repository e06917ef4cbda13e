"""Logging in to the console as a user of a broker with accounts; the brokers decide what each may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mq.client.net.client_core import RemotingSettings
from mq.client.net.credentials import Credentials
from mq.console.sessions import FAILURES_MAX
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from tests.support.console_browser import Browser, console
from tests.support.guarded import ADMIN
from tests.support.running_broker import broker_client
from tests.support.waiting import until

READER = ("reader-one", "reader-SECRET")
STRANGER = ("stranger", "stranger-SECRET")
ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: admin-SECRET, admin: true}
- {accessKey: reader-one, secretKey: reader-SECRET, admin: false, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
- {accessKey: stranger, secretKey: stranger-SECRET, admin: false, defaultTopicPerm: DENY, defaultGroupPerm: SUB}
"""


@asynccontextmanager
async def guarded_console(directory: Path, **settings: Any) -> AsyncIterator[Browser]:
    """A console with login, for a broker with an administrator and a reader, and the topic T."""
    path = directory / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    own = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, own)
        namesrv = f"{host}:{port}"
        async with broker_client(directory / "n0", keys=ADMIN, acl_file=path, namesrv=namesrv) as client:
            client.keys = ADMIN
            await client.create_topic("T", 1)
            await client.send("T", b"BODY-of-T")
            async with console(namesrv, login=True, **settings) as browser:
                await until(lambda: is_registered(namesrv))
                yield browser
        nursery.cancel_scope.cancel()


async def is_registered(namesrv: str) -> bool:
    from mq.client import Admin

    remoting = RemotingSettings(credentials=Credentials(*ADMIN), tls=None)
    async with Admin(namesrv, remoting=remoting) as admin:
        return "T" in await admin.topics()


async def log_in(browser: Browser, keys: tuple[str, str], to: str = "/") -> Any:
    return await browser.post("/login", {"user": keys[0], "secret": keys[1], "next": to})


async def test_pages_require_a_login(tmp_path: Path) -> None:
    async with guarded_console(tmp_path, allow_changes=True) as browser:
        for address in ("/", "/topics", "/message?topic=T", "/export-dead-letters?group=g", "/changes"):
            answer = await browser.get(address)
            assert (answer.status, answer.to.partition("?")[0]) == (303, "/login"), address
        assert (await browser.get("/?live=1")).status == 401
        for address in ("/create-topic", "/requeue", "/transfer"):
            assert (await browser.post(address, {"name": "X", "queues": "1"})).to == "/login"
        answer = await log_in(browser, ADMIN, to="/topics?part=T")
        page = await browser.follow(answer)
        assert "administrator" in page.text
        assert '/topic?name=T"' in page.text
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))


async def test_wrong_key_is_refused_and_no_secret_is_revealed(tmp_path: Path) -> None:
    async with guarded_console(tmp_path) as browser:
        with capture_logs() as logs:
            for keys in (("administrator", "admin-SECRET-not"), ("nobody", "some-SECRET"), ("a", "b"), ("", "")):
                answer = await log_in(browser, keys)
                assert answer.status == 403
                assert "set-cookie" not in answer.headers
                assert keys[1] not in answer.text or len(keys[1]) < 5
        assert "SECRET" not in str(logs)
        assert (await browser.get("/")).status == 303


async def test_many_failed_logins_delay_further_logins(tmp_path: Path) -> None:
    async with guarded_console(tmp_path) as browser:
        statuses = [(await log_in(browser, ("administrator", f"wrong-SECRET-{n}"))).status for n in range(FAILURES_MAX)]
        assert statuses == [403] * FAILURES_MAX
        answer = await log_in(browser, ADMIN)
        assert (answer.status, int(answer.headers["retry-after"]) > 0) == (429, True)


async def test_login_of_another_site_is_refused(tmp_path: Path) -> None:
    async with guarded_console(tmp_path) as browser:
        form = {"user": ADMIN[0], "secret": ADMIN[1], "next": "/"}
        assert (await browser.post("/login", form, origin="https://evil.example")).status == 403


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "/logout"]
)
async def test_login_does_not_redirect_to_other_hosts(to: str, tmp_path: Path) -> None:
    async with guarded_console(tmp_path) as browser:
        assert (await log_in(browser, ADMIN, to=to)).to == "/"


async def test_console_applies_the_permissions_of_the_broker(tmp_path: Path) -> None:
    async with guarded_console(tmp_path, allow_changes=True) as browser:
        await log_in(browser, READER)
        topics = await browser.get("/topics")
        assert '/topic?name=T"' in topics.text, "the name servers tell everybody the names"
        assert "Not all is shown, since the brokers do not allow you to see it" in topics.text
        refused = await browser.post("/create-topic", {"name": "Mine", "queues": "1"})
        assert (refused.status, "reader-one is not one" in refused.text) == (403, True)
        assert "Mine" not in (await browser.get("/topics")).text
        page = await browser.get("/changes")
        assert "reader-one" in page.content
        refused = await browser.get("/accounts")
        assert (refused.status, "for administrators" in refused.text) == (403, True)


async def test_console_shows_users_only_their_own_views(tmp_path: Path) -> None:
    async with guarded_console(tmp_path, allow_changes=True) as browser:
        message = "/message?topic=T&broker=broker-a&queue=0&offset=0"
        await log_in(browser, ADMIN)
        for address in ("/", "/topics", "/groups", "/topic?name=T", "/messages?topic=T", message):
            assert (await browser.get(address)).status == 200
        assert "BODY-of-T" in (await browser.get(message)).text
        other = browser.another()
        assert (await log_in(other, STRANGER)).to == "/"
        for address in ("/topic?name=T", "/messages?topic=T", "/messages?topic=T&by=key&value=k", message):
            answer = await other.get(address)
            assert (answer.status, "BODY-of-T" in answer.text) == (403, False), address
        assert "not allow you" in (await other.get("/groups")).text
        assert "read and write" not in (await other.get("/topics")).text, "settings that the administrator sees"


async def test_new_login_ends_the_earlier_session(tmp_path: Path) -> None:
    async with guarded_console(tmp_path) as browser:
        await log_in(browser, READER)
        before = dict(browser.cookies)
        await log_in(browser, ADMIN)
        assert (await browser.get("/")).status == 200
        browser.cookies = before
        assert (await browser.get("/")).status == 303


async def test_logout_ends_the_session(tmp_path: Path) -> None:
    async with guarded_console(tmp_path) as browser:
        await log_in(browser, ADMIN)
        await browser.get("/")
        stolen = dict(browser.cookies)
        assert (await browser.post("/logout", {})).to == "/login"
        browser.cookies = stolen
        assert (await browser.get("/")).status == 303


async def test_login_fails_if_brokers_have_no_accounts(namesrv: str) -> None:
    async with console(namesrv, login=True) as browser:
        answer = await log_in(browser, ("anybody", "any-SECRET"))
        assert (answer.status, "do not check who sends requests" in answer.text) == (403, True)
