"""Proxies on the test kit under faults by chance: real HTTP/2 on streams in memory, real brokers, virtual time.

A seed chooses the load and the faults: killed proxies, lost leaders, broken connections of clients and of proxies,
readers that stop. What holds: a message whose send was acknowledged is received; it does not come again after its
acknowledgement; and nothing is hidden for longer than its invisible time.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trio
import trio.testing
from google.protobuf.message import Message

from mq.client import Admin
from mq.proxy.service_table import SERVICE
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit, open_kit
from tests.support.grpc_serving import Connected, Serving, serving
from tests.support.proxies import message, open_proxy, receive_request
from tests.support.virtual_time import VIRTUAL_TIME

TOPIC, GROUP = "Orders", "billing"
QUICK = 3
"""The seeds before this one have few seconds with faults, since each costs CPU."""
INVISIBLE_SECONDS = (10, 15, 20)
PATIENCE_SECONDS = 40.0
"""After the last fault: the longest invisible time, what the broker and a long poll add, and a leader to be elected."""
_CALL_SECONDS = 15

SEEDS = [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.nightly) for seed in range(23)]
AnswerT = TypeVar("AnswerT", bound=Message)


class Proxy:
    """A proxy that is killed and started again.

    Attributes:
        server: None while it is dead.
    """

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.server: Serving | None = None
        self.alive = trio.Event()
        self._life = trio.CancelScope()

    async def run(self) -> None:
        """Live once."""
        with trio.CancelScope() as self._life:
            async with open_proxy(self._kit) as proxy, serving(methods=proxy.table.methods()) as self.server:
                self.alive.set()
                await trio.sleep_forever()

    async def kill(self) -> None:
        """Its connections break, whatever is under way."""
        server, self.server, self.alive = self.server, None, trio.Event()
        assert server is not None, "it is dead already"
        for stream in server.listener.accepted:
            await trio.aclose_forcefully(stream)
        self._life.cancel()


class Client:
    """A client that goes to another proxy when its connection is lost."""

    def __init__(self, play: Play, name: str) -> None:
        self._play, self._name = play, name
        self.connection: Connected | None = None

    async def connected(self) -> Connected:
        while self.connection is None or self.connection.ended:
            alive = [proxy.server for proxy in self._play.proxies if proxy.server is not None]
            if alive:
                self.connection = await self._play.chance.choice(alive).connect()
            else:
                await trio.sleep(0.1)
        return self.connection

    async def ask(self, method: str, request: Message, kind: type[AnswerT]) -> list[AnswerT]:
        """The answers; what came before the connection was lost, or the call failed."""
        connection = await self.connected()
        answer = await connection.unary(
            SERVICE + method,
            request.SerializeToString(),
            headers=[("x-mq-client-id", self._name), ("grpc-timeout", f"{_CALL_SECONDS}S")],
        )
        return [kind.FromString(data) for data in answer.messages]


class Play:
    """The load, the faults, and what clients have seen.

    Attributes:
        stored: ids of messages that were acknowledged to their producer.
        doubtful: those that may be stored more than once, since an attempt got no answer.
        settled: ids that a consumer has acknowledged, and when it knew.
    """

    def __init__(self, kit: Kit, seed: int, nursery: trio.Nursery) -> None:
        self.chance = random.Random(seed)
        self.proxies = [Proxy(kit), Proxy(kit)]
        self.stored: set[str] = set()
        self.sent: set[str] = set()
        self.doubtful: set[str] = set()
        self.settled: dict[str, float] = {}
        self.failed: list[str] = []
        self.clients: list[Client] = []
        self._kit, self._nursery = kit, nursery
        self._producing = 0
        self._calm = False
        self._news = trio.Event()
        self._seed = seed

    def client(self, name: str) -> Client:
        self.clients.append(Client(self, name))
        return self.clients[-1]

    async def produce(self, name: str) -> None:
        client, number = self.client(name), 0
        self._producing += 1
        while not self._calm:
            number += 1
            body = f"{name}-{number}"
            padding = "x" * self.chance.choice((0, 0, 20_000))
            given = message(TOPIC, body + "." + padding, message_id=body)
            self.sent.add(body)
            while body not in self.stored:
                answers = await client.ask(
                    "SendMessage", pb.SendMessageRequest(messages=[given]), pb.SendMessageResponse
                )
                if answers and answers[0].status.code == pb.OK:
                    self.stored.add(body)
                else:
                    self.doubtful.add(body)
                    await trio.sleep(0.2)
            await trio.sleep(self.chance.uniform(0.05, 0.8))
        self._producing -= 1
        self._news.set()

    async def consume(self, name: str) -> None:
        client = self.client(name)
        while True:
            await self._receive(client)

    async def _receive(self, client: Client) -> None:
        began = trio.current_time()
        request = receive_request(GROUP, TOPIC, batch_size=self.chance.choice((1, 4, 16)))
        request.invisible_duration.seconds = self.chance.choice(INVISIBLE_SECONDS)
        answers = await client.ask("ReceiveMessage", request, pb.ReceiveMessageResponse)
        messages = [answer.message for answer in answers if answer.HasField("message")]
        if not messages:
            await trio.sleep(0.2)  # as clients do between two receives
        for each in messages:
            known = each.system_properties.message_id
            if known not in self.sent or not each.body.startswith(f"{known}.".encode()):
                self.failed.append(f"{known} was received, and never sent")
            if known not in self.doubtful and self.settled.get(known, began) < began:
                self.failed.append(f"{known} was received again after its acknowledgement")
            rude = 0 if self._calm else 1
            match self.chance.choices(("acknowledge", "defer", "forget", "late"), (6, rude, rude, 2 * rude))[0]:
                case "acknowledge":
                    await self._acknowledge(client, each)
                case "defer":
                    await self._defer(client, each)
                case "late":
                    self._nursery.start_soon(self._acknowledge_late, each)

    async def _acknowledge(self, client: Client, received: pb.Message) -> None:
        told = received.system_properties
        entry = pb.AckMessageEntry(message_id=told.message_id, receipt_handle=told.receipt_handle)
        request = pb.AckMessageRequest(group=pb.Resource(name=GROUP), topic=received.topic, entries=[entry])
        answers = await client.ask("AckMessage", request, pb.AckMessageResponse)
        if answers and answers[0].status.code == pb.OK:
            self.settled.setdefault(told.message_id, trio.current_time())
            self._news.set()

    async def _acknowledge_late(self, received: pb.Message) -> None:
        """When it may have come again: then the acknowledgement must be refused."""
        await trio.sleep(self.chance.uniform(5.0, 30.0))  # virtual time
        await self._acknowledge(self.client(f"late-{received.system_properties.message_id}"), received)

    async def _defer(self, client: Client, received: pb.Message) -> None:
        request = pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=GROUP),
            topic=received.topic,
            receipt_handle=received.system_properties.receipt_handle,
            message_id=received.system_properties.message_id,
        )
        request.invisible_duration.seconds = self.chance.choice((0, 10))
        await client.ask("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)

    async def stop_reading(self) -> None:
        """A client that wants many messages and reads none."""
        client = self.client(f"slow-{trio.current_time()}")
        connection = await client.connected()
        connection.grpc.reads = False
        request = receive_request(GROUP, TOPIC, batch_size=16)
        request.invisible_duration.seconds = min(INVISIBLE_SECONDS)
        with trio.move_on_after(20):
            await client.ask("ReceiveMessage", request, pb.ReceiveMessageResponse)
        await trio.aclose_forcefully(connection.stream)

    async def trouble(self) -> None:
        """Faults, one after the other; none is left at the end."""
        ends = trio.current_time() + (4.0 if self._seed < QUICK else 40.0)
        while trio.current_time() < ends:
            await trio.sleep(self.chance.uniform(0.2, 2.0 if self._seed < QUICK else 6.0))
            match self.chance.choice(("kill", "kill", "leader", "brokers", "client", "client", "slow")):
                case "kill":
                    proxy = self.chance.choice(self.proxies)
                    await proxy.kill()
                    await trio.sleep(self.chance.uniform(0.0, 3.0))
                    self._nursery.start_soon(proxy.run)
                    await proxy.alive.wait()
                case "leader" if self._seed % 2:
                    lost = await self._kit.lose_leader()
                    await trio.sleep(self.chance.uniform(0.0, 3.0))
                    await self._kit.restore(lost)
                case "brokers" | "leader":
                    self._kit.break_connections()
                case "client":
                    connection = self.chance.choice(self.clients).connection
                    if connection is not None:
                        await trio.aclose_forcefully(connection.stream)
                case "slow":
                    self._nursery.start_soon(self.stop_reading)

    async def run(self) -> None:
        for proxy in self.proxies:
            self._nursery.start_soon(proxy.run)
        first = self.client("first")
        # A new group begins at the end of the topic.
        await first.ask("ReceiveMessage", receive_request(GROUP, TOPIC), pb.ReceiveMessageResponse)
        for number in range(2):
            self._nursery.start_soon(self.produce, f"p{number}")
            self._nursery.start_soon(self.consume, f"c{number}")
        await self.trouble()
        self._calm = True
        with trio.move_on_after(PATIENCE_SECONDS):
            while self._producing or not self.stored <= self.settled.keys():
                self._news = trio.Event()
                await self._news.wait()
        missing = sorted(self.stored - self.settled.keys())
        assert not self._producing, f"{self._producing} producers still wait for an acknowledgement"
        assert not missing, f"{len(missing)} of {len(self.stored)} messages were not received in time: {missing[:5]}"
        assert not self.failed, self.failed[:5]
        assert len(self.stored) >= 10, f"only {len(self.stored)} messages were sent"


@asynccontextmanager
async def playing(seed: int) -> AsyncIterator[Play]:
    async with open_kit(replicas=3 if seed % 2 else 1) as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic(TOPIC, 4)
        async with trio.open_nursery() as nursery:
            yield Play(kit, seed, nursery)
            nursery.cancel_scope.cancel()


@VIRTUAL_TIME
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_calls_neither_lose_nor_redeliver_acknowledged_messages(seed: int) -> None:
    async with playing(seed) as play:
        await play.run()
