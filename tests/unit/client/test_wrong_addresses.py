"""Addresses that are wrong: each call fails within its timeout, and the error says what to check."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator, Iterator
from typing import Any

import anyio
import pytest
import trio

from mq.client import Admin, BrokerError, Message, NameServersUnavailable, Producer, RemotingSettings
from mq.monitoring.families import Families
from mq.monitoring.http import Monitoring, open_listeners
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.strange_servers import black_hole, failures_at

pytestmark = pytest.mark.anyio
QUICK = RemotingSettings(connect_seconds=0.3, request_seconds=0.3, silence_seconds=0.1)


def unresolved(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that the resolver does not know, whatever DNS this machine has."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        if host in ("nowhere.test", b"nowhere.test"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return "nowhere.test:9876"


async def test_unresolvable_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in await failures_at(unresolved(monkeypatch), QUICK):
        assert "nowhere.test:9876: the name does not resolve (Name or service not known); is it spelled" in str(error)
        assert error.stored == "no"


async def test_black_hole_is_an_error_in_time() -> None:
    with black_hole() as address:
        for error in await failures_at(address, QUICK):
            assert "is the address right, and does a firewall drop packets?" in str(error)
            assert address in str(error)
            assert error.stored == "no"


async def test_broker_is_not_accepted_as_a_name_server(cluster: FakeCluster) -> None:
    for error in await failures_at(cluster.leader.address, QUICK):
        assert isinstance(error, NameServersUnavailable | BrokerError)
        assert "is it a broker's address?" in str(error)


async def test_name_server_is_not_accepted_as_a_broker() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Admin(cluster.namesrv, remoting=QUICK) as admin:
        with (
            anyio.fail_after(10),
            pytest.raises(BrokerError, match=r"server of the other kind \(broker, name server\)"),
        ):
            await admin.broker_runtime(cluster.name_servers[0].address)


@contextlib.contextmanager
def metrics_port() -> Iterator[str]:
    """The address of the metrics of a server, in a thread of its own."""
    address: list[str] = []
    scope = trio.CancelScope()

    async def ready() -> str | None:
        await trio.lowlevel.checkpoint()
        return None

    def nothing() -> Generator[None, None, Families]:
        yield
        return ()

    async def serve(started: threading.Event) -> None:
        listeners = await open_listeners("127.0.0.1", 0)
        address.append(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Monitoring(nothing, ready).serve, listeners)
                token.append(trio.lowlevel.current_trio_token())
                started.set()

    token: list[trio.lowlevel.TrioToken] = []
    started = threading.Event()
    thread = threading.Thread(target=trio.run, args=(serve, started))
    thread.start()
    try:
        assert started.wait(30)
        yield address[0]
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join()


async def test_metrics_port_is_named_as_http() -> None:
    with metrics_port() as address:
        for error in await failures_at(address, QUICK):
            assert f"{address}: " in str(error)
            assert "it speaks HTTP, as a metrics port does; check host:port" in str(error)
            assert error.stored == "no"


async def test_send_fails_fast_until_a_name_server_has_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    async with Producer(address, timeout=60) as producer:
        for _ in range(2):  # the second one is not refused at once: the server may have been started meanwhile
            begun = anyio.current_time()
            with pytest.raises(NameServersUnavailable, match="is the address right, and does a name server run there"):
                await producer.send(Message("T", b"x"))
            assert 1 < anyio.current_time() - begun < 10


async def test_send_waits_its_timeout_once_a_name_server_has_answered() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv, remoting=QUICK, timeout=3) as producer,
    ):
        await producer.send(Message("T", b"x"))
        await cluster.name_servers[0].stop()
        begun = anyio.current_time()
        with pytest.raises(NameServersUnavailable):
            await producer.send(Message("U", b"x"))
        assert anyio.current_time() - begun > 2.8
