"""Three real replicas for tests with Spark, used from ordinary functions: Spark's own calls block."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mq.client.admin import Admin
from mq.client.consume.push_consumer import PushConsumer
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer
from mq.local_cluster import HOST, DevCluster, Ports
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.raft_group import GroupCommand
from tests.support.waiting import until

SECONDS_MAX = 120
RELAY_HOST = "127.0.0.2"
SETTINGS = {"segment_bytes": str(16 * 1024 * 1024)}

_numbers = itertools.count(1)


class Stage:
    """A cluster, and what tests do to it."""

    def __init__(self, cluster: Any, portal: BlockingPortal) -> None:
        self._cluster: DevCluster = cluster  # of one of RocketMQ only topics and messages are used
        self._portal = portal

    @classmethod
    @contextmanager
    def open(cls, directory: Path, *, settings: Mapping[str, str] | None = None, ipv6: bool = False) -> Iterator[Stage]:
        """Three replicas in ``directory`` until the block ends.

        With ``ipv6`` brokers listen on an IPv6 address only, so all clients have such addresses. Brokers are always
        known by IPv4 addresses; what listens there hands each connection on.
        """
        ports = Ports.free(3)
        opened = DevCluster.open(
            directory,
            ports=ports,
            settings={**SETTINGS, **(settings or {})},
            listen_host="[::1]" if ipv6 else HOST,
            client_host=RELAY_HOST if ipv6 else HOST,
        )
        with start_blocking_portal("trio") as portal, ExitStack() as relays:
            for port in ports.clients if ipv6 else ():
                relays.enter_context(portal.wrap_async_context_manager(_relayed(port)))
            with portal.wrap_async_context_manager(opened) as cluster:
                yield cls(cluster, portal)

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return self._cluster.namesrv

    @property
    def group(self) -> str:
        """Name of the broker group."""
        return self._cluster.group

    def topic(self, name: str = "T", queues: int = 4) -> str:
        """Make a topic of its own for a test; returns its name."""
        topic = f"{name}{next(_numbers)}"
        self.create(topic, queues)
        return topic

    def create(self, topic: str, queues: int) -> None:
        """Make a topic, or give it another number of queues."""
        self._admin(lambda admin: admin.create_topic(topic, queues))

    def delete(self, topic: str) -> None:
        """Delete a topic and its messages."""
        self._admin(lambda admin: admin.delete_topic(topic))

    def send(self, topic: str, bodies: Iterable[bytes | Message]) -> list[SendResult]:
        """Send messages at once, one to each queue in turn; returns where they are."""
        messages = [each if isinstance(each, Message) else Message(topic, each) for each in bodies]

        async def main() -> list[SendResult]:
            with anyio.fail_after(SECONDS_MAX):
                async with Producer(self.namesrv, timeout=60) as producer:
                    pending = [await producer.submit(message) for message in messages]
                    return [await each for each in pending]

        return self._portal.call(main)

    def call(self, do: Callable[[], Awaitable[Any]]) -> Any:
        """What an asynchronous function returns; it must bound its time itself."""
        return self._portal.call(do)

    def give_up(self, message: Message, group: str) -> None:
        """Send a message that the consumers of ``group`` give up at once: it becomes a dead letter."""
        self.send(message.topic, [message])

        async def main() -> None:
            consumer = PushConsumer(self.namesrv, group, ordered=False, max_reconsume_times=0, consume_from="first")

            @consumer.on(message.topic)
            async def refuse(_: ReceivedMessage) -> None:
                consumer.stop()
                raise LookupError("refused")

            with anyio.fail_after(SECONDS_MAX):
                async with consumer:
                    await consumer.run()

        self._portal.call(main)

    def progress(self, group: str) -> dict[int, GroupProgress]:
        """How far a consumer group is, by queue."""
        found = self._admin(lambda admin: admin.group_progress(group))
        return {queue.queue_id: each for queue, each in found.items()}

    def leader(self) -> str:
        """Node id of the leader."""
        return self._portal.call(self._cluster.leader)

    def nodes(self) -> tuple[str, ...]:
        """Node ids of all replicas."""
        return self._cluster.node_ids

    def followers(self) -> list[str]:
        """Node ids of the others."""
        leader = self.leader()
        return [node_id for node_id in self._cluster.node_ids if node_id != leader]

    def move_leader(self) -> str:
        """Let another replica lead; returns its node id."""
        return self._portal.call(self._move_leader)

    async def _move_leader(self) -> str:
        old = await self._cluster.leader()
        with anyio.fail_after(SECONDS_MAX):
            async with Admin(self.namesrv) as admin:
                address, command = self.address(old), GroupCommand("transfer")
                # A replica that has just been heard of is given time, one that was too slow another chance.
                while not (answer := await admin.manage_group(address, command, timeout=SECONDS_MAX)).done:
                    assert answer.code in ("NOT_CAUGHT_UP", "TRANSFER_FAILED"), answer
                    await anyio.sleep(0.1)
            while (new := await self._cluster.leader()) == old:  # noqa: ASYNC110 - nobody tells us
                await anyio.sleep(0.1)
            await self._cluster.wait_ready()
        return new

    def address(self, node_id: str) -> str:
        """Where clients reach a replica."""
        return self._cluster.address(node_id)

    @contextmanager
    def killed(self, *node_ids: str) -> Iterator[None]:
        """Kill replicas; they are started again at the end of the block."""
        for node_id in node_ids:
            self._portal.call(self._cluster.kill, node_id)
        try:
            yield
        finally:
            self._portal.call(self._start, node_ids)

    async def _start(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            await until(lambda: not self._cluster.is_running(node_id))
            await self._cluster.start(node_id)
        await self._cluster.wait_ready()

    def _admin(self, do: Callable[[Admin], Any]) -> Any:
        async def main() -> Any:
            with anyio.fail_after(SECONDS_MAX):
                async with Admin(self.namesrv) as admin:
                    return await do(admin)

        return self._portal.call(main)


def bodies_of(rows: Iterable[Any]) -> Counter[bytes]:
    """How often each body is among these rows."""
    return Counter(bytes(row.body) for row in rows)


@asynccontextmanager
async def _relayed(port: int) -> AsyncIterator[None]:
    """Hand connections to this port on to the same one of the IPv6 loopback address, until the block ends."""

    async def pump(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await sink.send_all(data)
        scope.cancel()

    async def relay(client: trio.SocketStream) -> None:
        try:
            broker = await trio.open_tcp_stream("::1", port)
        except OSError:
            return  # the client's connection is closed
        async with broker, trio.open_nursery() as nursery:
            nursery.start_soon(pump, client, broker, nursery.cancel_scope)
            nursery.start_soon(pump, broker, client, nursery.cancel_scope)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, relay, port, host=RELAY_HOST))
        yield
        nursery.cancel_scope.cancel()
