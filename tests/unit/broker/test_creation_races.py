"""What the broker makes by itself does not replace what an operator makes at the same time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from mq.protocol.codes import RequestCode
from tests.unit.broker.running import Client, running, send_ext

pytestmark = pytest.mark.trio

GROUP = b'{"groupName":"G","retryQueueNums":3,"retryMaxTimes":5}'


async def at_once(client: Client, *requests: tuple[int, bytes]) -> list[int]:
    """Send requests in one piece, so that all are there before the first one is in the log. The codes of the answers"""
    await client.stream.send_all(b"".join(data for _, data in requests))
    return [(await client.answer(opaque)).code for opaque, _ in requests]


async def test_a_topic_that_is_made_while_its_first_message_comes(tmp_path: Path) -> None:
    ext = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 6, "writeQueueNums": 7, "perm": 6}
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert await at_once(
            client,
            client.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext | {"topicFilterType": "SINGLE_TAG"}),
            client.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"first"),
        ) == [0, 0]
        answer = await client.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        config = json.loads(answer.body)["topicConfigTable"]["T"]
        assert (config["readQueueNums"], config["writeQueueNums"]) == (6, 7)


@pytest.mark.parametrize("by", ["heartbeat", "message given back"])
async def test_a_group_that_is_made_while_it_begins_to_consume(tmp_path: Path, by: str) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
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
