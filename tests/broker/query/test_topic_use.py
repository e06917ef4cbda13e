"""The bytes of a topic, and who has sent its newest messages: over real sockets, and with the SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.client import Message, Producer
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.topic_use import TopicUse
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import Client, broker_client, limited


async def use_of(client: Client, topic: str = "T") -> TopicUse:
    answer = await client.request(RequestCode.ASK_TOPIC_USE, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer
    return TopicUse.decode(answer.body)


async def test_queue_bytes_equal_the_sum_of_their_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_client(tmp_path, queues=3) as client:
        for number in range(40):
            answer = await client.send(body=b"x" * (7 * number), e=number % 2)
            assert answer.code == 0
        stored = [len((await client.pull(queue_id=queue_id, maxMsgNums=32)).body) for queue_id in range(2)]
        use = await use_of(client)
        assert all(each.is_exact for each in use.queues)
        assert {each.queue_id: each.nbytes for each in use.queues} == {0: stored[0], 1: stored[1], 2: 0}
    async with broker_client(tmp_path, limits=limited(upkeep={"summed_entries_max": 3})) as client:
        sampled = (await use_of(client)).queues[0]
        assert not sampled.is_exact
        assert abs(sampled.nbytes - stored[0]) < stored[0] / 4


async def test_topic_use_names_connected_senders(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        async with Producer(namesrv, group="shop") as producer:
            for _ in range(5):
                await producer.send(Message("T", b"x"))
            client = await broker.connect()
            use = await use_of(client)
            [sender] = use.senders
            assert (sender.client_id, sender.group, sender.language) == (producer.client_id, "shop", "PYTHON")
            assert (sender.address, sender.messages, use.looked_at) == ("127.0.0.1", 5, 5)
            assert sender.last_ms > 0
        use = await use_of(client)
        assert [(each.client_id, each.address, each.messages) for each in use.senders] == [("", "127.0.0.1", 5)]


async def test_topic_use_refuses_an_unknown_topic(client: Client) -> None:
    answer = await client.request(RequestCode.ASK_TOPIC_USE, {"topic": "Nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    await client.create_topic("T", 2)
    use = await use_of(client)
    assert (use.senders, use.looked_at, [each.nbytes for each in use.queues]) == ([], 0, [0, 0])
