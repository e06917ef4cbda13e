"""Producers that send everything at least twice, while leaders are killed: each message is there once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import Admin, Message, SendResult
from mq.client import Producer as SdkProducer
from mq.local_cluster import DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.real_groups import LOST, SETTINGS
from tests.support.running_broker import Answer, Client, properties, send_ext
from tests.support.stored_bodies import all_stored_bodies
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS = 10.0
ENOUGH = 200
"""How many messages are stored at least before the leaders are left alone."""
PRODUCERS = 8
TIMES = 2
QUEUES = 4


class Producer:
    """Sends numbered messages, each until it was acknowledged on two connections that know nothing of each other."""

    def __init__(self, cluster: DevCluster, name: str, rng: random.Random) -> None:
        self._cluster = cluster
        self._name = name
        self._rng = rng
        self.stored: set[bytes] = set()
        self.places: dict[bytes, str] = {}

    async def run(self) -> None:
        number = 0
        while True:
            body = f"{self._name} {number}".encode()
            text = properties(RAFTMQ_PRODUCER=self._name, RAFTMQ_SEQUENCE=str(number))
            if number % 5 == 0:
                text += properties(DELAY="1")
            async with trio.open_nursery() as nursery:
                for _ in range(TIMES):
                    nursery.start_soon(self._until_stored, body, text)
            self.stored.add(body)
            number += 1

    async def _until_stored(self, body: bytes, text: str) -> None:
        while True:
            try:
                port = self._rng.choice(self._cluster.ports.clients)
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    client = Client(stream)
                    ext = send_ext("Once", e=self._rng.randrange(QUEUES), i=text)
                    answer = await client.request(RequestCode.SEND_MESSAGE_V2, ext, body)
                    if answer.code == ResponseCode.SUCCESS:
                        self._check_place(body, answer)
                        return
                    if answer.code not in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY):
                        raise RuntimeError(str(answer))
            except LOST:
                pass
            await trio.sleep(0.02)

    def _check_place(self, body: bytes, answer: Answer) -> None:
        place = f"{answer.ext['queueId']} {answer.ext['queueOffset']} {answer.ext['msgId'][-16:]}"
        if self.places.setdefault(body, place) != place:
            raise RuntimeError(f"{body!r} is at {self.places[body]} and at {place}")


async def kill_leaders(cluster: DevCluster, rng: random.Random) -> None:
    while True:
        await trio.sleep(rng.uniform(0.5, 1.5))
        node = await cluster.leader()
        cluster.kill(node)
        await trio.sleep(rng.uniform(0.1, 1.0))
        await until(lambda: not cluster.is_running(node))
        await cluster.start(node)


def stored_by(producers: list[Producer]) -> set[bytes]:
    return set[bytes]().union(*(producer.stored for producer in producers))


async def test_repeated_sends_to_dying_leaders_are_stored_once(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Once", QUEUES)
        producers = [Producer(cluster, f"p{number}", random.Random(number)) for number in range(PRODUCERS)]
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(producer.run)
            nursery.start_soon(kill_leaders, cluster, rng)
            await trio.sleep(SECONDS)
            await until(lambda: len(stored_by(producers)) >= ENOUGH)
            nursery.cancel_scope.cancel()
        await cluster.start_all()
        await cluster.wait_ready()
        stored = stored_by(producers)
        found = await all_stored_bodies(cluster, "Once", QUEUES, stored)
    assert {body: count for body, count in found.items() if count > 1} == {}


@pytest.mark.parametrize("options", [{}, {"linger": 0.01, "batch_bytes": 16384}], ids=["singles", "automatic batches"])
async def test_numbered_producers_store_each_message_once_while_leaders_die(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The producers of the SDK, with all that they may have in flight."""
    rng = random.Random(2)
    acknowledged: list[bytes] = []

    async def produce(cluster: DevCluster, name: str) -> None:
        async with SdkProducer(cluster.namesrv, numbered=name, retries=100, timeout=60.0, **options) as producer:
            for turn in range(100_000):
                bodies = [f"{name} {turn} {number}".encode() for number in range(500)]
                outcomes = await producer.send_many(Message("Once", body) for body in bodies)
                failed = [each for each in outcomes if not isinstance(each, SendResult)]
                assert not failed, f"{len(failed)}, the first because of {failed[0]} {failed[0].__cause__!r}"
                acknowledged.extend(bodies)
                await trio.sleep(0.1)

    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Once", QUEUES)
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(produce, cluster, f"p{number}")
            nursery.start_soon(kill_leaders, cluster, rng)
            await trio.sleep(SECONDS)
            await until(lambda: len(acknowledged) >= 2000)
            nursery.cancel_scope.cancel()
        await cluster.start_all()
        await cluster.wait_ready()
        found = await all_stored_bodies(cluster, "Once", QUEUES, set(acknowledged))
    assert {body: count for body, count in found.items() if count > 1} == {}
