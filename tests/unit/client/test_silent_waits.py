"""Servers that are mute or not what they should be: an error in time, or a warning that says what is waited for."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest

from mq.client import (
    Admin,
    ClientError,
    Message,
    NameServersUnavailable,
    PopConsumer,
    Producer,
    PullConsumer,
    RemotingSettings,
    TransactionProducer,
    long_wait,
)
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio
QUICK = RemotingSettings(connect_seconds=0.3, request_seconds=0.3, silence_seconds=0.1)


@asynccontextmanager
async def strange_server(answer: bytes | None) -> AsyncGenerator[str]:
    """A server that answers each connection with these bytes, closes it (b""), or says nothing (None)."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            if answer is None:
                await anyio.sleep_forever()
            elif answer:
                await stream.receive()
                await stream.send(answer)

    async with anyio.create_task_group() as tasks:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"127.0.0.1:{port}"
        tasks.cancel_scope.cancel()
    await listener.aclose()


ANSWERS = {
    "mute": None,
    "closing": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "tls": b"\x15\x03\x01\x00\x02\x02\x46" * 9,
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_calls_to_a_strange_server_fail_in_time(kind: str) -> None:
    async with strange_server(ANSWERS[kind]) as address:
        with anyio.fail_after(60):
            async with (
                Producer(address, remoting=QUICK, timeout=0.6) as producer,
                Admin(address, remoting=QUICK) as admin,
                PullConsumer(address, "G", remoting=QUICK, timeout=0.6) as reader,
            ):
                calls: list[Callable[[], Any]] = [
                    functools.partial(producer.send, Message("T", b"x")),
                    functools.partial(producer.send_oneway, Message("T", b"x")),
                    functools.partial(producer.request, Message("T", b"x"), timeout=0.6),
                    functools.partial(producer.queues, "T"),
                    admin.topics,
                    admin.cluster_info,
                    functools.partial(reader.queues, "T"),
                    PopConsumer(address, "G", "T", remoting=QUICK).open,
                ]
                for call in calls:
                    with anyio.fail_after(10), pytest.raises(ClientError) as raised:
                        await call()
                    assert raised.value.stored == "no"


async def test_many_callers_wait_for_a_mute_server_once() -> None:
    async with strange_server(None) as address, Admin(address, remoting=QUICK) as admin:
        errors: list[ClientError] = []

        async def ask() -> None:
            try:
                await admin.route("T")
            except NameServersUnavailable as error:
                errors.append(error)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(ask)
        assert len(errors) == 100
        assert all(str(error) == str(errors[0]) for error in errors)


@pytest.mark.parametrize("missing", ["name server", "broker", "broker later"])
async def test_a_push_consumer_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(long_wait, "WARN_AFTER_SECONDS", 0.2)
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        cluster.name_servers[0].mute = missing == "name server"
        cluster.leader.mute = missing == "broker"
        if missing == "broker later":
            cluster.leader.fail_codes = {11: 14}
        async with consumer_of(cluster, remoting=QUICK) as consumer:
            consumer.subscribe("T")
            event = "cannot_pull" if missing == "broker later" else "cannot_consume"
            await until(lambda: event in caplog.text, seconds=60)


async def test_a_transaction_producer_says_that_it_cannot_be_checked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_wait, "WARN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("mq.client.produce.transactions.CONNECT_EVERY_SECONDS", 0.05)
    async with (
        strange_server(None) as address,
        TransactionProducer(address, "pg", check=lambda message: None, remoting=QUICK),
    ):
        await until(lambda: "cannot_be_checked" in caplog.text, seconds=60)
