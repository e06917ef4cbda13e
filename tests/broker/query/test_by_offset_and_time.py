"""Messages by place and by time over real sockets, in both header encodings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from tests.support.running_broker import Client, broker_client, properties, send_ext
from tests.support.timed_messages import BEGIN_MS, Clock, by_time, stored
from tests.support.waiting import until

ENCODINGS = pytest.mark.parametrize("serialization", [JSON, BINARY])


@ENCODINGS
async def test_broker_returns_a_record_by_its_physical_offset(client: Client, clock: Clock, serialization: int) -> None:
    places = await stored(client, clock, 0, 0, 1)
    for number, place in enumerate(places):
        answer = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place}, serialization=serialization)
        assert (answer.code, answer.ext, answer.serialization) == (ResponseCode.SUCCESS, {}, serialization)
        (record,) = answer.records
        assert (record.body, record.physical_offset) == (b"%d" % number, place)


async def test_broker_refuses_offsets_within_a_record(client: Client, clock: Clock) -> None:
    (first,) = await stored(client, clock, 0)
    (record,) = (await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": first})).records
    forged = (await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": first})).body
    # A body that looks like a record at its place is none: what a client wrote proves nothing.
    answer = await client.send(body=forged)
    behind = int(answer.ext["msgId"][16:], 16)
    wrong = [*range(first + 1, first + record.size), behind + 88, behind + 89, 0, 48, -1, -(2**63), 2**63 - 1]
    for offset in [*wrong, behind + 10_000]:
        answer = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b""), offset


@pytest.mark.slow
async def test_metadata_entries_are_not_returned_as_messages(client: Client, clock: Clock) -> None:
    (first,) = await stored(client, clock, 0)
    await stored(client, clock, 0)
    # Everything up to the second message is asked for: the topic's creation lies in front of the first.
    found = []
    asked = [await client.post(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at}) for at in range(first + 400)]
    for opaque in asked:
        answer = await client.answer(opaque)
        if answer.code == ResponseCode.SUCCESS:
            found += [record.topic for record in answer.records]
    assert found == ["T", "T"]


@ENCODINGS
async def test_broker_returns_the_earliest_store_time(client: Client, clock: Clock, serialization: int) -> None:
    await stored(client, clock, 7, 9)
    ext = {"topic": "T", "queueId": 0}
    answer = await client.request(RequestCode.GET_EARLIEST_MSG_STORETIME, ext, serialization=serialization)
    assert (answer.code, answer.ext) == (ResponseCode.SUCCESS, {"timestamp": str(BEGIN_MS + 7000)})
    for nothing in ({"topic": "T", "queueId": 1}, {"topic": "U", "queueId": 0}, {"topic": "T", "queueId": -1}):
        answer = await client.request(RequestCode.GET_EARLIEST_MSG_STORETIME, nothing, serialization=serialization)
        assert (answer.code, answer.ext) == (ResponseCode.SUCCESS, {"timestamp": "-1"})


@ENCODINGS
async def test_offsets_by_time_are_exact(client: Client, clock: Clock, serialization: int) -> None:
    seconds = [1, 2, 2, 2, 5]
    await stored(client, clock, *seconds)
    ext = {"topic": "T", "queueId": 0, "timestamp": BEGIN_MS + 2000}
    answer = await client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext, serialization=serialization)
    assert (answer.code, answer.ext) == (ResponseCode.SUCCESS, {"offset": "1"})
    times = [BEGIN_MS + 1000 * second for second in seconds]
    for ms in {each + step for each in times for step in (-1, 0, 1)} | {0, -1, -(2**63), 2**63 - 1}:
        lower = next((at for at, each in enumerate(times) if each >= ms), len(times))
        upper = max((at for at, each in enumerate(times) if each <= ms), default=0)
        assert (await by_time(client, ms)).ext == {"offset": str(lower)}, ms
        assert (await by_time(client, ms, boundaryType="lower")).ext == {"offset": str(lower)}, ms
        assert (await by_time(client, ms, boundaryType="UPPER")).ext == {"offset": str(upper)}, ms
    for nothing in ({"queueId": 1}, {"topic": "U"}, {"queueId": -1}):
        assert (await by_time(client, BEGIN_MS, **nothing)).ext == {"offset": "0"}


async def test_search_by_time_handles_falling_store_times(client: Client, clock: Clock) -> None:
    seconds = [1, 5, 9, 3, 4, 6, 2, 8]
    await stored(client, clock, *seconds)
    for wanted in range(11):
        found = int((await by_time(client, BEGIN_MS + 1000 * wanted)).ext["offset"])
        assert found == len(seconds) or seconds[found] >= wanted
        assert found == 0 or seconds[found - 1] < wanted


@pytest.mark.slow
async def test_search_by_time_skips_deleted_messages(tmp_path: Path, clock: Clock) -> None:
    given = {"segment_bytes": 128 * 1024, "message_bytes_max": 1024, "entry_bytes_max": 1024}
    given |= {"retention_bytes": 1024 * 1024, "delete_when": -1}
    async with broker_client(tmp_path, checkpoint_seconds=0.01, retention_check_seconds=0.01, **given) as client:
        for step in range(14):
            clock.now_ms = BEGIN_MS + step
            ext, body = send_ext(), bytes(1000)
            for opaque in [await client.post(RequestCode.SEND_MESSAGE_V2, ext, body) for _ in range(100)]:
                await client.answer(opaque)
        # With pauses: retention waits for the process that builds the key index, which has the lowest priority.
        await until(lambda: client.offset(RequestCode.GET_MIN_OFFSET))
        first = await client.offset(RequestCode.GET_MIN_OFFSET)
        answer = await client.request(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0})
        assert int(answer.ext["timestamp"]) >= BEGIN_MS + first // 100
        assert int((await by_time(client, BEGIN_MS)).ext["offset"]) >= first
        assert (await by_time(client, BEGIN_MS + 13)).ext == {"offset": "1300"}


@ENCODINGS
async def test_time_spans_of_a_group(client: Client, clock: Clock, serialization: int) -> None:
    await client.create_topic("T", 2)
    await stored(client, clock, 1, 2, 3)
    commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
    await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    clock.now_ms = BEGIN_MS + 10_000
    answer = await client.request(
        RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"}, serialization=serialization
    )
    assert answer.code == ResponseCode.SUCCESS
    assert json.loads(answer.body) == {
        "consumeTimeSpanSet": [
            {
                "messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 0},
                "minTimeStamp": BEGIN_MS + 1000,
                "maxTimeStamp": BEGIN_MS + 3000,
                "consumeTimeStamp": BEGIN_MS + 1000,
                "delayTime": 8000,
            },
            {
                "messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 1},
                "minTimeStamp": -1,
                "maxTimeStamp": -1,
                "consumeTimeStamp": -1,
                "delayTime": 0,
            },
        ]
    }
    unknown = await client.request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "U", "group": "G"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


@ENCODINGS
async def test_query_returns_entries_of_a_consume_queue(client: Client, clock: Clock, serialization: int) -> None:
    places = await stored(client, clock, 0, 0)
    await client.send(i=properties(TAGS="a"))
    await client.heartbeat("c", "G")
    ext = {"topic": "T", "queueId": 0, "index": 1, "count": 10, "consumerGroup": "G"}
    answer = await client.request(RequestCode.QUERY_CONSUME_QUEUE, ext, serialization=serialization)
    assert answer.code == ResponseCode.SUCCESS
    shown = json.loads(answer.body)
    assert (shown["minQueueIndex"], shown["maxQueueIndex"], shown["filterData"]) == (0, 3, None)
    assert shown["subscriptionData"]["topic"] == "T"
    first, second = shown["queueData"]
    assert (first["physicOffset"], first["tagsCode"], first["eval"]) == (places[1], 0, True)
    assert (first["msg"], first["bitMap"], first["extendDataJson"]) == (None, None, None)
    assert (second["tagsCode"], second["physicOffset"]) == (97, first["physicOffset"] + first["physicSize"] + 48)
    for wrong in ({"index": 3}, {"index": -1}, {"queueId": 9}, {"topic": "U"}):
        answer = await client.request(RequestCode.QUERY_CONSUME_QUEUE, ext | wrong)
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    many = await client.request(RequestCode.QUERY_CONSUME_QUEUE, ext | {"index": 0, "count": 2**31 - 1})
    assert len(json.loads(many.body)["queueData"]) == 3
