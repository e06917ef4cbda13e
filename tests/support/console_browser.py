"""A browser without windows for the console: cookies, forms with their tokens, and streams of events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
import structlog
import trio
import trio.lowlevel
from starlette.types import ASGIApp

from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.console.app import Console
from mq.console.settings import ConsoleSettings
from mq.console.tails import DEFAULT, TailLimits
from mq.console.users import Users
from mq.testing import SyncKit, running_kit
from tests.support.waiting import until

HOST = "127.0.0.1:8090"
NOW_MS = 1_900_000_000_000
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "</pre></table><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}{% raw %}",
    "&lt;b&gt;",
    "\u202egnp.exe",
    "\x1b]0;title\x07",
    "data: x",
)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def to(self) -> str:
        return self.headers.get("location", "")

    @property
    def content(self) -> str:
        """What the page shows, without its frame."""
        return self.text.split('<div id="content"', 1)[-1]


class Browser:
    """Asks an application in the same event loop."""

    def __init__(self, app: ASGIApp, *, host: str = HOST, scheme: str = "http", client: str = "127.0.0.1") -> None:
        self._app = app
        self.host, self.scheme, self.client = host, scheme, client
        self.cookies: dict[str, str] = {}
        self.token = ""

    def another(self) -> Browser:
        """A browser of somebody else, for the same console."""
        return Browser(self._app, host=self.host, scheme=self.scheme, client=self.client)

    async def get(self, address: str, **headers: str) -> Answer:
        answer = await self._ask("GET", address, headers, b"")
        if (found := re.search(r'name="token" value="([^"]+)"', answer.text)) is not None:
            self.token = found[1]
        return answer

    async def post(self, address: str, form: Mapping[str, str | Sequence[str]], **headers: str) -> Answer:
        """Send a form as a page of the console would; ``headers`` replaces what the browser says."""
        body = urlencode({"token": self.token, **form}, doseq=True).encode()
        sent = {"origin": f"{self.scheme}://{self.host}", "content-type": "application/x-www-form-urlencoded"}
        return await self._ask("POST", address, sent | headers, body)

    async def follow(self, answer: Answer) -> Answer:
        assert answer.status == 303, (answer.status, answer.text)
        return await self.get(answer.to)

    async def events(self, address: str, count: int, *, opened: trio.Event | None = None) -> list[str]:
        """The first events of a stream, none if it is refused; then the tab is closed. ``opened``: at the first one."""
        found: list[str] = []
        buffer = ""

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal buffer
            buffer += message.get("body", b"").decode()
            while "\n\n" in buffer and len(found) < count:
                event, buffer = buffer.split("\n\n", 1)
                if opened is not None:
                    opened.set()
                if not event.startswith(":"):
                    found.append("\n".join(line.removeprefix("data: ") for line in event.split("\n")))
            if len(found) >= count:
                gone.set()
                await trio.lowlevel.checkpoint()

        gone = trio.Event()
        await self._app(self._scope("GET", address, {}), receive, send)
        return found

    def _scope(self, method: str, address: str, headers: dict[str, str]) -> dict[str, Any]:
        path, _, query = address.partition("?")
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"host": self.host, **({"cookie": cookies} if cookies else {}), **headers}
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": self.scheme,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items() if value],
            "client": (self.client, 50_000),
            "server": ("127.0.0.1", 8090),
        }

    async def _ask(self, method: str, address: str, headers: dict[str, str], body: bytes) -> Answer:
        messages: list[Any] = []
        was_sent = False

        async def receive() -> dict[str, Any]:
            nonlocal was_sent
            if was_sent:
                await trio.sleep_forever()
            was_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        await self._app(self._scope(method, address, headers), receive, send)
        begin = messages[0]
        found = {name.decode(): value.decode("latin-1") for name, value in begin["headers"]}
        if "set-cookie" in found:
            name, _, rest = found["set-cookie"].partition("=")
            self.cookies[name] = rest.partition(";")[0]
        text = b"".join(each.get("body", b"") for each in messages[1:]).decode()
        return Answer(begin["status"], found, text)


@contextmanager
def quiet_kit(fill: Callable[[str], Awaitable[None]] | None = None, **settings: Any) -> Iterator[SyncKit]:
    """Brokers that log nothing, and what `fill` puts into them, given the address of their name server."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with running_kit(**settings) as kit:
        if fill is not None:
            trio.run(fill, kit.namesrv)
        yield kit
    structlog.reset_defaults()


@asynccontextmanager
async def console(
    namesrv: str, *, remoting: RemotingSettings | None = None, tail_limits: TailLimits = DEFAULT, **settings: Any
) -> AsyncIterator[Browser]:
    """A browser of a console in this event loop."""
    chosen = ConsoleSettings(namesrv=namesrv, **settings)
    async with trio.open_nursery() as nursery:
        users = Users(namesrv, remoting or RemotingSettings(credentials=None, tls=None), nursery, tail_limits)
        log = structlog.get_logger("console")
        yield Browser(Console(chosen, users, log, lambda: NOW_MS).app())
        nursery.cancel_scope.cancel()


def run(test: Callable[[Browser], Awaitable[None]], kit: SyncKit, **settings: Any) -> None:
    async def main() -> None:
        async with console(kit.namesrv, **settings) as browser:
            await test(browser)

    trio.run(main)


def count_requests(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """From now on, the requests to brokers by code."""
    counts: Counter[int] = Counter()
    call = ClientCore.call

    async def counted(self: ClientCore, address: str, code: int, *arguments: Any, **more: Any) -> Any:
        counts[code] += 1
        return await call(self, address, code, *arguments, **more)

    monkeypatch.setattr(ClientCore, "call", counted)
    return counts


async def ended(browser: Browser, address: str) -> str:
    """The page of a job when it has ended, or stopped."""
    content = ""

    async def has_ended() -> bool:
        nonlocal content
        content = (await browser.get(address)).content
        return "It has ended." in content or "It stopped:" in content

    await until(has_ended, seconds=20)
    return content
