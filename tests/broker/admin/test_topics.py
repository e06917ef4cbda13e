"""Administration of topics and groups over real sockets, in both header encodings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode as Code
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.wire import fastjson
from tests.support.running_broker import Answer, Client, RunningBroker, broker_client, limited

ENCODINGS = pytest.mark.parametrize("serialization", [JSON, BINARY])

TOPIC = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 2,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 1,
    "order": True,
}
SHOWN_TOPIC = {
    "topicName": "T",
    "readQueueNums": 4,
    "writeQueueNums": 2,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 1,
    "order": True,
    "attributes": {},
}
GROUP = {
    "groupName": "G",
    "retryMaxTimes": 3,
    "retryQueueNums": 2,
    "consumeBroadcastEnable": False,
    "consumeMessageOrderly": True,
}
SHOWN_GROUP = {
    "groupName": "G",
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": False,
    "consumeMessageOrderly": True,
    "retryQueueNums": 2,
    "retryMaxTimes": 3,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "attributes": {},
}


def text(value: object) -> bytes:
    return json.dumps(value).encode()


def plain_success(answer: Answer) -> bool:
    return (answer.code, answer.ext, answer.remark, answer.body) == (0, {}, None, b"")


async def topic(client: Client, name: str = "T") -> Any:
    answer = await client.request(Code.GET_TOPIC_CONFIG, {"topic": name})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS, answer
    return json.loads(answer.body)


async def group(client: Client, name: str = "G") -> Any:
    answer = await client.request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
    if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS, answer
    return json.loads(answer.body)


@ENCODINGS
async def test_topic_is_created_changed_shown_and_deleted(client: Client, serialization: int) -> None:

    async def ask(code: Code, ext: Mapping[str, Any] | None = None, body: bytes = b"") -> Answer:
        return await client.request(code, dict(ext) if ext else None, body, serialization=serialization)

    assert plain_success(await ask(Code.UPDATE_AND_CREATE_TOPIC, TOPIC))
    assert await topic(client) == SHOWN_TOPIC
    everything = await ask(Code.GET_ALL_TOPIC_CONFIG)
    table = json.loads(everything.body)
    assert table["topicConfigTable"]["T"] == SHOWN_TOPIC
    assert everything.ext == {"totalTopicNum": str(len(table["topicConfigTable"]))}
    assert set(table["dataVersion"]) == {"counter", "timestamp", "stateVersion"}
    changed = TOPIC | {"readQueueNums": 8, "perm": 4, "attributes": "+message.type=FIFO,+a=b"}
    assert plain_success(await ask(Code.UPDATE_AND_CREATE_TOPIC, changed))
    assert plain_success(await ask(Code.UPDATE_AND_CREATE_TOPIC, changed | {"attributes": "-a"}))
    shown = SHOWN_TOPIC | {"readQueueNums": 8, "perm": 4, "attributes": {"message.type": "FIFO"}}
    assert await topic(client) == shown
    assert json.loads((await ask(Code.GET_ALL_TOPIC_CONFIG)).body)["dataVersion"] != table["dataVersion"]
    for _ in range(2):
        assert plain_success(await ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
        assert await topic(client) is None
    missing = await ask(Code.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


@ENCODINGS
async def test_several_topics_are_created_or_none(client: Client, serialization: int) -> None:
    body = {"topicConfigList": [{"topicName": name, "perm": 6} for name in ("A", "B", "C")]}
    code = Code.UPDATE_AND_CREATE_TOPIC_LIST
    assert plain_success(await client.request(code, body=text(body), serialization=serialization))
    assert [(await topic(client, name))["readQueueNums"] for name in ("A", "B", "C")] == [16, 16, 16]
    body = {"topicConfigList": [{"topicName": "D"}, {"topicName": "../E"}]}
    answer = await client.request(code, body=text(body), serialization=serialization)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert await topic(client, "D") is None


@ENCODINGS
async def test_ends_of_a_topics_queues(broker: RunningBroker, client: Client, serialization: int) -> None:
    await client.request(Code.UPDATE_AND_CREATE_TOPIC, TOPIC)
    for _ in range(3):
        await client.send("T", e=1)
    answer = await client.request(Code.GET_TOPIC_STATS_INFO, {"topic": "T"}, serialization=serialization)
    assert (answer.code, answer.ext) == (0, {})
    name = broker.settings.group
    stock = b'{"offsetTable":{{"brokerName":"%s","queueId":0,"topic":"T"}:{' % name.encode()
    assert answer.body.startswith(stock), "Go cuts this text by hand"
    rows = {json.loads(key)["queueId"]: ends for key, ends in fastjson.parse(answer.body)["offsetTable"].items()}
    assert rows[0] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    assert (rows[1]["minOffset"], rows[1]["maxOffset"]) == (0, 3)
    newest = (await client.pull("T", 1, 2)).records[0].store_timestamp_ms
    assert rows[1]["lastUpdateTimestamp"] == newest
    assert len(rows) == 2


@ENCODINGS
async def test_groups_are_created_changed_shown_and_deleted(client: Client, serialization: int) -> None:

    async def ask(code: Code, ext: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        return await client.request(code, ext, body, serialization=serialization)

    await client.create_topic("T")
    assert plain_success(await ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, text(GROUP)))
    assert await group(client) == SHOWN_GROUP
    several = {"groupConfigList": [{"groupName": name} for name in ("H", "I")]}
    assert plain_success(await ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, text(several)))
    everything = await ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = json.loads(everything.body)
    assert everything.ext == {"totalGroupNum": "3"}
    assert sorted(table["subscriptionGroupTable"]) == ["G", "H", "I"]
    assert table["subscriptionGroupTable"]["G"] == SHOWN_GROUP
    assert table["forbiddenTable"] == {}
    await client.fill(1)
    for name, flag, left in (("G", {}, 1), ("H", {"removeOffset": True}, 0), ("I", {"cleanOffset": True}, 0)):
        where = {"consumerGroup": name, "topic": "T", "queueId": 0}
        await client.request(Code.UPDATE_CONSUMER_OFFSET, where | {"commitOffset": 1})
        assert plain_success(await ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": name} | flag))
        assert await group(client, name) is None
        assert await client.committed(name, "T") == left


@ENCODINGS
async def test_broker_reports_its_offsets_and_system_topics(
    broker: RunningBroker, client: Client, serialization: int
) -> None:
    await client.create_topic("T", 2)
    await client.fill(5, queue_id=1)
    await client.request(
        Code.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": 1, "commitOffset": 5}
    )
    answer = await client.request(Code.GET_ALL_CONSUMER_OFFSET, serialization=serialization)
    assert json.loads(answer.body)["offsetTable"] == {"T@G": {"1": 5}}
    answer = await client.request(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, serialization=serialization)
    listed = json.loads(answer.body)["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", broker.settings.group, broker.settings.cluster} <= set(listed)
    assert "T" not in listed


INVALID, ERROR = ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR
PUT_TOPIC, PUT_TOPICS = Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST
PUT_GROUP, PUT_GROUPS = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
LONG = "x" * 300
MODE = {"topic": "TBW102", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}

REFUSED: list[tuple[Code, dict[str, Any] | None, bytes, ResponseCode, str]] = [
    *((PUT_TOPIC, TOPIC | {"topic": name}, b"", INVALID, "characters") for name in ("../etc", "a.b", "a b", LONG)),
    *((PUT_TOPIC, TOPIC | {"topic": name}, b"", INVALID, "system") for name in ("TBW102", "rmq_sys_x", "broker-a")),
    *((PUT_TOPIC, TOPIC | {"readQueueNums": count}, b"", INVALID, "1 to 1024") for count in (-1, 0, 1025, 2**31 - 1)),
    *((PUT_TOPIC, TOPIC | {"writeQueueNums": count}, b"", INVALID, "1 to 1024") for count in (-(2**31), 0, 1025)),
    (PUT_TOPIC, TOPIC | {"readQueueNums": 2**31}, b"", ERROR, "readQueueNums"),
    (PUT_TOPIC, TOPIC | {"perm": 8}, b"", INVALID, "perm is 8"),
    (PUT_TOPIC, TOPIC | {"topicSysFlag": -1}, b"", INVALID, "sys_flag is -1"),
    (PUT_TOPIC, TOPIC | {"topicFilterType": "X"}, b"", INVALID, "MULTI_TAG"),
    (PUT_TOPIC, TOPIC | {"attributes": "message.type=FIFO"}, b"", INVALID, "attribute"),
    (PUT_TOPIC, TOPIC | {"attributes": "+" + "k" * 1024 + "=v"}, b"", INVALID, "attributes is 1025"),
    (PUT_TOPIC, {"topic": "T"}, b"", ERROR, "defaultTopic"),
    (PUT_TOPICS, None, b"no json", ERROR, "JSON"),
    (PUT_TOPICS, None, b"[" * 2_000_000, ERROR, "JSON"),
    (PUT_TOPICS, None, b"{}", INVALID, "0 topics"),
    (PUT_TOPICS, None, text({"topicConfigList": [{"topicName": "T"}] * 1001}), INVALID, "1001 topics"),
    (Code.DELETE_TOPIC_IN_BROKER, {"topic": "../.."}, b"", INVALID, "characters"),
    (Code.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}, b"", ERROR, "system"),
    (Code.DELETE_TOPIC_IN_BROKER, {"topic": "broker-a"}, b"", ERROR, "system"),
    (Code.GET_TOPIC_CONFIG, {"topic": LONG}, b"", ResponseCode.TOPIC_NOT_EXIST, "does not exist"),
    (Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": LONG}, b"", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "not exist"),
    *((PUT_GROUP, None, text(GROUP | {"groupName": name}), INVALID, "characters") for name in ("../g", "a.b", LONG)),
    (PUT_GROUP, None, text(GROUP | {"groupName": ""}), INVALID, "no name"),
    (PUT_GROUP, None, text(GROUP | {"retryQueueNums": -1}), INVALID, "retry_queues is -1"),
    (PUT_GROUP, None, text(GROUP | {"retryMaxTimes": -5}), INVALID, "retry_times_max is -5"),
    (PUT_GROUP, None, text(GROUP | {"retryMaxTimes": 2**40}), ERROR, "retryMaxTimes"),
    (PUT_GROUP, None, text(GROUP | {"retryMaxTimes": 2**70}), ERROR, "retryMaxTimes"),
    (PUT_GROUP, None, text(GROUP | {"brokerId": 2**63}), ERROR, "brokerId"),
    (PUT_GROUP, None, text(GROUP | {"whichBrokerWhenConsumeSlowly": -(2**70)}), ERROR, "whichBrokerWhenConsumeSlowly"),
    (PUT_GROUP, None, b"", ERROR, "JSON"),
    (PUT_GROUP, None, b'{"a":' * 100_000, ERROR, "JSON"),
    (PUT_GROUPS, None, text({"groupConfigList": [{"groupName": "g"}] * 1001}), INVALID, "1001 groups"),
    (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "../g"}, b"", INVALID, "characters"),
    (Code.SET_MESSAGE_REQUEST_MODE, None, text(MODE | {"mode": "PUSH"}), INVALID, "mode is 'PUSH'"),
    (Code.SET_MESSAGE_REQUEST_MODE, None, text(MODE | {"topic": "%RETRY%G"}), ResponseCode.NO_PERMISSION, "retry"),
    (Code.SET_MESSAGE_REQUEST_MODE, None, text(MODE | {"topic": "N"}), ResponseCode.TOPIC_NOT_EXIST, "N does not"),
    (Code.SET_MESSAGE_REQUEST_MODE, None, text(MODE | {"popShareQueueNum": 2**31}), ERROR, "popShareQueueNum"),
    (Code.SET_MESSAGE_REQUEST_MODE, None, b"no json", ERROR, "JSON"),
]

SYSTEM_TOPICS = 12


@ENCODINGS
async def test_refusals_leave_no_trace(client: Client, serialization: int) -> None:
    last_index = (await client.info())["raftmq.lastIndex"]
    for code, ext, body, expected, remark in REFUSED:
        answer = await client.request(code, ext, body, serialization=serialization)
        assert (answer.code, remark in str(answer.remark)) == (expected, True), (code, ext, body[:80], answer)
    assert (await client.info())["raftmq.lastIndex"] == last_index


async def test_topics_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(state={"topics_max": SYSTEM_TOPICS + 2})) as client:
        # All are sent before the first is answered: each finds room when it comes, only two when it is stored.
        posted = [await client.post(PUT_TOPIC, TOPIC | {"topic": f"T{number}"}) for number in range(5)]
        answers = [await client.answer(opaque) for opaque in posted]
        assert sorted(answer.code for answer in answers) == [0, 0, 1, 1, 1]
        table = json.loads((await client.request(Code.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
        assert len(table) == SYSTEM_TOPICS + 2


async def test_groups_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(state={"groups_max": 2})) as client:
        posted = [await client.post(PUT_GROUP, None, text({"groupName": f"G{number}"})) for number in range(5)]
        answers = [await client.answer(opaque) for opaque in posted]
        assert sorted(answer.code for answer in answers) == [0, 0, 1, 1, 1]


async def at_once(client: Client, *requests: tuple[Any, ...]) -> list[Answer]:
    """The answers to requests that come in one piece, so that one entry has all their commands."""
    frames = [client.frame(*request) for request in requests]
    await client.stream.send_all(b"".join(data for _, data in frames))
    return [await client.answer(opaque) for opaque, _ in frames]


async def test_topic_over_the_limit_is_refused_despite_a_concurrent_deletion(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(state={"topics_max": SYSTEM_TOPICS + 1})) as client:
        first, second = ((PUT_TOPIC, TOPIC | {"topic": name}) for name in ("A", "B"))
        answers = await at_once(client, first, second, (Code.DELETE_TOPIC_IN_BROKER, {"topic": "A"}))
        table = json.loads((await client.request(Code.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
        assert "B" not in table
        assert answers[1].code == ERROR
        assert "send the request again" in str(answers[1].remark)
        assert (await client.request(*second)).code == 0


async def test_group_over_the_limit_is_refused_despite_a_concurrent_deletion(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(state={"groups_max": 1})) as client:
        first, second = ((PUT_GROUP, None, text({"groupName": name})) for name in ("A", "B"))
        answers = await at_once(client, first, second, (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "A"}))
        assert (await client.request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "B"})).code != 0
        assert answers[1].code == ERROR
        assert "send the request again" in str(answers[1].remark)
        assert (await client.request(*second)).code == 0


async def test_creating_and_deleting_a_topic_in_one_entry_both_succeed(client: Client) -> None:
    delete = (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    answers = await at_once(client, (PUT_TOPIC, TOPIC), delete)
    assert [answer.code for answer in answers] == [0, 0], answers
    assert await topic(client) is None
    # Also if the first request changes nothing.
    assert (await client.request(PUT_TOPIC, TOPIC)).code == 0
    answers = await at_once(client, (PUT_TOPIC, TOPIC), delete)
    assert [answer.code for answer in answers] == [0, 0], answers


async def test_creating_and_deleting_a_group_in_one_entry_both_succeed(client: Client) -> None:
    delete = (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    answers = await at_once(client, (PUT_GROUP, None, text(GROUP)), delete)
    assert [answer.code for answer in answers] == [0, 0], answers
    assert await group(client) is None


async def test_deleting_a_topic_deletes_retry_topics_of_pop_groups(client: Client) -> None:
    for name in ("T", "b_c", "c"):
        await client.create_topic(name, 1)
    for name in ("G", "a", "a_b", "G_c", "keeps"):
        await client.request(PUT_GROUP, None, text({"groupName": name}))
    await client.request(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "keeps"})
    offset = {"topic": "T", "queueId": 0, "commitOffset": 0}
    assert (await client.request(Code.UPDATE_CONSUMER_OFFSET, offset | {"consumerGroup": "keeps"})).code == 0
    retries = {"%RETRY%G_T", "%RETRY%keeps_T", "%RETRY%a_b_c", "%RETRY%G_c", "%RETRY%no_T"}
    for name in retries:
        await client.create_topic(name, 1)

    async def left() -> set[str]:
        table = json.loads((await client.request(Code.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
        return {name for name in retries if name in table}

    assert (await client.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert await left() == {"%RETRY%a_b_c", "%RETRY%G_c", "%RETRY%no_T"}, "also of a group with only offsets"
    # Groups a and a_b share a name: with topic b_c, and with topic c, of which a_b has read.
    read = {"topic": "c", "queueId": 0, "commitOffset": 0, "consumerGroup": "a_b"}
    assert (await client.request(Code.UPDATE_CONSUMER_OFFSET, read)).code == 0
    assert (await client.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "b_c"})).code == 0
    assert "%RETRY%a_b_c" in await left()
    # %RETRY%G_c is the retry topic of the group G_c, which pulls.
    assert (await client.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "c"})).code == 0
    assert await left() == {"%RETRY%G_c", "%RETRY%no_T"}


async def test_topics_and_groups_outlive_a_restart(tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    async with broker_client(tmp_path, **given) as client:
        await client.request(PUT_TOPIC, TOPIC | {"attributes": "+a=b", "topicFilterType": "MULTI_TAG"})
        await client.request(PUT_GROUP, None, text(GROUP))
        shown = await topic(client)
    async with broker_client(tmp_path, **given) as client:
        assert shown["attributes"] == {"a": "b"}
        assert await topic(client) == shown
        assert await group(client) == SHOWN_GROUP


async def test_recreated_topic_is_empty(client: Client) -> None:
    await client.create_topic("T")
    await client.send("T", b"old", e=0)
    await client.request(
        Code.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
    )
    await client.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await client.create_topic("T")
    assert await client.committed("G", "T") == await client.offset(Code.GET_MIN_OFFSET) == 1
    assert await client.offset(Code.GET_MAX_OFFSET) == 1
    sent = await client.send("T", b"new", e=0)
    answer = await client.pull("T", 0, int(sent.ext["queueOffset"]))
    assert [record.body for record in answer.records] == [b"new"]
