"""The console while no server answers it, and what needs none."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mq.client.errors import ClientError, NameServersUnavailable
from mq.console.pages.visit import fault_of
from mq.console.sessions import FAILURES_MAX
from mq.console.views.overview import alarms
from mq.console.watch import SharedAnswer
from mq.inspection.survey import Survey
from tests.support.console_browser import console


async def test_open_page_without_a_login_stays_live(mock_clock: trio.testing.MockClock) -> None:
    async with console("127.0.0.1:1") as browser:
        await browser.get("/changes")
        before = dict(browser.cookies)
        mock_clock.jump(7 * 86_400)
        [event] = await browser.events("/changes?live=1", 1)
        assert "event: ended" not in event
        await browser.get("/changes")
        assert browser.cookies == before, "its forms are accepted, too"


async def test_running_console_does_not_read_files_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *arguments: object, **more: object) -> object:
        raise AssertionError(f"{path} may be of another version")

    async with console("127.0.0.1:1") as browser:
        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", refuse)
            patched.setattr("io.open", refuse)
            answer = await browser.get("/changes")
    assert (answer.status, "nothing yet" in answer.text) == (200, True)


async def test_carriage_return_does_not_break_an_event() -> None:
    async with console("127.0.0.1:1") as browser:
        await browser.get("/topics")
        [event] = await browser.events("/topics?part=a%0d%0ddata:b&live=1", 1)
        assert "\r" not in event
        assert "a&#13;&#13;data:b" in event


async def test_two_consoles_on_one_machine_keep_separate_sessions() -> None:
    async with console("127.0.0.1:1") as one, console("127.0.0.1:1") as other:
        other.host, other.cookies = "127.0.0.1:8091", one.cookies
        await one.get("/changes")
        await other.get("/changes")
        before = dict(one.cookies)
        await one.get("/changes")
        assert (one.cookies, len(before)) == (before, 2)


async def test_data_seen_before_an_outage_is_not_shown_as_current() -> None:
    answers: list[str | ClientError] = ["so it is", NameServersUnavailable({"127.0.0.1:1": "refused"})]

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    shared = SharedAnswer(ask, 0.0)
    assert fault_of(await shared.get()) == ""
    seen = await shared.get()
    assert seen.value == "so it is"
    assert "refused. What to do: see that name servers run" in fault_of(seen)
    assert fault_of(seen).endswith("What is shown was so 0 s ago")
    fine = Survey([], {}, {}, {})
    assert alarms(fine).summary != alarms(fine, "gone").summary
    assert alarms(fine, "gone").worst in ("warning", "critical")
    assert (alarms(None).summary, alarms(None, "gone").worst) == ("looking ...", "warning")


async def test_uncheckable_logins_do_not_lock_the_user_out() -> None:
    async with console("127.0.0.1:1", login=True) as browser:
        for _ in range(FAILURES_MAX + 1):
            answer = await browser.post("/login", {"user": "administrator", "secret": "some-SECRET", "next": "/"})
            assert (answer.status, "see that name servers run" in answer.text) == (502, True)


async def test_console_answers_never_repeat_the_host_header() -> None:
    async with console("127.0.0.1:1", login=True) as browser:
        browser.host = "evil.example"
        for address in ("/", "/topics/", "/topics", "//evil.example/", "/login/", "/export-dead-letters?group=g"):
            answer = await browser.get(address)
            assert (answer.status, answer.to.startswith("/login")) in ((303, True), (404, False)), address
            assert "evil" not in answer.to.replace("%2F", "/").partition("next=")[0]


async def test_pages_report_unreachable_name_servers() -> None:
    async with console("127.0.0.1:1") as browser:
        for address in ("/", "/topics", "/groups", "/dead-letter-groups"):
            answer = await browser.get(address)
            assert (answer.status, 'role="alert"' in answer.text) == (200, True), address
        unknown = await browser.get("/topic?name=T")
        assert (unknown.status, "see that name servers run" in unknown.text) == (502, True)
        assert (await browser.get("/healthz")).status == 200
