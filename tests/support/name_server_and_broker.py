"""A name server and a broker on real sockets, for the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from mq.client import Admin
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from tests.support.running_broker import RunningBroker, running


@asynccontextmanager
async def name_server() -> AsyncIterator[str]:
    """The address of a name server that knows no broker yet."""
    settings = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, settings)
        yield f"{host}:{port}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[str]:
    """The address of a name server that knows a broker."""
    async with name_server() as namesrv, running(directory, namesrv=namesrv), Admin(namesrv) as admin:
        await admin.create_topic("T", 1)
        yield namesrv


@asynccontextmanager
async def cluster_and_broker(directory: Path, **given: Any) -> AsyncIterator[tuple[str, RunningBroker]]:
    """The address of a name server that knows a broker, and the broker."""
    async with name_server() as namesrv, running(directory, namesrv=namesrv, **given) as broker:
        await (await broker.connect()).create_topic("T", 1)
        yield namesrv, broker
