"""Messages at any time on three real brokers whose leaders die while they deliver."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import anyio
import pytest

from mq.client import Admin, BrokerError, Message, Producer, ReceivedMessage, SendResult
from tests.support.real_groups import SMALL_ENTRIES, Cluster, cluster_in_thread, delivered
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

MESSAGES = 2000
RECALLED = 200
LATE_SECONDS = 10
"""When those that are recalled would be delivered: as the last ones."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path_factory.mktemp("cluster"), settings=SMALL_ENTRIES) as running:
        yield running


async def test_each_timer_fires_once_and_never_early_across_leader_changes(cluster: Cluster) -> None:
    rng = random.Random(5)
    seen: list[ReceivedMessage] = []
    with anyio.fail_after(120):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Timed", 4)
        async with Producer(cluster.namesrv) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(delivered, cluster, "Timed", "readers", seen)
            begun = anyio.current_time()
            sent = await producer.send_many(
                Message("Timed", b"%d" % number, delay=LATE_SECONDS if number < RECALLED else 3 + rng.random() * 6)
                for number in range(MESSAGES)
            )
            results = [each for each in sent if isinstance(each, SendResult) and not each.maybe_duplicated]
            assert len(results) == MESSAGES
            recalled: set[bytes] = set()
            for number, result in enumerate(results[:RECALLED]):
                assert result.recall_handle is not None
                if anyio.current_time() < begun + LATE_SECONDS / 2:  # a busy machine recalls fewer of them
                    assert await producer.recall(result.recall_handle) == result.message_id
                    recalled.add(b"%d" % number)
            assert recalled
            expected = {b"%d" % number for number in range(MESSAGES)} - recalled
            for kill_after in (300, 1200):
                await until(lambda: len(seen) >= kill_after)
                async with cluster.dead(await cluster.leader()):
                    await until(lambda: len(seen) >= kill_after + 300)
            await until(lambda: len({message.body for message in seen}) >= len(expected))
            with pytest.raises(BrokerError) as late:
                await producer.recall(results[-1].recall_handle or "")
            assert late.value.code == 604
            await anyio.sleep_until(max(begun + LATE_SECONDS, anyio.current_time()) + 1)
            tasks.cancel_scope.cancel()
    # The consumer may get a message twice, when it lost its leader; the topic has each once.
    places = {(message.queue, message.queue_offset): message for message in seen}
    assert Counter(message.body for message in places.values()) == Counter(expected)
    early = [
        message
        for message in places.values()
        if message.record.store_timestamp_ms < int(message.properties["TIMER_OUT_MS"])
    ]
    assert not early, early[:3]
