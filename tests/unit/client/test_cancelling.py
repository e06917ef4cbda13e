"""Calls that are cancelled at their first, second, third... checkpoint: nothing stays behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from mq.client import Message, PopConsumer, Producer, PullConsumer, PushConsumer
from mq.client.net.life_cycle import Client
from tests.support.waiting import until
from tests.unit.client.consuming import consuming, fill
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio
TURNS_MAX = 400
KINDS: dict[str, Callable[[str], Client]] = {
    "producer": lambda namesrv: Producer(namesrv, linger=0.005),
    "push": lambda namesrv: PushConsumer(namesrv, "G"),
    "pull": lambda namesrv: PullConsumer(namesrv, "G"),
    "pop": lambda namesrv: PopConsumer(namesrv, "G", "T"),
}


async def ends_within(turns: int, call: Callable[[], Awaitable[object]]) -> bool:
    """Cancel `call` after so many turns of the event loop; returns whether it had ended."""
    ended = False
    scope = anyio.CancelScope()

    async def run() -> None:
        nonlocal ended
        with scope:
            await call()
            ended = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()
    return ended


@pytest.mark.parametrize("kind", KINDS)
async def test_block_cancelled_anywhere_leaves_nothing_open(cluster: FakeCluster, kind: str) -> None:
    for turns in range(TURNS_MAX):
        client = KINDS[kind](cluster.namesrv)

        async def block(client: Client = client) -> None:
            async with client:
                if isinstance(client, Producer):
                    await client.send(Message("T", b"x"))

        ended = await ends_within(turns, block)
        assert client._host is None or client._host.is_over
        assert client._pending_messages() == 0
        if ended:
            break
    else:
        pytest.fail(f"it did not end within {TURNS_MAX} turns")
    await until(lambda: not cluster.leader.connections and not cluster.name_servers[0].connections, seconds=60)


async def test_cancelled_receive_acknowledges_only_returned_messages() -> None:
    async with consuming() as (cluster, consumer):
        stream = aiter(consumer)
        taken: list[int] = []

        async def receive() -> None:
            taken.append((await anext(stream)).queue_offset)

        for turns in range(30):
            fill(cluster, 1)
            await ends_within(turns, receive)
            acknowledged = max(consumer.positions.values(), default=0)
            assert acknowledged <= len(taken), "a message is acknowledged that nobody got"
        with anyio.fail_after(60):
            while len(taken) < 30:
                await receive()
        assert taken == list(range(30))


@pytest.mark.parametrize("linger", [None, 0.003])
async def test_cancelled_send_frees_its_room(linger: float | None) -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv, linger=linger, in_flight_max=3) as producer,
    ):

        async def send() -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(producer.send, Message("T", b"x"))

        for turns in range(40):
            await ends_within(turns, send)
            assert producer.in_flight == 0
            assert producer._limit.has_room
