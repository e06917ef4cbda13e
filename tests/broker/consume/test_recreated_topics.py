"""A topic is deleted and created again: all kinds of consumers read the new one from its first message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import Admin, Message, PopConsumer, Producer, PullConsumer, PushConsumer
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.popping import pop_ext, popped
from tests.support.queue_locks import lock_body
from tests.support.running_broker import Client, RunningBroker, broker_client, pull_ext
from tests.support.waiting import until

COMMIT = 1
SUSPEND = 2
SUBSCRIPTION = 4
Member = Callable[[str, Path, list[bytes]], AbstractAsyncContextManager[None]]
"""Runs a member of group G; what it handles goes into the list."""


@asynccontextmanager
async def push_member(namesrv: str, _: Path, handled: list[bytes], **given: Any) -> AsyncIterator[None]:
    consumer = PushConsumer(namesrv, "G", commit_seconds=0.05, rebalance_seconds=0.1, **given)

    @consumer.on("T")
    async def handle(message: Any) -> None:
        handled.append(message.body)

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        yield
        nursery.cancel_scope.cancel()


def push(**given: Any) -> Member:
    return lambda namesrv, path, handled: push_member(namesrv, path, handled, **given)


def broadcast(namesrv: str, path: Path, handled: list[bytes]) -> AbstractAsyncContextManager[None]:
    return push_member(namesrv, path, handled, consume_from="first", broadcast=path / "b.json")


@asynccontextmanager
async def pull(namesrv: str, _: Path, handled: list[bytes]) -> AsyncIterator[None]:
    async def run() -> None:
        while True:
            for message in await consumer.poll(timeout=0.05):
                handled.append(message.body)
            if (queues := set(await consumer.queues("T"))) != consumer.assignment:
                await consumer.assign(queues)
            await consumer.commit()

    async def keep_running() -> None:
        while True:  # the topic may not exist for a moment
            try:
                await run()
            except Exception:
                await trio.sleep(0.02)

    async with (
        PullConsumer(namesrv, "G", consume_from="first", timeout=0.5) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(keep_running)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pop_member(namesrv: str, _: Path, handled: list[bytes], ordered: bool) -> AsyncIterator[None]:
    async def run() -> None:
        async for message in consumer:
            handled.append(message.body)
            await consumer.ack(message)

    async with PopConsumer(namesrv, "G", "T", ordered=ordered) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield
        nursery.cancel_scope.cancel()


def pop(ordered: bool) -> Member:
    return lambda namesrv, path, handled: pop_member(namesrv, path, handled, ordered)


MEMBERS = {
    "push": push(),
    "push last": push(consume_from="last", ordered=False),
    "exclusive": push(exclusive=True),
    "broadcast": broadcast,
    "pull": pull,
    "pop": pop(ordered=False),
    "ordered pop": pop(ordered=True),
}


async def send(namesrv: str, what: str, count: int) -> set[bytes]:
    bodies = [b"%s %d" % (what.encode(), number) for number in range(count)]
    async with Producer(namesrv) as producer:
        await producer.send_many(Message("T", body) for body in bodies)
    return set(bodies)


async def recreate(admin: Admin, queues: int) -> None:
    await admin.delete_topic("T")
    await admin.create_topic("T", queues)


def gets(handled: list[bytes], wanted: set[bytes]) -> Awaitable[None]:
    async def has_all() -> bool:
        return wanted <= set(handled)

    return until(has_all)


@pytest.mark.parametrize("queues", [1, 2, 4])
@pytest.mark.parametrize("away", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("kind", MEMBERS)
async def test_consumer_reads_recreated_topic_from_first_message(
    tmp_path: Path, kind: str, away: bool, queues: int
) -> None:
    member, handled = MEMBERS[kind], list[bytes]()
    async with cluster_and_broker(tmp_path) as (namesrv, _), Admin(namesrv) as admin:
        await admin.create_topic("T", 2)
        old = await send(namesrv, "old", 100)
        async with member(namesrv, tmp_path, handled):
            await gets(handled, old)
            if not away:
                for number in range(2):
                    await recreate(admin, queues)
                    await gets(handled, await send(namesrv, f"new {number}", 10))
        if away:
            await recreate(admin, queues)
            new = await send(namesrv, "new", 150)
            async with member(namesrv, tmp_path, handled):
                await gets(handled, new)
        assert len(handled) == len(set(handled)), "a message was delivered twice"


# -- stock clients, which do not know that the topic is another one ----------------------------------------------------


async def commit(client: Client, offset: int, group: str = "G", **given: Any) -> int:
    ext = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": offset}
    return (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext | given)).code


async def delete(client: Client) -> None:
    assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0


async def read_and_recreated(client: Client, read: int = 5) -> None:
    """Topic T with 5 messages, of which group G has read so many; deleted, and created again."""
    await client.create_topic("T")
    for number in range(5):
        await client.send("T", b"old %d" % number, e=0)
    assert await commit(client, read) == 0
    await delete(client)
    await client.create_topic("T")


@pytest.mark.parametrize("read", [0, 3, 5])
async def test_old_position_gets_first_message_of_recreated_topic(client: Client, read: int) -> None:
    await read_and_recreated(client, read)
    assert await client.committed() == 5, "the group reads the new topic from its first message"
    assert await commit(client, read) == 0, "late, from the old topic"
    assert await client.committed() == 5
    await client.send("T", b"new", e=0)
    answer = await client.pull("T", 0, read, sysFlag=COMMIT | SUBSCRIPTION, commitOffset=read)
    if read < 5:
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "5")
        answer = await client.pull("T", 0, 5)
    assert [record.body for record in answer.records] == [b"new"]
    assert await client.committed() == 5


async def test_late_commit_of_new_group_begins_with_recreated_topic(client: Client) -> None:
    await read_and_recreated(client)
    assert await commit(client, 2, group="Late") == 0
    assert await client.committed("Late") == 5


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE])
async def test_deletion_ends_waiting_request_with_error(broker: RunningBroker, code: int) -> None:
    client, other = await broker.connect(), await broker.connect()
    await client.create_topic("T")
    await client.send("T", b"old", e=0)
    assert await commit(client, 1) == 0
    held = pull_ext("T", 0, 1, sysFlag=SUSPEND | SUBSCRIPTION)
    opaque = await client.post(code, held if code == RequestCode.PULL_MESSAGE else pop_ext(pollTime=15_000))
    await other.wait_for(lambda info: "1" in (info["raftmq.heldPulls"], info["raftmq.heldPops"]))
    await delete(other)
    assert (await client.answer(opaque)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_group_begins_at_first_message_although_restarted(tmp_path: Path) -> None:
    async with broker_client(tmp_path) as client:
        await read_and_recreated(client)
        await delete(client)
    async with broker_client(tmp_path) as client:
        await client.create_topic("T", queues=2)
    async with broker_client(tmp_path) as client:
        assert [await client.committed(queue_id=queue_id) for queue_id in range(2)] == [5, 0]
        assert (await client.send("T", b"new", e=0)).ext["queueOffset"] == "5"
        assert await client.committed("New") == 5, "also a group that never read, as with any young queue"
        assert [each.body for each in await popped(client, initMode=1)] == [b"new"]


async def test_ack_of_a_deleted_topic_does_not_affect_new_messages(client: Client) -> None:
    await client.create_topic("T")
    await client.send("T", b"old", e=0)
    [old] = await popped(client)
    await delete(client)
    await client.create_topic("T")
    await client.send("T", b"new", e=0)
    [new] = await popped(client)
    assert (old.body, new.body) == (b"old", b"new")
    late = await client.request(RequestCode.ACK_MESSAGE, old.ack_ext())
    assert late.code == ResponseCode.NO_MESSAGE
    assert (await client.request(RequestCode.ACK_MESSAGE, new.ack_ext())).code == 0


async def test_queue_lock_outlives_its_topic(client: Client) -> None:
    """Its holder may rely on it for a while, and already handle messages of the new topic."""
    await client.create_topic("T")
    await client.request(RequestCode.LOCK_BATCH_MQ, body=lock_body("holder", 0))
    await delete(client)
    await client.create_topic("T")
    other = await client.request(RequestCode.LOCK_BATCH_MQ, body=lock_body("other", 0))
    assert b"queueId" not in other.body
    again = await client.request(RequestCode.LOCK_BATCH_MQ, body=lock_body("holder", 0))
    assert b"queueId" in again.body


async def test_query_by_key_finds_only_messages_of_new_topic(client: Client) -> None:
    await client.create_topic("T")
    for _ in range(3):
        await client.send("T", b"old", e=0, i="KEYS\1k\2")
    await delete(client)
    await client.create_topic("T")
    query = {"topic": "T", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    assert (await client.request(RequestCode.QUERY_MESSAGE, query)).code == ResponseCode.QUERY_NOT_FOUND
    await client.send("T", b"new", e=0, i="KEYS\1k\2")
    answer = await client.request(RequestCode.QUERY_MESSAGE, query)
    assert [record.body for record in answer.records] == [b"new"]
