"""Messages that consumers give back, through a real broker under a clock that the test moves."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.messages.delay import DELAY_LEVELS_MS
from mq.protocol.messages.records import HEAD, MAGIC_V1, StoredMessage
from mq.protocol.names import METADATA_TOPIC, SCHEDULE_TOPIC
from raftlog import Refusal
from raftlog.consensus.raft import RaftCore
from tests.support.running_broker import Answer, Client, broker_client, properties
from tests.support.stored_messages import stored, wait_stored
from tests.support.waiting_messages import WallClock, beats

RETRY, DEAD = "%RETRY%G", "%DLQ%G"


async def give_back(client: Client, message: StoredMessage | int, *, serialization: int = JSON, **given: Any) -> Answer:
    offset = message if isinstance(message, int) else message.physical_offset
    ext = {"offset": offset, "group": "G", "delayLevel": 0, "unitMode": False} | given
    return await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext, serialization=serialization)


async def one_message(client: Client, **given: Any) -> StoredMessage:
    assert (await client.send(body=b"body", **given)).code == 0
    return (await stored(client))[-1]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_message_given_back_is_redelivered_later(client: Client, clock: WallClock, serialization: int) -> None:
    await client.heartbeat("c", "G")
    assert (await client.send(body=b"body", e=1, h=9, i=properties(TAGS="x", UNIQ_KEY="0A0B"))).code == 0
    [first] = await stored(client, "T", 1)
    answer = await give_back(client, first, serialization=serialization, originMsgId="?", maxReconsumeTimes=16)
    assert (answer.code, answer.ext, answer.body, answer.serialization) == (0, {}, b"", serialization)
    clock.now_ms += DELAY_LEVELS_MS[2] - 1
    await beats(client)
    assert await stored(client, RETRY) == []
    clock.now_ms += 1
    [again] = await wait_stored(client, 1, RETRY)
    assert (again.body, again.flag, again.sys_flag) == (first.body, 9, first.sys_flag)
    assert (again.born_host, again.born_timestamp_ms) == (first.born_host, first.born_timestamp_ms)
    assert (again.reconsume_times, again.queue_id) == (1, 0)
    assert again.properties == {
        "TAGS": "x",
        "UNIQ_KEY": "0A0B",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": first.offset_message_id,
        "DELAY": "3",
        "RAFTMQ_ORIGIN_BROKER": "broker-a",
        "RAFTMQ_ORIGIN_QUEUE": "1",
        "RAFTMQ_ORIGIN_OFFSET": "0",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    assert len((await client.pull(RETRY, subscription="x")).records) == 1


async def test_each_retry_waits_longer_until_the_last_failure(client: Client, clock: WallClock) -> None:
    first = message = await one_message(client)
    for failures in range(16):
        assert (await give_back(client, message)).code == 0
        clock.now_ms += DELAY_LEVELS_MS[min(3 + failures, 18) - 1] - 1
        await beats(client)
        assert len(await stored(client, RETRY)) == failures
        clock.now_ms += 1
        message = (await wait_stored(client, failures + 1, RETRY))[-1]
        assert message.reconsume_times == failures + 1
    assert (await give_back(client, message)).code == 0
    [dead] = await stored(client, DEAD)
    assert (dead.body, dead.reconsume_times, dead.queue_id) == (b"body", 17, 0)
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
    assert "DELAY" not in dead.properties
    said = {
        "RAFTMQ_DEAD_REASON": "given up after 17 deliveries",
        "RAFTMQ_DEAD_ATTEMPTS": "17",
        "RAFTMQ_DEAD_MS": str(clock.now_ms),
        "RAFTMQ_DEAD_GROUP": "G",
        "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": first.offset_message_id,
        "RAFTMQ_ORIGIN_BROKER": "broker-a",
        "RAFTMQ_ORIGIN_QUEUE": str(first.queue_id),
        "RAFTMQ_ORIGIN_OFFSET": str(first.queue_offset),
    }
    assert said.items() <= dead.properties.items()
    assert "RAFTMQ_FAILURE" not in dead.properties
    clock.now_ms += 10_000_000
    await beats(client)
    assert (len(await stored(client, RETRY)), len(await stored(client, DEAD))) == (16, 1)


async def test_dead_letter_names_the_last_failure(client: Client, clock: WallClock) -> None:
    message = await one_message(client)
    failure = "ValueError: a\x01b\x02c\n" + "\u20ac" * 400
    assert (await give_back(client, message, raftmqFailure=failure, raftmqAttempts=7)).code == 0
    clock.now_ms += DELAY_LEVELS_MS[2]
    [again] = await wait_stored(client, 1, RETRY)
    assert again.properties["RAFTMQ_FAILURE"].startswith("ValueError: a b c \u20ac")
    assert (await give_back(client, again, delayLevel=-1, raftmqFailure="KeyError: 5", raftmqAttempts=7)).code == 0
    [dead] = await stored(client, DEAD)
    assert (dead.properties["RAFTMQ_FAILURE"], dead.properties["RAFTMQ_DEAD_ATTEMPTS"]) == ("KeyError: 5", "7")
    assert dead.properties["RAFTMQ_ORIGIN_OFFSET"] == str(message.queue_offset)


async def test_dead_letter_from_a_consumer_copy_names_its_reason(client: Client, clock: WallClock) -> None:
    await client.heartbeat("c", "G")
    await client.create_topic("Behind")
    text = properties(UNIQ_KEY="0A0B", RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="0C", RAFTMQ_FAILURE="ValueError: x")
    assert (await client.send(RETRY, i=text, j=17, l=16)).code == 0
    [dead] = await stored(client, DEAD)
    said = {"RAFTMQ_DEAD_REASON": "given up after 17 deliveries", "RAFTMQ_DEAD_ATTEMPTS": "17"}
    said |= {"RAFTMQ_DEAD_GROUP": "G", "DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "0C"}
    said |= {"RAFTMQ_FAILURE": "ValueError: x", "RAFTMQ_DEAD_MS": str(clock.now_ms)}
    assert said.items() <= dead.properties.items()


async def test_consumer_chooses_delay_and_number_of_retries(client: Client, clock: WallClock) -> None:
    message = await one_message(client, j=2)
    assert (await give_back(client, message, delayLevel=1, maxReconsumeTimes=3)).code == 0
    clock.now_ms += 1000
    [again] = await wait_stored(client, 1, RETRY)
    assert again.reconsume_times == 3
    assert (await give_back(client, again, delayLevel=1, maxReconsumeTimes=3)).code == 0
    assert len(await stored(client, DEAD)) == 1
    assert (await give_back(client, message, delayLevel=-1)).code == 0
    assert len(await stored(client, DEAD)) == 2
    assert (await give_back(client, message, delayLevel=2**31 - 1)).code == 0
    assert len(await stored(client, SCHEDULE_TOPIC, 17)) == 1


@pytest.mark.parametrize("times", [2**31 - 1, 2**31 - 2, -1, -(2**31)])
async def test_reconsume_limit_accepts_any_32_bit_number(client: Client, clock: WallClock, times: int) -> None:
    message = await one_message(client, j=times)
    for limit in (2**31 - 1, -(2**31)):
        assert (await give_back(client, message, maxReconsumeTimes=limit)).code == 0
    [*_, dead] = await stored(client, DEAD)
    assert dead.reconsume_times == min(times + 1, 2**31 - 1)


async def test_giving_back_a_nonexistent_message_is_refused(client: Client, clock: WallClock) -> None:
    await client.heartbeat("c", "G")
    real = await one_message(client)
    inner = bytearray((await client.pull()).body)
    # The last body is a whole record, which says that it is where it is.
    outer: list[StoredMessage] = []
    for _ in range(3):
        if len(outer) > 1:
            at = 2 * outer[1].physical_offset - outer[0].physical_offset + HEAD.size
            inner[28:36] = at.to_bytes(8, "big")
        await client.send("Outer", bytes(inner))
        outer = await stored(client, "Outer")
    assert outer[2].physical_offset + HEAD.size == at
    assert outer[2].body[28:36] == at.to_bytes(8, "big")
    end = int((await client.info())["raftmq.endPosition"])
    offsets = {-1, -(2**63), 0, 1, end - 91, end - 90, end - 1, end, end + 1, 2**63 - 1}
    offsets |= set(range(real.physical_offset + 1, real.physical_offset + real.size)) | {at}
    for offset in offsets:
        answer = await give_back(client, offset)
        assert (answer.code, "no message" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), offset
    assert (await give_back(client, real)).code == 0


async def test_record_of_the_broker_itself_cannot_be_read(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, queues=1) as client:
        log = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").glob("0*")))
        magic = log.find(struct.pack(">i", MAGIC_V1))
        found = 0
        while magic >= 0:
            found += 1
            assert log[magic + 24 : magic + 32] == (magic - 4).to_bytes(8, "big")
            answer = await give_back(client, magic - 4)
            assert (answer.code, "no message" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            magic = log.find(struct.pack(">i", MAGIC_V1), magic + 1)
        assert found > 5
        assert log.count(METADATA_TOPIC.encode()) == found


async def test_giving_back_to_unknown_group_or_topic_is_refused(client: Client, clock: WallClock) -> None:
    message = await one_message(client)
    for group in ("", "a b", "x" * 121, "a/b", "\u20ac"):
        assert (await give_back(client, message, group=group)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await give_back(client, message, group="New", delayLevel=1)).code == 0
    clock.now_ms += 1000
    assert len(await wait_stored(client, 1, "%RETRY%New")) == 1
    await client.create_topic(RETRY, perm=4)
    assert (await give_back(client, message)).code == ResponseCode.NO_PERMISSION


async def test_client_may_send_to_the_retry_topic_itself(client: Client, clock: WallClock) -> None:
    text = properties(DELAY="4", UNIQ_KEY="0A0B", RETRY_TOPIC="T", TAGS="x")
    answer = await client.send(RETRY, i=text, j=2, l=16)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await client.heartbeat("c", "G")
    await client.create_topic("Behind")  # what is stored behind the group
    assert (await client.send(RETRY, i=text, j=2, l=16)).code == 0
    clock.now_ms += DELAY_LEVELS_MS[3]
    [again] = await wait_stored(client, 1, RETRY)
    assert (again.reconsume_times, again.properties["RETRY_TOPIC"]) == (2, "T")
    assert (await client.send(RETRY, j=2, l=3)).code == 0
    assert len(await stored(client, RETRY)) == 2
    more: list[dict[str, Any]] = [{"j": 3, "l": 3}, {"j": 16}]
    for ext in more:
        answer = await client.send(RETRY, i=text, **ext)
        assert (answer.code, answer.ext["queueId"], answer.ext["transactionId"]) == (0, "0", "0A0B")
    dead = await stored(client, DEAD)
    assert [message.reconsume_times for message in dead] == [3, 16]
    assert dead[0].offset_message_id != dead[1].offset_message_id == answer.ext["msgId"]
    assert all("DELAY" not in message.properties for message in dead)
    assert (await client.send(RETRY, m=True)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await client.send(RETRY, bytes(4 * 1024 * 1024 + 1), j=16)).code == ResponseCode.MESSAGE_ILLEGAL


async def test_full_disk_is_an_answer(client: Client, clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    message = await one_message(client)
    with monkeypatch.context() as patched:
        patched.setattr(RaftCore, "propose", lambda *_: Refusal.DISK_FULL)
        answer = await give_back(client, message, group="New")
        assert (answer.code, "DISK_FULL" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    assert (await give_back(client, message, group="New")).code == 0
    assert len(await stored(client, SCHEDULE_TOPIC, 2)) == 1


async def test_message_of_a_deleted_topic_cannot_be_returned(client: Client, clock: WallClock) -> None:
    message = await one_message(client)
    assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert (await give_back(client, message)).code == ResponseCode.SYSTEM_ERROR


async def test_group_without_retry_queues_gets_no_redelivery(client: Client, clock: WallClock) -> None:
    message = await one_message(client)
    config = {"groupName": "G", "retryQueueNums": 0}
    body = json.dumps(config).encode()
    assert (await client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    assert (await give_back(client, message)).code == 0
    for level in range(18):
        assert await stored(client, SCHEDULE_TOPIC, level) == []
    assert (await give_back(client, message, delayLevel=-1)).code == 0
    assert len(await stored(client, DEAD)) == 1
