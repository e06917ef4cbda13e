"""Batches over real sockets: many messages, one reply, one place in the log."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.batch import BatchedMessage, encode_batch, split_batch
from tests.support.running_broker import Answer, Client, broker_client, properties, send_ext

CODES = [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2]


async def send_batch(
    client: Client, body: bytes, code: int = RequestCode.SEND_BATCH_MESSAGE, serialization: int = JSON, **given: Any
) -> Answer:
    return await client.request(code, send_ext(**({"m": True} | given)), body, serialization=serialization)


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", CODES)
async def test_batch_is_stored_in_order_and_answered_once(tmp_path: Path, code: int, serialization: int) -> None:
    messages = [
        BatchedMessage(b"one", properties(UNIQ_KEY="K1", TAGS="a"), 7),
        BatchedMessage(b"", properties(UNIQ_KEY="K2")),
        BatchedMessage(bytes(5000), properties(UNIQ_KEY="K3", TAGS="b", KEYS="x y", own="\u20ac"), -1),
    ]
    async with broker_client(tmp_path, cluster="C1") as client:
        await client.send(e=1)
        shared = properties(UNIQ_KEY="of the batch", WAIT="true")
        answer = await send_batch(client, encode_batch(messages), code, serialization, e=1, i=shared)
        assert (answer.code, answer.serialization) == (ResponseCode.SUCCESS, serialization)
        assert answer.ext["queueId"] == "1"
        assert answer.ext["queueOffset"] == "1"
        assert answer.ext["transactionId"] == "K1,K2,K3"
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        assert answer.ext["TRACE_ON"] == "true"

        stored = (await client.pull(queue_id=1, offset=1)).records
        assert [(record.body, record.flag) for record in stored] == [(m.body, m.flag) for m in messages]
        assert [record.queue_offset for record in stored] == [1, 2, 3]
        assert answer.ext["msgId"].split(",") == [record.offset_message_id for record in stored]
        assert [record.properties["UNIQ_KEY"] for record in stored] == ["K1", "K2", "K3"]
        assert stored[2].properties == {
            "UNIQ_KEY": "K3",
            "TAGS": "b",
            "KEYS": "x y",
            "own": "\u20ac",
            "WAIT": "true",
            "CLUSTER": "C1",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert {record.born_timestamp_ms for record in stored} == {1_700_000_000_000}

        tagged = await client.pull(queue_id=1, offset=1, subscription="b")
        assert [record.body for record in tagged.records] == [bytes(5000)]


async def test_messages_of_a_batch_without_unique_keys_get_some(client: Client) -> None:
    answer = await send_batch(client, encode_batch([BatchedMessage(b"x", "a\x01b")] * 3))
    keys = answer.ext["transactionId"].split(",")
    assert len(set(keys)) == 3
    stored = (await client.pull(queue_id=int(answer.ext["queueId"]))).records
    assert [record.properties["UNIQ_KEY"] for record in stored] == keys
    assert {record.properties["a"] for record in stored} == {"b"}


async def test_batches_and_single_messages_keep_the_order_of_their_connection(client: Client) -> None:
    await client.send(e=0)
    opaques = []
    for number in range(50):
        if number % 2:
            batch = encode_batch([BatchedMessage(b"%d.%d" % (number, part), "") for part in range(3)])
            opaques.append(await client.post(RequestCode.SEND_BATCH_MESSAGE, send_ext(e=0, m=True), batch))
        else:
            opaques.append(await client.post(RequestCode.SEND_MESSAGE_V2, send_ext(e=0), b"%d" % number))
    offsets = [int((await client.answer(opaque)).ext["queueOffset"]) for opaque in opaques]
    assert offsets == sorted(offsets)
    bodies: list[bytes] = []
    while len(bodies) < 100:
        bodies += [record.body for record in (await client.pull(offset=1 + len(bodies))).records]
    assert bodies == [
        body
        for number in range(50)
        for body in ([b"%d.%d" % (number, part) for part in range(3)] if number % 2 else [b"%d" % number])
    ]


async def test_first_batch_creates_its_topic(client: Client) -> None:
    answer = await send_batch(client, encode_batch([BatchedMessage(b"x", "")] * 2), topic="fresh", e=-1)
    assert answer.code == ResponseCode.SUCCESS
    pulled = await client.pull("fresh", queue_id=int(answer.ext["queueId"]))
    assert len(pulled.records) == 2


async def test_batch_larger_than_a_round_is_stored_as_one_entry(tmp_path: Path) -> None:
    async with broker_client(tmp_path, entry_bytes_max=64 * 1024) as client:
        answer = await send_batch(client, encode_batch([BatchedMessage(bytes(1000), "")] * 1000))
        assert answer.code == ResponseCode.SUCCESS
        places = [parse_offset_message_id(text).physical_offset for text in answer.ext["msgId"].split(",")]
        assert len({after - before for before, after in itertools.pairwise(places)}) == 1


def element(**given: Any) -> bytes:
    return encode_batch([BatchedMessage(b"x", properties(**given))])


UNREADABLE = encode_batch([BatchedMessage(b"", properties(UNIQ_KEY="\x03" * 32_000))] * 50)
"""In the header of an answer, each of these bytes becomes six."""
FULL = encode_batch([BatchedMessage(b"x", properties(UNIQ_KEY="K"))])

REFUSED: list[tuple[str, bytes, dict[str, Any], int]] = [
    ("empty", b"", {}, ResponseCode.MESSAGE_ILLEGAL),
    ("cut", FULL[:-1], {}, ResponseCode.MESSAGE_ILLEGAL),
    ("more than it says", FULL + b"\0", {}, ResponseCode.MESSAGE_ILLEGAL),
    ("size of 2 GiB", b"\x7f\xff\xff\xff" + FULL[4:], {}, ResponseCode.MESSAGE_ILLEGAL),
    ("negative size", b"\xff\xff\xff\xff" + FULL[4:], {}, ResponseCode.MESSAGE_ILLEGAL),
    ("negative body", FULL[:16] + b"\xff\xff\xff\xff" + FULL[20:], {}, ResponseCode.MESSAGE_ILLEGAL),
    ("huge body", FULL[:16] + b"\x7f\xff\xff\xff" + FULL[20:], {}, ResponseCode.MESSAGE_ILLEGAL),
    ("properties not UTF-8", FULL.replace(b"K\x02", b"\xff\x02"), {}, ResponseCode.MESSAGE_ILLEGAL),
    ("delayed", FULL + element(DELAY="3"), {}, ResponseCode.MESSAGE_ILLEGAL),
    ("timed", FULL + element(TIMER_DELAY_SEC="3"), {}, ResponseCode.MESSAGE_ILLEGAL),
    ("transactional", FULL + element(TRAN_MSG="true"), {}, ResponseCode.MESSAGE_ILLEGAL),
    ("delayed as a whole", FULL, {"i": properties(DELAY="3")}, ResponseCode.MESSAGE_ILLEGAL),
    ("to a retry topic", FULL, {"topic": "%RETRY%G"}, ResponseCode.MESSAGE_ILLEGAL),
    ("to a system topic", FULL, {"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
    ("many small ones", encode_batch([BatchedMessage(b"", "")] * 40_000), {}, ResponseCode.MESSAGE_ILLEGAL),
    ("answer too large", UNREADABLE, {}, ResponseCode.MESSAGE_ILLEGAL),
    ("queue id", FULL, {"e": 99}, ResponseCode.INVALID_PARAMETER),
]


@pytest.mark.parametrize(("body", "given", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_no_message_of_a_refused_batch_is_stored(
    tmp_path: Path, body: bytes, given: dict[str, Any], code: int
) -> None:
    async with broker_client(tmp_path) as client:
        for topic in ("T", "%RETRY%G"):
            await client.create_topic(topic, 1)
        answer = await send_batch(client, body, **({"e": 0} | given))
        assert answer.code == code, answer.remark
        assert answer.remark
        assert await client.offset(RequestCode.GET_MAX_OFFSET, "T", 0) == 0
        assert (await send_batch(client, FULL, e=0)).ext["queueOffset"] == "0"
        assert (await client.info())["raftmq.pendingBytes"] == "0"


async def test_bytes_after_the_last_allowed_message_are_not_parsed() -> None:
    assert len(split_batch(FULL * 3, 3)) == 3
    with pytest.raises(BodyError, match="more than 3 messages"):
        split_batch(FULL * 3 + b"\0", 3)
