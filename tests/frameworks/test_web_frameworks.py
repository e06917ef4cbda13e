"""The examples of `docs/web-frameworks.md`, driven by requests."""

from __future__ import annotations

import re
import sys
from typing import Any

import anyio
import anyio.to_thread
import django
import httpx2
import pytest

from mq.client import PushConsumer
from tests.frameworks.pages import examples
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
SECONDS_MAX = 30.0


def run_example(namesrv: str, number: int, topic: str) -> dict[str, Any]:
    """The names that an example defines."""
    source = examples("web-frameworks.md", namesrv)[number].replace("web-orders", topic)
    names: dict[str, Any] = {"__name__": f"example_{number}"}
    exec(compile(source, "web-frameworks.md", "exec", dont_inherit=True), names)
    return names


async def first_body(namesrv: str, topic: str) -> bytes:
    async with PushConsumer(namesrv, group=f"after-{topic}", consume_from="first") as consumer:
        consumer.subscribe(topic)
        with anyio.fail_after(SECONDS_MAX):
            return (await anext(aiter(consumer))).body


def client_of(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://shop")


async def test_fastapi_sends_messages_and_reports_health(namesrv: str) -> None:
    app = run_example(namesrv, 0, "of-fastapi")["app"]
    async with app.router.lifespan_context(app), client_of(app) as client:
        response = await client.post("/orders", content=b"two apples")
        assert (response.status_code, list(response.json())) == (202, ["id"])
        assert (await client.get("/healthz")).json() == {"ok": True, "reasons": []}
        await app.state.producer.aclose()  # as if it could not send
        response = await client.post("/orders", content=b"lost")
        assert (response.status_code, response.json()) == (503, {"detail": "try again: this Producer is closed"})
        assert (await client.get("/healthz")).json() == {"ok": False, "reasons": ["this Producer is closed"]}
    assert await first_body(namesrv, "of-fastapi") == b"two apples"


async def test_starlette_consumes_while_it_serves_requests(namesrv: str) -> None:
    sending = run_example(namesrv, 0, "of-starlette")["app"]
    async with sending.router.lifespan_context(sending), client_of(sending) as client:
        await client.post("/orders", content=b"a melon")
    names = run_example(namesrv, 1, "of-starlette")
    app = names["app"]
    with anyio.fail_after(SECONDS_MAX):
        async with app.router.lifespan_context(app), client_of(app) as client:
            await until(lambda: names["seen"])
            assert (await client.get("/orders")).json() == ["a melon"]


async def test_django_shares_a_producer(namesrv: str) -> None:
    from django.conf import settings
    from django.test import Client, override_settings

    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="only here", ROOT_URLCONF=__name__)
    django.setup()
    names = run_example(namesrv, 2, "of-django")

    def post() -> tuple[int, dict[str, str]]:
        response = Client().generic("POST", "/orders", b"a plum")
        return response.status_code, response.json()

    with override_settings(ROOT_URLCONF=tuple(names["urlpatterns"])):
        status, answer = await anyio.to_thread.run_sync(post)
        assert (status, list(answer)) == (202, ["id"])
        assert await first_body(namesrv, "of-django") == b"a plum"
        opened = names["producer"]()
        await anyio.to_thread.run_sync(opened.close)
        status, answer = await anyio.to_thread.run_sync(post)
        assert (status, answer["stored"]) == (503, "no")
        assert re.search("open it first", answer["try again"])


FORK = """
import os
before = producer()
child = os.fork()
if child == 0:
    os._exit(0 if producer() is not before and producer().health() else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), bool(before.health()))
"""


async def test_django_opens_a_producer_in_each_process(namesrv: str) -> None:
    source = examples("web-frameworks.md", namesrv)[2] + FORK
    with anyio.fail_after(SECONDS_MAX):
        result = await anyio.run_process([sys.executable, "-c", source])
    assert result.stdout == b"0 True\n"
