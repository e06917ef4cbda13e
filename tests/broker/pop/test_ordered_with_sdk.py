"""The SDK's pop consumer in order: a name server and a broker, real sockets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import Admin, Message, PopConsumer, PoppedMessage, Producer
from mq.client.errors import ConnectionLost
from mq.client.net.connection import Connection
from mq.client.sync import SyncPopConsumer
from mq.protocol.codes import RequestCode
from tests.support.name_server_and_broker import cluster

SECONDS = 60


async def filled(namesrv: str, count: int, queues: int = 1) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("O", queues)
        for queue in await producer.queues("O"):
            for number in range(count):
                await producer.send(Message("O", b"%d" % number), queue=queue)


def in_order(namesrv: str, **options: Any) -> PopConsumer:
    return PopConsumer(namesrv, "G", "O", ordered=True, consume_from="first", **options)


async def test_messages_of_a_queue_are_handled_one_after_the_other(tmp_path: Path) -> None:
    """By two members with five handlers each, some of which fail."""
    rng = random.Random(1)
    done: dict[int, list[int]] = {0: [], 1: [], 2: []}
    at_work: set[int] = set()
    failed: set[tuple[int, int]] = set()

    async def handle(consumer: PopConsumer) -> None:
        while True:
            message = await anext(consumer)
            queue, number = message.queue.queue_id, int(message.body)
            assert queue not in at_work, f"two messages of queue {queue} at once"
            assert number == len(done[queue]), f"{number} of queue {queue} when {len(done[queue])} were done"
            at_work.add(queue)
            await trio.sleep(rng.random() / 500)
            at_work.discard(queue)
            if number % 9 == 4 and (queue, number) not in failed:
                failed.add((queue, number))
                await consumer.nack(message, delay=rng.choice([0, 0.03]))
                continue
            assert bool(message.reconsume_times) >= ((queue, number) in failed)
            done[queue].append(number)
            if all(len(numbers) == 70 for numbers in done.values()):
                nursery.cancel_scope.cancel()
            if number % 2:
                await consumer.ack(message)
            else:
                nursery.start_soon(consumer.ack, message)

    async with cluster(tmp_path) as namesrv:
        await filled(namesrv, 70, queues=3)
        with trio.fail_after(SECONDS):
            async with in_order(namesrv) as one, in_order(namesrv) as two, trio.open_nursery() as nursery:
                for consumer in (one, two):
                    for _ in range(5):
                        nursery.start_soon(handle, consumer)
    assert all(numbers == list(range(70)) for numbers in done.values())
    assert len(failed) == 3 * 8


async def test_ordered_message_waits_until_its_predecessor_is_settled(namesrv: str) -> None:
    await filled(namesrv, 3)
    with trio.fail_after(SECONDS):
        async with in_order(namesrv, invisible=600) as consumer:
            first = await anext(consumer)
            with trio.move_on_after(0.05) as waited:
                await anext(consumer)
            assert waited.cancelled_caught
            begun = trio.current_time()
            await consumer.nack(first, delay=0.2)
            again = await anext(consumer)
            assert trio.current_time() >= begun + 0.19
            assert (again.body, again.reconsume_times) == (b"0", 1)
            await consumer.ack(again)
            second = await anext(consumer)
            assert (second.body, second.reconsume_times) == (b"1", 1), "it was popped before, behind the first"


async def test_leaving_consumer_frees_its_unacknowledged_messages_at_once(namesrv: str) -> None:
    await filled(namesrv, 4)
    with trio.fail_after(SECONDS):
        async with in_order(namesrv, invisible=600) as consumer:
            await consumer.ack(await anext(consumer))
            assert (await anext(consumer)).body == b"1"  # in hand and not acknowledged
        bodies = []
        async with in_order(namesrv, invisible=600) as consumer:
            for _ in range(3):
                bodies.append((message := await anext(consumer)).body)
                await consumer.ack(message)
    assert bodies == [b"1", b"2", b"3"]


async def test_unacknowledged_messages_are_redelivered_before_the_rest(namesrv: str) -> None:
    await filled(namesrv, 3)
    with trio.fail_after(SECONDS):
        async with in_order(namesrv, invisible=2) as consumer:
            late = await anext(consumer)
            assert late.body == b"0"
            again = await anext(consumer)
            assert again.reconsume_times > late.reconsume_times
            while again.body == b"0":  # once, unless this machine needs that long to acknowledge it
                await consumer.ack(late)  # of what came with it nothing comes out any more
                await consumer.ack(again)
                again = await anext(consumer)
            assert (again.body, again.queue_offset) == (b"1", late.queue_offset + 1)


async def test_unacknowledged_messages_are_redelivered_to_their_consumer(tmp_path: Path) -> None:
    """What waits behind a message whose handler died takes no room for longer than it is hidden."""
    seen: dict[int, int] = {}
    async with cluster(tmp_path) as namesrv:
        await filled(namesrv, 3, queues=3)
        with trio.fail_after(SECONDS):
            async with in_order(namesrv, ahead=2, invisible=0.3) as consumer:
                async for message in consumer:
                    assert message.body == b"0"
                    seen[message.queue.queue_id] = seen.get(message.queue.queue_id, 0) + 1
                    if len(seen) == 3 and min(seen.values()) > 1:
                        break


async def test_unanswered_ordered_pop_is_repeated_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, attempts = Connection.request, []

    async def losing(self: Connection, code: int, ext: dict[str, str] | None = None, *args: Any, **options: Any) -> Any:
        answer = await request(self, code, ext, *args, **options)
        if code == RequestCode.POP_MESSAGE:
            attempts.append((ext or {})["attemptId"])
            if len(attempts) == 1:
                raise ConnectionLost(self.address, "just so", sent=True)
        return answer

    monkeypatch.setattr(Connection, "request", losing)
    async with cluster(tmp_path) as namesrv:
        await filled(namesrv, 2)
        with trio.fail_after(SECONDS):
            async with in_order(namesrv, invisible=600) as consumer:
                message = await anext(consumer)
                assert (message.body, message.reconsume_times) == (b"0", 0)
                await consumer.ack(message)
    assert attempts[0] == attempts[1]


@pytest.mark.parametrize("ahead", [1, 2])
async def test_ordered_pops_return_up_to_ahead_messages(namesrv: str, ahead: int) -> None:
    await filled(namesrv, 5)
    with trio.fail_after(SECONDS):
        async with in_order(namesrv, ahead=ahead) as consumer:
            seen: list[PoppedMessage] = []
            for _ in range(5):
                seen.append(await anext(consumer))
                await consumer.ack(seen[-1])
    assert [message.body for message in seen] == [b"%d" % number for number in range(5)]
    assert len({message.receipt.pop_time_ms for message in seen[:ahead]}) == 1
    assert len({message.receipt.start for message in seen}) == -(-5 // ahead)


async def test_synchronous_consumer_pops_in_order(tmp_path: Path) -> None:
    def pop_all(namesrv: str) -> list[tuple[bytes, int]]:
        seen: list[tuple[bytes, int]] = []
        with SyncPopConsumer(namesrv, "G", "O", ordered=True, consume_from="first") as consumer:
            for message in consumer:
                seen.append((message.body, message.reconsume_times))
                if message.body == b"1" and not message.reconsume_times:
                    consumer.nack(message)
                else:
                    consumer.ack(message)
                if message.body == b"2":
                    return seen
        raise AssertionError("no more messages")

    async with cluster(tmp_path) as namesrv:
        await filled(namesrv, 3)
        with trio.fail_after(SECONDS):
            seen = await trio.to_thread.run_sync(pop_all, namesrv)
    assert seen == [(b"0", 0), (b"1", 0), (b"1", 1), (b"2", 1)]
