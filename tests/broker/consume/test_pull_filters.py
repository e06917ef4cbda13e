"""Pulls with SQL92 expressions, subscriptions from heartbeats, and CHECK_CLIENT_CONFIG over real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from tests.support.running_broker import (
    SUBSCRIPTION,
    SUSPEND,
    Answer,
    Client,
    RunningBroker,
    broker_client,
    limited,
    properties,
    pull_ext,
)

HELD = SUBSCRIPTION | SUSPEND
PULL = RequestCode.PULL_MESSAGE
SQL: dict[str, Any] = {"expressionType": "SQL92"}


async def held_pulls(client: Client) -> int:
    return int((await client.info())["raftmq.heldPulls"])


async def send_numbered(client: Client, count: int, **options: Any) -> None:
    for number in range(count):
        await client.send(body=b"%d" % number, i=properties(n=str(number), **options))


def bodies(answer: Answer) -> list[bytes]:
    return [record.body for record in answer.records]


@pytest.mark.parametrize("more", [{}, {"DELAY": "0"}], ids=["plain", "special"])
@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_message_with_two_tags_is_pulled_by_the_last(
    client: Client, serialization: int, more: dict[str, str]
) -> None:
    text = properties(TAGS="A", KEYS="k1", n="1", **more) + properties(TAGS="B", KEYS="k2", n="2")
    assert (await client.send(i=text, serialization=serialization)).code == 0
    assert (await client.pull(subscription="A")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    [message] = (await client.pull(subscription="B")).records
    assert (message.properties["TAGS"], message.properties["KEYS"]) == ("B", "k2")
    assert len((await client.pull(subscription="n = 2 AND TAGS = 'B'", **SQL)).records) == 1
    found = await client.request(RequestCode.QUERY_MESSAGE, _by_key("k2"))
    assert [record.properties["KEYS"] for record in found.records] == ["k2"]
    assert (await client.request(RequestCode.QUERY_MESSAGE, _by_key("k1"))).code != ResponseCode.SUCCESS


def _by_key(key: str) -> dict[str, Any]:
    return {"topic": "T", "key": key, "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 2**62}


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_pull_returns_only_messages_that_satisfy_the_expression(client: Client, serialization: int) -> None:
    await send_numbered(client, 10)
    await client.send(body=b"without properties")
    ext = pull_ext(subscription="n > 2 AND n <> 5", **SQL)
    answer = await client.request(PULL, ext, serialization=serialization)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies(answer) == [b"3", b"4", b"6", b"7", b"8", b"9"]
    assert answer.ext == {
        "nextBeginOffset": "11",
        "minOffset": "0",
        "maxOffset": "11",
        "suggestWhichBrokerId": "0",
    }
    assert answer.serialization == serialization
    none = await client.request(PULL, pull_ext(offset=3, subscription="n < 3", sysFlag=HELD, **SQL))
    assert (none.code, none.remark, none.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", b"")
    assert none.ext["nextBeginOffset"] == "11"
    # The answer ends before the first wanted message that does not fit, not behind it.
    first = await client.pull(subscription="n >= 4", maxMsgNums=2, **SQL)
    assert bodies(first) == [b"4", b"5"]
    assert first.ext["nextBeginOffset"] == "6"


async def test_long_expression_is_applied_to_few_messages_at_a_time(tmp_path: Path) -> None:
    """Forty clients with such ones, each for 800 messages at a time, kept a leader from its heartbeats for seconds."""
    async with broker_client(tmp_path, limits=limited(consume={"sql_work_max": 1000})) as client:
        await send_numbered(client, 25)
        expression = " OR ".join(["n = 24"] * 10)
        offsets = [0]
        while offsets[-1] < 25:
            answer = await client.pull(offset=offsets[-1], subscription=expression, **SQL)
            offsets.append(int(answer.ext["nextBeginOffset"]))
        assert offsets == [0, 10, 20, 25]
        assert bodies(answer) == [b"24"]
        short = await client.pull(subscription="n = 24", **SQL)
        assert bodies(short) == [b"24"]


async def test_pull_limits_the_bytes_it_returns_and_the_bytes_it_filters(tmp_path: Path) -> None:
    async with broker_client(tmp_path, pull_bytes_max=100_000) as client:
        for number in range(30):
            await client.send(body=bytes(60_000), i=properties(n=str(number)))
        every = await client.pull(subscription="n >= 0", **SQL)
        assert (len(every.records), every.ext["nextBeginOffset"]) == (1, "1")
        capped = await client.pull(subscription="*", maxMsgBytes=1)
        assert len(capped.records) == 1
        offset, answers = 0, 0
        while offset < 29:
            last = await client.pull(offset=offset, subscription="n = 29", **SQL)
            answers += 1
            assert int(last.ext["nextBeginOffset"]) > offset
            offset = int(last.ext["nextBeginOffset"])
        assert last.records[0].properties["n"] == "29"
        assert answers == 2  # a megabyte is looked at for each


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_wrong_filter_expression_is_refused_with_a_reason(client: Client, serialization: int) -> None:
    for expression_type, expression, code, remark in (
        ("TAG", "A || B", ResponseCode.SUCCESS, None),
        ("TAG", "||", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
        ("SQL92", "a > 5", ResponseCode.SUCCESS, None),
        ("SQL92", "a > 5 AND b >", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "character 14"),
        ("SQL92", "", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "character 1"),
        ("SQL92", "(" * 16_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "character 101"),
        ("SQL92", "a" * 17_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "16384"),
        ("CLASS", "a.b.C", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "TAG, SQL92"),
    ):
        body = {
            "clientId": "c1",
            "group": "G",
            "namespace": "",
            "subscriptionData": {"topic": "T", "subString": expression, "expressionType": expression_type},
        }
        answer = await client.request(
            RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode(), serialization=serialization
        )
        assert answer.code == code, (expression[:20], answer)
        assert answer.remark == remark or str(remark) in str(answer.remark)
        assert (answer.ext, answer.body) == ({}, b"")
    for body_bytes, number in ((b"", 1), (b"[", 1), (b'{"subscriptionData":7}', 1), (b"{}", 0)):
        answer = await client.request(RequestCode.CHECK_CLIENT_CONFIG, body=body_bytes)
        assert answer.code == number, body_bytes


async def heartbeat(client: Client, *subscriptions: SubscriptionData, group: str = "G", **given: Any) -> Answer:
    consumers = [
        ConsumerData(group=group, subscriptions=subscriptions, **given),
        ConsumerData(group="Other", subscriptions=[SubscriptionData(topic="T")]),
    ]
    return await client.request(
        RequestCode.HEART_BEAT, body=HeartbeatData(client_id="c1", consumers=consumers).encode()
    )


async def test_pull_uses_filter_expression_of_heartbeat(client: Client) -> None:
    await send_numbered(client, 4)
    by_group = pull_ext(sysFlag=0, subVersion=7)
    assert (await heartbeat(client, SubscriptionData(topic="T", expression="n > 1", **_sql(7)))).code == 0
    assert bodies(await client.request(PULL, by_group)) == [b"2", b"3"]
    older = await client.request(PULL, by_group | {"subVersion": 8})
    assert older.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    # One that cannot be compiled is known as such, and the other group of the client is not touched.
    assert (await heartbeat(client, SubscriptionData(topic="T", expression="n >", **_sql(8)))).code == 0
    without = await client.request(PULL, by_group)
    assert without.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "character 4" in str(without.remark)
    assert len((await client.request(PULL, by_group | {"consumerGroup": "Other", "subVersion": 0})).records) == 4
    assert (await heartbeat(client, SubscriptionData(topic="T", expression="n = 0", **_sql(9)))).code == 0
    assert bodies(await client.request(PULL, by_group)) == [b"0"]


def _sql(version: int) -> dict[str, Any]:
    return {"expression_type": "SQL92", "version": version}


async def test_sql_can_be_switched_off(tmp_path: Path) -> None:
    async with broker_client(tmp_path, sql_filter=False) as client:
        await send_numbered(client, 1)
        await heartbeat(client, SubscriptionData(topic="T", expression="n = 0", **_sql(1)))
        asked = {"subscriptionData": {"topic": "T", "subString": "n = 0", "expressionType": "SQL92"}}
        for answer in (
            await client.pull(subscription="n = 0", **SQL),
            await client.pull(sysFlag=0),
            await client.request(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(asked).encode()),
        ):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "sql_filter" in str(answer.remark)
        assert len((await client.pull()).records) == 1


async def test_waiting_pull_is_answered_only_by_a_matching_message(broker: RunningBroker) -> None:
    waiting, client = await broker.connect(), await broker.connect()
    await client.create_topic("T", 1)
    opaque = await waiting.post(PULL, pull_ext(sysFlag=HELD, subscription="n = 7", **SQL))
    assert await waiting.alive()
    await send_numbered(client, 7)
    assert await held_pulls(client) == 1
    await client.send(body=b"wanted", i=properties(n="7"))
    answer = await waiting.answer(opaque)
    assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [b"wanted"])
    assert answer.ext["nextBeginOffset"] == "8"
    assert await held_pulls(client) == 0


async def test_pull_without_matches_continues_after_filtered_messages(broker: RunningBroker) -> None:
    waiting, client = await broker.connect(), await broker.connect()
    await client.create_topic("T", 1)
    ext = pull_ext(sysFlag=HELD, subscription="n = 7", suspendTimeoutMillis=300, **SQL)
    opaque = await waiting.post(PULL, ext)
    assert await waiting.alive()
    await send_numbered(client, 3)
    answer = await waiting.answer(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "3")


async def test_subscription_of_a_retry_topic_selects_everything(client: Client) -> None:
    await client.heartbeat("c1", "G")  # makes the group and its retry topic
    await client.send()  # behind them
    assert (await client.send("%RETRY%G", i=properties(TAGS="a", n="1"))).code == ResponseCode.SUCCESS
    assert len((await client.pull("%RETRY%G", subscription="b")).records) == 1
    assert len((await client.pull("%RETRY%G", subscription="n = 2", **SQL)).records) == 1


async def test_groups_are_not_created_when_automatic_creation_is_off(tmp_path: Path) -> None:
    async with broker_client(tmp_path, auto_create_groups=False) as client:
        await client.send()
        answer = await client.pull()
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
