"""Addresses that are no name server's and no broker's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.abc
import pytest

from mq.client import Admin, ClientError, Message, PopConsumer, Producer, PullConsumer, RemotingSettings


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


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address that neither accepts nor refuses connections: the backlog of its socket is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def failures_at(address: str, remoting: RemotingSettings) -> list[ClientError]:
    """The errors of calls of each kind of client that are told that a name server is at `address`."""
    errors: list[ClientError] = []
    async with (
        Producer(address, remoting=remoting, timeout=0.6) as producer,
        Admin(address, remoting=remoting) as admin,
        PullConsumer(address, "G", remoting=remoting, timeout=0.6) as reader,
    ):
        calls: list[Callable[[], Any]] = [
            partial(producer.send, Message("T", b"x")),
            partial(producer.send_oneway, Message("T", b"x")),
            partial(producer.request, Message("T", b"x"), timeout=0.6),
            partial(producer.queues, "T"),
            admin.topics,
            admin.cluster_info,
            partial(reader.queues, "T"),
            PopConsumer(address, "G", "T", remoting=remoting).open,
        ]
        for call in calls:
            with anyio.fail_after(10), pytest.raises(ClientError) as raised:
                await call()
            errors.append(raised.value)
    return errors
