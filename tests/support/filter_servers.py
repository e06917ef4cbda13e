"""Filter servers in the process of a test, and modules for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import wasmtime

from mq.client import Admin
from mq.client.net.client_core import RemotingSettings
from mq.filter_server.server import serve
from mq.filter_server.settings import FilterServerSettings
from mq.testing import Kit
from tests.support.waiting import until


def module(verdict: str, *, allocate: str = "(i32.const 65536)", more: str = "", pages: int = 20) -> bytes:
    """A module with this body of its filter, which has `$p`, `$ps` (properties) and `$b`, `$bs` (body)."""
    text = f"""
    (module
      (memory (export "memory") {pages})
      {more}
      (func (export "raftmq_allocate") (param $size i32) (result i32) {allocate})
      (func (export "raftmq_filter") (param $p i32) (param $ps i32) (param $b i32) (param $bs i32) (result i32)
        {verdict}))"""
    return bytes(wasmtime.wat2wasm(text))


FIRST_BYTE: str = "(i32.load8_u (local.get $b))"


def begins_with(byte: str) -> bytes:
    """Lets messages through whose body begins with a byte."""
    return module(f"(i32.eq {FIRST_BYTE} (i32.const {ord(byte)}))")


def fails_at(byte: str, failure: str = "(unreachable)") -> bytes:
    """Lets everything through, and fails for messages whose body begins with a byte."""
    return module(f"(if (i32.eq {FIRST_BYTE} (i32.const {ord(byte)})) (then {failure})) (i32.const 1)")


ENDLESS = "(loop $again (br $again))"
NOTHING = module("(i32.const 0)")
EVERYTHING = module("(i32.const 1)")


async def broker_address(namesrv: str, topic: str) -> str:
    """The address of a broker that has a topic."""
    async with Admin(namesrv) as admin:
        route = await admin.route(topic)
        (name,) = route.brokers
        address = route.leader_address(name)
        assert address is not None
        return address


@asynccontextmanager
async def filter_server(
    kit: Kit, topic: str, *, remoting: RemotingSettings | None = None, **settings: Any
) -> AsyncIterator[str]:
    """A filter server beside the leader of a kit, in its route; yields its address."""
    broker = await broker_address(kit.namesrv, topic)
    async with trio.open_nursery() as nursery:
        given = FilterServerSettings(
            listen_port=0, broker=broker, namesrv=kit.namesrv, metrics_listen="off", **settings
        )
        host, port = await nursery.start(partial(serve, given, remoting=remoting))
        address = f"{host}:{port}"
        async with Admin(kit.namesrv, remoting=remoting) as admin:

            async def is_named() -> bool:
                route = await admin.route(topic)
                return any(address in servers for servers in route.filter_servers.values())

            await until(is_named)
        yield address
        nursery.cancel_scope.cancel()
