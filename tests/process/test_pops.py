"""Consumers that pop and acknowledge on three real brokers, while those that lead are killed."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from jepsen.wire import ask_figures
from mq.client import Admin
from mq.local_cluster import HOST, DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.popping import Popped, batch_body, now_ms, pop_ext, read_popped
from tests.support.real_groups import LOST, SETTINGS
from tests.support.running_broker import Client, send_ext
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

MESSAGES = 5000
QUEUES = 4
CONSUMERS = 4
INVISIBLE_MS = 1500
KILLS_MIN = 3
SECONDS_MAX = 120.0
NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
NOT_NOW = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)


class Consumers:
    """Who got what, and since when it is known to be acknowledged."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self.acked_at: dict[bytes, float] = {}
        self.seen: set[bytes] = set()
        self.came_again = 0

    async def run(self, rng: random.Random) -> None:
        """Pop and acknowledge on one replica after the other."""
        while True:
            try:
                port = rng.choice(self._cluster.ports.clients)
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    client = Client(stream)
                    while rng.random() > 0.05:
                        await self._step(client, rng)
            except LOST:
                await trio.sleep(0.02)

    async def _step(self, client: Client, rng: random.Random) -> None:
        asked_at = time.monotonic()
        await trio.sleep(0.03)  # so that it takes some leaders
        ext = pop_ext("Popped", maxMsgNums=8, invisibleTime=INVISIBLE_MS, pollTime=300, bornTime=now_ms())
        answer = await client.request(RequestCode.POP_MESSAGE, ext)
        if answer.code in NOTHING or answer.code in NOT_NOW:
            await trio.sleep(0.02)  # nothing came: ask again a little later
            return
        messages = read_popped(answer)
        for message in messages:
            if self.acked_at.get(message.body, asked_at) < asked_at:
                raise RuntimeError(f"{message.body!r} came again after its acknowledgement was answered")
            self.came_again += message.body in self.seen
            self.seen.add(message.body)
        if rng.random() < 0.1:
            return  # this consumer has died
        for message in messages[:2]:
            ack = await client.request(RequestCode.ACK_MESSAGE, message.ack_ext("Popped"))
            self._note(ack.code, [message])
        if rest := messages[2:]:
            ack = await client.request(RequestCode.BATCH_ACK_MESSAGE, body=batch_body(rest, "Popped"))
            self._note(ack.code, rest)

    def _note(self, code: int, messages: list[Popped]) -> None:
        if code == ResponseCode.SUCCESS:
            self.acked_at |= dict.fromkeys((message.body for message in messages), time.monotonic())
        elif code != ResponseCode.NO_MESSAGE and code not in NOT_NOW:
            raise RuntimeError(f"an acknowledgement was answered with {code}")


async def kill_leaders(cluster: DevCluster, rng: random.Random, killed: list[str]) -> None:
    while True:
        await trio.sleep(rng.uniform(0.5, 1.5))
        node = await cluster.leader()
        cluster.kill(node)
        killed.append(node)
        await trio.sleep(rng.uniform(0.1, 1.0))
        await until(lambda: not cluster.is_running(node))
        await cluster.start(node)
        await until(partial(ask_figures, HOST, cluster.port(node)))


async def send_all(cluster: DevCluster) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", cluster.port(await cluster.leader())) as stream:
        client = Client(stream)
        posted = []
        for number in range(MESSAGES):
            ext = send_ext("Popped", e=number % QUEUES)
            posted.append(await client.post(RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number))
        for opaque in posted:
            assert (await client.answer(opaque)).code == ResponseCode.SUCCESS


async def nothing_is_open(cluster: DevCluster) -> bool:
    async with await trio.open_tcp_stream("127.0.0.1", cluster.port(await cluster.leader())) as stream:
        return (await Client(stream).info())["raftmq.popCheckpoints"] == "0"


async def test_every_message_is_popped_and_none_after_its_acknowledgement(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Popped", QUEUES)
        await send_all(cluster)
        consumers = Consumers(cluster)
        killed: list[str] = []
        everything = {b"%d" % number for number in range(MESSAGES)}
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                for number in range(CONSUMERS):
                    nursery.start_soon(consumers.run, random.Random(number))
                nursery.start_soon(kill_leaders, cluster, rng, killed)
                # An acknowledgement whose answer was lost may count; then its message never comes again.
                await until(lambda: consumers.seen == everything and len(killed) >= KILLS_MIN)
                await trio.sleep(3 * INVISIBLE_MS / 1000)  # whatever is not acknowledged comes again meanwhile
                nursery.cancel_scope.cancel()
        await cluster.start_all()
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                for number in range(CONSUMERS):
                    nursery.start_soon(consumers.run, random.Random(100 + number))
                await until(lambda: nothing_is_open(cluster))
                await trio.sleep(1)  # an open pop would have ended by then
                assert await nothing_is_open(cluster)
                nursery.cancel_scope.cancel()
        assert consumers.seen == everything
        assert consumers.came_again > 0
        assert len(consumers.acked_at) > 0.9 * MESSAGES
