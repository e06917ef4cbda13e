"""Transactions on three real brokers whose leaders die meanwhile: each has one outcome, whoever leads."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import anyio
import anyio.from_thread
import pytest
import trio

from mq.client import (
    Admin,
    Message,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    SendOutcomeUnknown,
    TransactionProducer,
)
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.half_messages import COMMIT, PREPARED, end, half_text
from tests.support.real_groups import Cluster, cluster_in_thread
from tests.support.running_broker import Client
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

TRANSACTIONS = 500
WORKERS = 16
KILLS_AT = (100, 220, 340)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "entry_bytes_max": "1024",
        "transaction_timeout_seconds": "0.5",
        "transaction_check_seconds": "0.5",
        "transaction_checks_max": "50",
    }
    with cluster_in_thread(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


async def visible(cluster: Cluster, topic: str, expected: int) -> dict[tuple[MessageQueue, int], ReceivedMessage]:
    """All messages of a topic by place, once there are so many, and a while later."""
    found: dict[tuple[MessageQueue, int], ReceivedMessage] = {}
    async with PullConsumer(cluster.namesrv, f"{topic}-readers") as consumer:
        await consumer.assign(await consumer.queues(topic))
        for queue in consumer.assignment:
            await consumer.seek(queue, 0)
        quiet = 0
        while quiet < 4:
            polled = await consumer.poll(timeout=0.5)
            found |= {(message.queue, message.queue_offset): message for message in polled}
            quiet = quiet + 1 if not polled and len(found) >= expected else 0
    return found


async def test_each_transaction_has_one_outcome_across_leader_changes(cluster: Cluster) -> None:
    topic = "Transactions"
    done: dict[str, bool] = {}
    """Whether the application's own part was carried out, by message id: what a check looks into."""
    wanted: set[bytes] = set()
    begun = finished = unknown = checked = 0
    numbers = itertools.count()

    async def check(message: ReceivedMessage) -> bool | None:
        nonlocal checked
        checked += 1
        return done.get(message.message_id, False)

    async def work(producer: TransactionProducer) -> None:
        nonlocal begun, finished, unknown
        while begun < TRANSACTIONS:
            begun += 1
            number = next(numbers)
            body = b"%d" % number
            try:
                async with producer.transaction(Message(topic, body), timeout=30) as transaction:
                    succeeds = number % 5 != 0
                    done[transaction.message_id] = succeeds
                    if succeeds:
                        wanted.add(body)
                    if number % 7 == 0:
                        transaction.leave_open()
                    elif not succeeds:
                        transaction.rollback()
            except SendOutcomeUnknown:
                begun -= 1  # a new one, with a message of its own
                unknown += 1
                continue
            finished += 1

    with anyio.fail_after(150):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, 4)
        async with TransactionProducer(cluster.namesrv, "P", check=check) as producer:
            async with anyio.create_task_group() as tasks:
                for _ in range(WORKERS):
                    tasks.start_soon(work, producer)
                for at in KILLS_AT:
                    await until(lambda: finished >= at)
                    async with cluster.dead(await cluster.leader()):
                        await anyio.sleep(0.5)
            found = await visible(cluster, topic, len(wanted))
            await until(lambda: checked >= TRANSACTIONS // 7)
    assert finished == TRANSACTIONS
    assert Counter(message.body for message in found.values()) == Counter(wanted)


async def test_followers_hand_on_halves_and_ends(cluster: Cluster) -> None:
    topic = "HandedHalves"
    with anyio.fail_after(60):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, 1)
            replicas = (await admin.route(topic)).brokers["broker-a"]
        host, port = next(address for number, address in replicas.items() if number != 0).split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            client = Client(stream)
            half = await client.send(topic, b"half", f=PREPARED, i=half_text())
            assert half.code == ResponseCode.SUCCESS
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            assert await client.offset(RequestCode.GET_MAX_OFFSET, topic) == 1
