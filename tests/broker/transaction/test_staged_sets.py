"""STAGE_TRANSACTION and the end of a set, with a real broker and frames as any client may send them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.transaction_sets import ConsumedRange, SetMessage, TransactionSet
from mq.protocol.names import HALF_TOPIC, TIMER_TOPIC
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from tests.support.half_messages import COMMIT, ROLLBACK, half_text, send_half
from tests.support.running_broker import ADDED, Answer, Client, RunningBroker, broker_client, running
from tests.support.stored_messages import stored
from tests.support.waiting import until

HEARTBEAT = HeartbeatData("producer", producers=[ProducerData("P")]).encode()


def message(body: bytes, topic: str = "T", queue_id: int = 0, **more: str) -> SetMessage:
    return SetMessage(topic, queue_id, body, props.encode({"UNIQ_KEY": f"U{body.decode()}", **more}))


def consumed(first: int, end: int, group: str = "G", topic: str = "T", queue_id: int = 0) -> ConsumedRange:
    return ConsumedRange(group, topic, queue_id, QueueOffset(first), QueueOffset(end))


async def stage(client: Client, *parts: SetMessage | ConsumedRange, body: bytes | None = None, **ext: Any) -> Answer:
    messages = [part for part in parts if isinstance(part, SetMessage)]
    offsets = [part for part in parts if isinstance(part, ConsumedRange)]
    fields = {"producerGroup": "P", "transactionId": "0A0B", "bornTimestampMs": 1_700_000_000_000} | ext
    data = TransactionSet(messages, offsets).encode() if body is None else body
    return await client.request(RequestCode.STAGE_TRANSACTION, fields, data)


async def end(client: Client, half: Answer, outcome: int, **more: Any) -> Answer:
    fields: dict[str, Any] = {
        "producerGroup": "P",
        "tranStateTableOffset": half.ext["halfQueueOffset"],
        "commitLogOffset": half.ext["halfPhysicalOffset"],
        "commitOrRollback": outcome,
        "msgId": "0A0B",
    }
    return await client.request(RequestCode.END_TRANSACTION, fields | more)


async def offset(client: Client, queue_id: int = 0) -> int | None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "setZeroIfNotFound": False}
    answer = await client.request(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return int(answer.ext["offset"]) if answer.code == 0 else None


async def ready(client: Client, queues: int = 1, messages: int = 0) -> Client:
    """A topic with messages, and the format level that sets need."""
    await client.create_topic("T", queues)
    for number in range(messages):
        assert (await client.send("T", b"in%d" % number, e=0, i="")).code == 0

    async def risen() -> bool:
        return (await stage(client)).code != ResponseCode.VERSION_NOT_SUPPORTED

    await until(risen)
    return client


async def test_committed_set_appears_together_with_its_offsets(tmp_path: Path) -> None:
    async with running(tmp_path, cluster="C1") as broker:
        client = await ready(await broker.connect(), queues=2, messages=3)
        half = await stage(client, message(b"1", queue_id=1, TAGS="a"), message(b"2", queue_id=1), consumed(0, 2))
        assert half.code == 0, half
        assert (await stored(client, "T", 1), await offset(client)) == ([], None)
        [waiting] = await stored(client, HALF_TOPIC)
        assert waiting.properties == ADDED | {
            "TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "0A0B", "RAFTMQ_SET": "2", "REAL_TOPIC": "T", "REAL_QID": "1"
        }  # fmt: skip
        for _ in range(2):
            assert (await end(client, half, COMMIT)).code == 0
            one, two = await stored(client, "T", 1)
            assert (one.body, one.properties) == (b"1", ADDED | {"UNIQ_KEY": "U1", "TAGS": "a"})
            assert (two.body, two.sys_flag, two.prepared_offset) == (b"2", COMMIT, waiting.physical_offset)
            assert await offset(client) == 2
        assert len((await client.pull("T", 1, subscription="a")).records) == 1
        late = await end(client, half, ROLLBACK)
        assert (late.code, "was committed before" in str(late.remark)) == (ResponseCode.SYSTEM_ERROR, True)


async def test_second_set_with_the_same_messages_is_refused_for_ever(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await ready(await broker.connect(), queues=2, messages=6)
        first = await stage(client, message(b"1", queue_id=1), consumed(0, 4))
        second = await stage(client, message(b"2", queue_id=1), consumed(2, 6))
        frames = []
        for half in (first, second):
            fields = {
                "producerGroup": "P",
                "tranStateTableOffset": half.ext["halfQueueOffset"],
                "commitLogOffset": half.ext["halfPhysicalOffset"],
                "commitOrRollback": COMMIT,
                "msgId": "M",
            }
            frames.append(client.frame(RequestCode.END_TRANSACTION, fields))
        await client.stream.send_all(b"".join(data for _, data in frames))
        one, two = [await client.answer(opaque) for opaque, _ in frames]
        assert (one.code, two.code) == (0, ResponseCode.SYSTEM_BUSY), "until the first is stored"
        for _ in range(2):
            refused = await end(client, second, COMMIT)
            assert refused.code == ResponseCode.PULL_OFFSET_MOVED
            assert "has consumed queue 0 of T up to offset 4" in str(refused.remark)
        early = await stage(client, message(b"3"), consumed(3, 5))
        assert early.code == ResponseCode.PULL_OFFSET_MOVED
        assert (await end(client, second, ROLLBACK)).code == 0
        assert [each.body for each in await stored(client, "T", 1)] == [b"1"]
        assert await offset(client) == 4
    async with running(tmp_path) as broker:
        assert await offset(await broker.connect()) == 4


async def test_rolled_back_set_stores_nothing(broker: RunningBroker) -> None:
    client = await ready(await broker.connect(), messages=1)
    half = await stage(client, message(b"1"), consumed(0, 1))
    assert (await end(client, half, ROLLBACK)).code == 0
    late = await end(client, half, COMMIT)
    assert (late.code, "was rolled back" in str(late.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert (await end(client, half, COMMIT, producerGroup="Q")).code == ResponseCode.SYSTEM_ERROR
    assert [each.body for each in await stored(client)] == [b"in0"]
    assert await offset(client) is None


async def test_message_of_a_set_may_be_delayed(broker: RunningBroker) -> None:
    client = await ready(await broker.connect())
    half = await stage(client, message(b"1", TIMER_DELAY_SEC="3600"), message(b"2"))
    assert (await end(client, half, COMMIT)).code == 0
    assert [each.body for each in await stored(client)] == [b"2"]
    queues = [await stored(client, TIMER_TOPIC, number) for number in range(1440)]
    assert [each.body for queue in queues for each in queue] == [b"1"]


async def test_staging_refuses_messages_that_cannot_become_visible(tmp_path: Path) -> None:
    async with running(tmp_path, message_bytes_max=1024, auto_create_topics=False) as broker:
        client = await ready(await broker.connect(), messages=2)
        big = bytes([ord("1")]) * 500
        cases: list[tuple[int, str, list[SetMessage | ConsumedRange]]] = [
            (ResponseCode.MESSAGE_ILLEGAL, "has no messages", []),
            (ResponseCode.MESSAGE_ILLEGAL, "maximum: 1024, as for one message", [message(big), message(big)]),
            (ResponseCode.TOPIC_NOT_EXIST, "topic U does not exist", [message(b"1", "U")]),
            (ResponseCode.NO_PERMISSION, HALF_TOPIC, [message(b"1", HALF_TOPIC)]),
            (ResponseCode.INVALID_PARAMETER, "queue id 9 is illegal", [message(b"1", queue_id=9)]),
            (ResponseCode.MESSAGE_ILLEGAL, "message 0 .* has no UNIQ_KEY", [SetMessage("T", 0, b"1", "")]),
            (ResponseCode.MESSAGE_ILLEGAL, "property TRAN_MSG", [message(b"1", TRAN_MSG="true")]),
            (ResponseCode.MESSAGE_ILLEGAL, "property RAFTMQ_SEQUENCE", [message(b"1", RAFTMQ_SEQUENCE="1")]),
            (ResponseCode.MESSAGE_ILLEGAL, "property __LITE_TOPIC", [message(b"1", __LITE_TOPIC="a")]),
            (ResponseCode.INVALID_PARAMETER, "a queue of a group twice", [consumed(0, 1), consumed(1, 2)]),
            (ResponseCode.INVALID_PARAMETER, "from 2 to 1", [consumed(2, 1)]),
            (ResponseCode.INVALID_PARAMETER, "beyond the end", [consumed(0, 3)]),
            (ResponseCode.TOPIC_NOT_EXIST, "no queue 7", [consumed(0, 1, queue_id=7)]),
            (ResponseCode.INVALID_PARAMETER, "G G", [consumed(0, 1, group="G G")]),
        ]
        for code, why, parts in cases:
            answer = await stage(client, *parts)
            assert answer.code == code, (why, answer)
            assert re.search(why, str(answer.remark)), answer
        assert (await stage(client, body=b"\x01\0\0")).code == ResponseCode.SYSTEM_ERROR
        assert (await stage(client, message(b"1"), producerGroup="P P")).code == ResponseCode.MESSAGE_ILLEGAL
        assert await stored(client, HALF_TOPIC) == []


async def test_half_message_with_the_property_of_sets_is_refused(broker: RunningBroker) -> None:
    """Otherwise whoever may send to one topic could send to all, and move the offsets of all groups."""
    client = await ready(await broker.connect())
    smuggled = TransactionSet([message(b"1")], []).encode()
    answer = await client.send("T", smuggled, e=0, f=4, i=half_text(RAFTMQ_SET="1"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await send_half(client)).code == 0


async def test_producers_are_asked_about_the_set_as_a_whole(tmp_path: Path) -> None:
    fast = {"transaction_timeout_seconds": 0.05, "transaction_check_seconds": 0.05, "transaction_checks_max": 2}
    async with running(tmp_path, **fast) as broker:
        client = await ready(await broker.connect(), messages=1)
        await client.request(RequestCode.HEART_BEAT, body=HEARTBEAT)
        half = await stage(client, message(b"1"), message(b"2"), consumed(0, 1))
        question, body = await client.question()
        assert question.ext.half_queue_offset == int(half.ext["halfQueueOffset"])
        assert b"U1" in body
        assert b"U2" in body

        async def is_given_up() -> bool:
            return bool(await stored(client, "TRANS_CHECK_MAX_TIME_TOPIC"))

        await until(is_given_up)
        refused = await end(client, half, COMMIT)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert [each.body for each in await stored(client)] == [b"in0"]


async def test_set_with_a_message_for_a_compacted_topic_is_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        assert (await client.create_topic("T", attributes="+cleanup.policy=COMPACTION")).code == 0
        answer = await stage(client, message(b"1"))
        assert (answer.code, "cleanup.policy" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
