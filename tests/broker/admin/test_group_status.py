"""Who is in a group, how far it is, and resets: what tools and consoles ask, over real sockets in both encodings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from mq.protocol.wire import fastjson
from mq.protocol.wire.encoding import encode_request
from tests.support.running_broker import SUBSCRIPTION, Answer, Client, RunningBroker, broker_client, limited, running

COMMIT_OFFSET = 1
KEY = '{"brokerName":"broker-a","queueId":%d,"topic":"T"}'


async def member(broker: RunningBroker, client_id: str = "c1", **given: Any) -> Client:
    """A client with a consumer group G that subscribes T, and a producer group P."""
    client = await broker.connect()
    subscription = SubscriptionData(
        topic="T", expression="A || B", tags=("A", "B"), codes=(ord("A"), ord("B")), version=7
    )
    data = HeartbeatData(
        client_id=client_id,
        consumers=[ConsumerData(group="G", subscriptions=[subscription], **given)],
        producers=[ProducerData(group="P")],
    )
    body = data.encode().replace(b'"codeSet":["A","B"]', b'"codeSet":["65","66"]')
    assert (await client.request(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
    return client


async def commit(client: Client, offset: int, queue_id: int = 0, group: str = "G", topic: str = "T") -> Answer:
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    return await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def subscription_of(topic: str = "T") -> dict[str, Any]:
    return {
        "classFilterMode": False,
        "codeSet": [65, 66],
        "expressionType": "TAG",
        "subString": "A || B",
        "subVersion": 7,
        "tagsSet": ["A", "B"],
        "topic": topic,
    }


def connections_of(body: Any) -> list[dict[str, Any]]:
    assert all(each.pop("clientAddr").startswith("127.0.0.1:") for each in body["connectionSet"])
    connections: list[dict[str, Any]] = body["connectionSet"]
    return connections


def check_consumers(body: Any) -> None:
    assert connections_of(body) == [{"clientId": "c1", "language": "JAVA", "version": 409}]
    assert body["subscriptionTable"] == {"T": subscription_of()}
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert body["messageModel"] == "CLUSTERING"
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"


def check_producers(body: Any) -> None:
    assert connections_of(body) == [{"clientId": "c1", "language": "JAVA", "version": 409}]


def check_all_producers(body: Any) -> None:
    ((group, [producer]),) = body["data"].items()
    assert producer.pop("lastUpdateTimestamp") > 1_700_000_000_000
    assert group == "P"
    assert producer == {"clientId": "c1", "language": "JAVA", "remoteIP": "127.0.0.1", "version": 409}


def check_stats(body: Any) -> None:
    times = [row.pop("lastTimestamp") for row in body["offsetTable"].values()]
    assert body == {
        "consumeTps": 0.0,
        "offsetTable": {
            KEY % 0: {"brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2},
            KEY % 1: {"brokerOffset": 0, "consumerOffset": 0, "pullOffset": 0},
        },
    }
    assert times[0] > 1_700_000_000_000
    assert times[1] == 0


def check_all_stats(body: Any) -> None:
    (groups,) = body["consumeStatsList"]
    assert list(groups) == ["G"]
    check_stats(groups["G"][0])
    assert (body["totalDiff"], body["totalInflightDiff"]) == (1, 0)
    assert body["brokerAddr"].startswith("127.0.0.1:")


def equal(expected: Any) -> Callable[[Any], None]:
    def check(body: Any) -> None:
        assert body == expected

    return check


GROUP = {"consumerGroup": "G"}
QUESTIONS: list[tuple[RequestCode, dict[str, Any] | None, Callable[[Any], None]]] = [
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP, check_consumers),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"}, check_producers),
    (RequestCode.GET_ALL_PRODUCER_INFO, None, check_all_producers),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}, equal({"groupList": ["G", "Stored"]})),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "Nothing"}, equal({"groupList": []})),
    (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "G"}, equal({"topicList": ["T"]})),
    (
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        {"group": "G", "topic": "T"},
        equal({"group": "G", "subscriptionData": subscription_of(), "topic": "T"}),
    ),
    (RequestCode.GET_CONSUME_STATS, GROUP | {"topic": "T"}, check_stats),
    (RequestCode.GET_CONSUME_STATS, GROUP, check_stats),
    (RequestCode.GET_CONSUME_STATS, GROUP | {"topicList": "T;Nothing"}, check_stats),
    (
        RequestCode.GET_CONSUME_STATS,
        GROUP | {"topic": "Nothing"},
        equal({"consumeTps": 0.0, "offsetTable": {}}),
    ),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}, check_all_stats),
    (
        RequestCode.QUERY_CORRECTION_OFFSET,
        {"filterGroups": "", "compareGroup": "Nobody", "topic": "T"},
        equal({"correctionOffsets": {"0": 1}}),
    ),
    (
        RequestCode.QUERY_CORRECTION_OFFSET,
        {"filterGroups": "Stored,x", "compareGroup": "Stored", "topic": "T"},
        equal({"correctionOffsets": {"0": 2**63 - 1}}),
    ),
]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_broker_reports_the_state_of_its_groups(broker: RunningBroker, serialization: int) -> None:
    asking = await broker.connect()
    await asking.create_topic("T", 2)
    for _ in range(3):
        await asking.send()
    client = await member(broker)
    await commit(client, 2)
    await commit(asking, 1, group="Stored")
    for code, ext, check in QUESTIONS:
        answer = await asking.request(code, ext, serialization=serialization)
        assert (answer.code, answer.ext, answer.serialization) == (ResponseCode.SUCCESS, {}, serialization), code
        assert b" " not in answer.body.replace(b"A || B", b""), code
        check(fastjson.parse(answer.body))


async def test_requests_about_unknown_groups_are_refused(client: Client) -> None:
    await client.create_topic("T", 1)
    for code, ext, wanted in (
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP, ResponseCode.CONSUMER_NOT_ONLINE),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "G", "topic": "T"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "G", "topic": "U"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, GROUP | {"clientId": "c"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, GROUP | {"clientId": "c"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext(), ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, {}, ResponseCode.SYSTEM_ERROR),
    ):
        answer = await client.request(code, ext)
        assert answer.code == wanted, (code, answer)
        assert answer.remark, code


# -- what members are asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_commands_show_offsets_in_members_memory(broker: RunningBroker, serialization: int) -> None:
    asking = await broker.connect()
    await asking.create_topic("T", 1)
    one, two = await member(broker, "c1"), await member(broker, "c2")
    ext = {"topic": "T", "group": "G"}
    opaque = await asking.post(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext, serialization=serialization)
    for client, offset in ((one, 5), (two, 6)):
        question, _ = await client.question()
        assert (question.code, question.flag) == (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, 0)
        assert (question.ext.topic, question.ext.group) == ("T", "G")
        text = '{"consumerTable":{},"messageQueueTable":{' + KEY % 0 + f":{offset}}}}}"
        await client.reply(question, body=text.encode())
    answer = await asking.answer(opaque)
    assert (answer.code, answer.ext, answer.serialization) == (ResponseCode.SUCCESS, {}, serialization)
    table = '{"c1":{' + KEY % 0 + ':5},"c2":{' + KEY % 0 + ":6}}"
    assert answer.body.decode() == '{"consumerTable":' + table + ',"messageQueueTable":{}}'

    # One that talks nonsense and one that goes away are left out.
    opaque = await asking.post(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
    question, _ = await one.question()
    await one.reply(question, body=b"\xff[")
    await two.stream.aclose()
    assert json.loads((await asking.answer(opaque)).body)["consumerTable"] == {}
    opaque = await asking.post(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext | {"clientAddr": "c1"})
    await one.reply((await one.question())[0], body=b'{"messageQueueTable":{}}')
    assert json.loads((await asking.answer(opaque)).body)["consumerTable"] == {"c1": {}}


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_running_info_is_relayed(broker: RunningBroker, serialization: int) -> None:
    asking, client = await broker.connect(), await member(broker)
    ext = GROUP | {"clientId": "c1", "jstackEnable": True}
    opaque = await asking.post(RequestCode.GET_CONSUMER_RUNNING_INFO, ext, serialization=serialization)
    question, _ = await client.question()
    assert (question.code, question.ext.consumer_group) == (RequestCode.GET_CONSUMER_RUNNING_INFO, "G")
    assert (question.ext.client_id, question.ext.stack) == ("c1", True)
    await client.reply(question, body=b'{"jstack":"x"}', ext={"a": "b"}, remark="fine")
    answer = await asking.answer(opaque)
    assert answer[:1] + answer[2:] == (ResponseCode.SUCCESS, {"a": "b"}, "fine", b'{"jstack":"x"}', serialization)


async def test_message_is_consumed_directly(broker: RunningBroker) -> None:
    asking, client = await broker.connect(), await member(broker)
    await asking.create_topic("T", 1)
    sent = await asking.send(body=b"this one")
    ext = GROUP | {"clientId": "c1", "msgId": sent.ext["msgId"], "topic": "T"}
    opaque = await asking.post(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    question, body = await client.question()
    assert (question.ext.consumer_group, question.ext.client_id) == ("G", "c1")
    assert (question.ext.message_id, question.ext.broker_name) == (sent.ext["msgId"], "broker-a")
    assert body == (await asking.pull()).body
    await client.reply(question, ResponseCode.SYSTEM_ERROR, remark="no")
    answer = await asking.answer(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no")
    for message_id in ("x", "0" * 32, "7F0000010000000000000000FFFFFFFF", "-" * 32):
        answer = await asking.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext | {"msgId": message_id})
        assert answer.code == ResponseCode.SYSTEM_ERROR, message_id
    assert client.questions == []


async def test_silent_members_are_reported_after_a_timeout(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(upkeep={"relay_seconds": 0.01})) as broker:
        asking, client = await broker.connect(), await member(broker)
        ext = GROUP | {"clientId": "c1"}
        answer = await asking.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        question, _ = await client.question()
        await client.reply(question)  # too late: nobody waits any more
        assert await client.alive()


async def test_leaving_member_ends_the_operators_question(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(upkeep={"relay_seconds": 60.0})) as broker:
        asking, client = await broker.connect(), await member(broker)
        ext = GROUP | {"clientId": "c1"}
        opaque = await asking.post(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        stranger = await broker.connect()
        question, _ = await client.question()
        await stranger.reply(question, body=b"not asked")
        assert await stranger.alive()
        await client.stream.aclose()
        answer = await asking.answer(opaque)
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")


async def test_questions_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(net={"client_requests_max": 2})) as broker:
        asking, client = await broker.connect(), await member(broker)
        ext = GROUP | {"clientId": "c1"}
        for _ in range(2):
            await asking.post(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        answer = await asking.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        assert (answer.code, "BUSY" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        await client.reply((await client.question())[0])
        await client.alive()
        await asking.post(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        assert await asking.alive()


# -- resets ------------------------------------------------------------------------------------------------------------


def reset_ext(timestamp: int = -1, **given: Any) -> dict[str, Any]:
    return {"topic": "T", "group": "G", "timestamp": timestamp, "isForce": True} | given


async def reset(client: Client, timestamp: int = -1, **given: Any) -> dict[str, int]:
    """The offsets that a reset says it has set, by queue."""
    answer = await client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext(timestamp, **given))
    assert answer.code == ResponseCode.SUCCESS, answer
    table: dict[str, int] = fastjson.parse(answer.body)["offsetTable"]
    return table


async def store_times(client: Client, count: int) -> list[int]:
    """Send messages with at least two milliseconds between them; returns when they were stored."""
    for _ in range(count):
        await client.send()
        await trio.sleep(0.002)
    return [record.store_timestamp_ms for record in (await client.pull()).records]


async def test_offline_group_is_reset_to_the_millisecond(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=2) as client:
        times = await store_times(client, 4)
        await commit(client, 4)
        for timestamp, offset in (
            (times[2], 2), (times[2] + 1, 3), (times[1] + 1, 2), (0, 0), (times[3] + 1, 4), (times[1], 1), (-1, 4),
        ):  # fmt: skip
            assert await reset(client, timestamp) == {KEY % 0: offset, KEY % 1: 0}, timestamp
            assert await client.committed() == offset
            assert await client.committed(queue_id=1) == 0
    async with running(tmp_path) as broker:
        assert await (await broker.connect()).committed() == 4


async def test_reset_without_force_moves_offsets_only_backwards(client: Client) -> None:
    await client.create_topic("T", 1)
    times = await store_times(client, 3)
    await commit(client, 2)
    assert await reset(client, -1, isForce=False) == {KEY % 0: 2}
    assert await reset(client, times[1], isForce=False) == {KEY % 0: 1}
    assert await client.committed() == 1
    assert await reset(client, 0, queueId=0, offset=2) == {KEY % 0: 2}
    assert await reset(client, 0, queueId=0, offset=3) == {KEY % 0: 3}


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
async def test_members_are_notified_of_a_reset(broker: RunningBroker, language: str) -> None:
    asking = await broker.connect()
    await asking.create_topic("T", 1)
    await store_times(asking, 2)
    one, two = await member(broker, "c1"), await member(broker, "c2")
    ext = {name: str(value).lower() if value is True else str(value) for name, value in reset_ext(0).items()}
    data = encode_request(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 77, ext=ext | {"topic": "T", "group": "G"}, language=language
    )
    await asking.stream.send_all(data)
    assert fastjson.parse((await asking.answer(77)).body) == {"offsetTable": {KEY % 0: 0}}
    for client in (one, two):
        question, body = await client.question()
        assert (question.code, question.flag) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, 2)
        assert (question.ext.topic, question.ext.group) == ("T", "G")
        assert (question.ext.timestamp_ms, question.ext.force) == (0, True)
        if language == "CPP":
            row = {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}
            assert json.loads(body) == {"offsetTable": [row]}
        else:
            assert body.decode() == '{"offsetTable":{' + KEY % 0 + ":0}}"


async def test_running_consumer_cannot_undo_a_reset(tmp_path: Path) -> None:
    """It goes on committing what it did before, until it hears of it; then its next pull sends it to the new offset."""
    async with running(tmp_path, offset_commit_seconds=0.01) as broker:
        asking = await broker.connect()
        await asking.create_topic("T", 1)
        await store_times(asking, 4)
        client = await member(broker)
        await commit(client, 3)
        await reset(asking, 0, queueId=0, offset=1)
        await commit(client, 4)
        assert await asking.committed() == 1
        for _ in range(2):
            answer = await client.pull(offset=4, sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=4)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
        assert await asking.committed() == 1
        assert len((await client.pull(offset=1)).records) == 3
        assert (await client.pull(offset=4)).code == ResponseCode.PULL_NOT_FOUND
        await commit(client, 2)
        assert await asking.committed() == 2
        assert (await client.pull(offset=3)).code == ResponseCode.SUCCESS

    async with broker_client(tmp_path) as client:
        assert (await client.pull(offset=4)).code == ResponseCode.PULL_NOT_FOUND
        await reset(client, 0)
    async with broker_client(tmp_path) as client:  # a reset outlives the leader that did it
        await commit(client, 4)
        assert (await client.pull(offset=4)).code == ResponseCode.PULL_OFFSET_MOVED
        assert await client.committed() == 0


async def test_invalid_resets_are_refused(client: Client) -> None:
    await client.create_topic("T", 1)
    await client.fill(1)
    await commit(client, 1)
    last_index = (await client.info())["raftmq.lastIndex"]
    for given in (
        {"topic": "Nothing"},
        {"topic": "../T"},
        {"group": "Nobody"},
        {"group": "../G"},
        {"group": ""},
        {"timestamp": -2},
        {"timestamp": -(2**63)},
        {"timestamp": 2**64},
        {"queueId": 1},
        {"queueId": 2**31 - 1},
        {"queueId": 0, "offset": 2},
        {"queueId": 0, "offset": 2**40},
    ):
        answer = await client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext() | given)
        assert answer.code == ResponseCode.SYSTEM_ERROR, (given, answer)
    assert (await client.info())["raftmq.lastIndex"] == last_index


async def test_offsets_are_cloned(client: Client) -> None:
    for topic in ("T", "U"):
        await client.create_topic(topic, 2)
        await client.fill(9, topic, 1)
        await commit(client, 5, 1, topic=topic)
    await commit(client, 9, 1, "Other")
    ext = {"srcGroup": "G", "destGroup": "Other", "topic": "T", "offline": False}
    answer = await client.request(RequestCode.CLONE_GROUP_OFFSET, ext)
    assert (answer.code, answer.ext, answer.body) == (ResponseCode.SUCCESS, {}, b"")
    assert await client.committed("Other", queue_id=1) == 5
    assert await client.committed("Other", "U", 1, setZeroIfNotFound=False) is None
    assert (await client.request(RequestCode.CLONE_GROUP_OFFSET, ext | {"topic": None})).code == 0
    assert await client.committed("Other", "U", 1) == 5
    assert (await client.request(RequestCode.CLONE_GROUP_OFFSET, ext | {"destGroup": "../x"})).code == 1


async def test_group_is_forbidden_to_read_a_topic(client: Client) -> None:
    await client.create_topic("T", 1)
    await client.send()

    async def forbidden(**given: Any) -> Any:
        ext = {"group": "G", "topic": "T"} | given
        answer = await client.request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
        return json.loads(answer.body) if answer.code == 0 else answer.code

    assert await forbidden() == {"group": "G", "readable": True, "topic": "T"}
    assert await forbidden(readable=False) == {"group": "G", "readable": False, "topic": "T"}
    assert (await client.pull()).code == ResponseCode.NO_PERMISSION
    assert (await client.pull(consumerGroup="Other")).code == ResponseCode.SUCCESS
    assert await forbidden(readable=True) == {"group": "G", "readable": True, "topic": "T"}
    assert (await client.pull()).code == ResponseCode.SUCCESS
    assert await forbidden(readable=False, topic="Nothing") == ResponseCode.TOPIC_NOT_EXIST
    assert await forbidden(readable=False, group="../G") == ResponseCode.SYSTEM_ERROR
