"""What the broker makes by itself does not replace what an operator makes at the same time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from tests.support.running_broker import Client, broker_client, send_ext

GROUP = b'{"groupName":"G","retryQueueNums":3,"retryMaxTimes":5}'


async def at_once(client: Client, *requests: tuple[int, bytes]) -> list[int]:
    """Send requests in one piece, so that all are there before the first one is in the log. The codes of the answers"""
    await client.stream.send_all(b"".join(data for _, data in requests))
    return [(await client.answer(opaque)).code for opaque, _ in requests]


async def test_topic_is_created_during_its_first_send(client: Client) -> None:
    ext = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 6, "writeQueueNums": 7, "perm": 6}
    assert await at_once(
        client,
        client.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext | {"topicFilterType": "SINGLE_TAG"}),
        client.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"first"),
    ) == [0, 0]
    answer = await client.request(RequestCode.GET_ALL_TOPIC_CONFIG)
    config = json.loads(answer.body)["topicConfigTable"]["T"]
    assert (config["readQueueNums"], config["writeQueueNums"]) == (6, 7)


@pytest.mark.parametrize("by", ["heartbeat", "message given back"])
async def test_automatic_group_creation_does_not_replace_an_operators_group(tmp_path: Path, by: str) -> None:
    async with broker_client(tmp_path) as client:
        sent = await client.send("T")
        consumer = ConsumerData(group="G", subscriptions=[SubscriptionData(topic="T")])
        back = {"offset": int(sent.ext["msgId"][16:], 16), "group": "G", "delayLevel": 1}
        assert await at_once(
            client,
            client.frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GROUP),
            client.frame(RequestCode.HEART_BEAT, body=HeartbeatData(client_id="c", consumers=[consumer]).encode())
            if by == "heartbeat"
            else client.frame(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        ) == [0, 0]
        await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")
        answer = await client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
        config = json.loads(answer.body)
        assert (config["retryQueueNums"], config["retryMaxTimes"]) == (3, 5)


async def test_topic_created_again_continues_queue_offsets(client: Client) -> None:
    await client.create_topic("T", queues=2)
    for queue_id in (0, 0, 0, 1):
        await client.send("T", b"old", e=queue_id)
    assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await client.create_topic("T", queues=2)
    for number in (3, 4):
        sent = await client.send("T", b"new", e=0)
        assert sent.ext["queueOffset"] == str(number)
    assert [record.body for record in (await client.pull("T", 0, 3)).records] == [b"new", b"new"]
    assert await client.offset(RequestCode.GET_MIN_OFFSET, "T") == 3
    assert await client.offset(RequestCode.GET_MAX_OFFSET, "T") == 5
    assert await client.offset(RequestCode.GET_MIN_OFFSET, "T", 1) == 1
    assert await client.offset(RequestCode.GET_MAX_OFFSET, "T", 1) == 1


async def test_messages_around_a_topics_deletion(tmp_path: Path) -> None:
    """Whatever lies before the deletion in the log is gone with it, also after a restart."""
    settings: dict[str, int] = {"entry_bytes_max": 1024, "rounds_in_flight": 4}
    async with broker_client(tmp_path, **settings) as client:
        delete = (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        made = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        create = (RequestCode.UPDATE_AND_CREATE_TOPIC, made | {"topicFilterType": "SINGLE_TAG"})
        first, records = 0, []
        for turn in range(4):
            await client.create_topic("T")
            for number in range(3):
                await client.send("T", b"%d" % number, e=0)
            sends = [client.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T", e=0), b"x" * 200) for _ in range(12)]
            requests = [*sends[:5], client.frame(*delete), *sends[5:9], client.frame(*create), *sends[9:]]
            if turn % 2:
                requests.insert(11, client.frame(*delete))
            codes = await at_once(client, *requests)
            created = codes.pop(10)
            assert created == 0, codes
            assert set(codes) <= {0, ResponseCode.TOPIC_NOT_EXIST}, codes
            await client.create_topic("T")
            sent = await client.send("T", b"last", e=0)
            end = await client.offset(RequestCode.GET_MAX_OFFSET, "T")
            assert int(sent.ext["queueOffset"]) == end - 1
            first = await client.offset(RequestCode.GET_MIN_OFFSET, "T")
            assert end - first <= 13, "what lay before the deletion is gone"
            records = (await client.pull("T", 0, first)).records
            assert [record.queue_offset for record in records] == list(range(first, end))
    async with broker_client(tmp_path, **settings) as client:
        assert (await client.pull("T", 0, first)).records == records
