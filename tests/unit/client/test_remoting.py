"""The connections of a client end with it, all of them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mq.client import ClientClosed
from mq.client.net import client_core as module
from mq.client.net.client_core import ClientCore
from mq.client.net.connection import Connection, open_connection
from tests.support.waiting import until
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio


async def test_connection_that_opens_while_its_client_closes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, may_return = anyio.Event(), anyio.Event()

    async def open_slowly(address: str, **settings: Any) -> Connection:
        connection = await open_connection(address, **settings)
        opened.set()
        await may_return.wait()
        return connection

    monkeypatch.setattr(module, "open_connection", open_slowly)
    outcomes: list[str] = []

    async def connect(remoting: ClientCore, address: str) -> None:
        try:
            await remoting.connection(address)
        except ClientClosed as error:
            outcomes.append(str(error))

    async with FakeCluster.start() as cluster, anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            async with ClientCore.open([cluster.namesrv]) as remoting:
                tasks.start_soon(connect, remoting, cluster.leader.address)
                await opened.wait()
            may_return.set()
            await until(lambda: outcomes == ["this client is closed"])
            await until(lambda: not cluster.leader.connections)


async def test_cancelled_client_keeps_its_connections_until_closed() -> None:
    async with FakeCluster.start() as cluster:
        with anyio.CancelScope() as scope, anyio.fail_after(60):
            async with ClientCore.open([cluster.namesrv]) as remoting:
                connection = await remoting.connection(cluster.leader.address)
                scope.cancel()
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.move_on_after(60, shield=True):
                        _, body = await remoting.call(cluster.leader.address, 28)
                        assert bytes(body).startswith(b"{")
        assert connection.failure is not None
        assert connection.failure.reason == "closed by this client"
