"""Batches with a range of sequence numbers over real sockets: each number is stored once, whatever is sent again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq.broker.limits import DEFAULT
from mq.client import Message, MessageQueue, Producer
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.sequencing import SEQUENCE_MAX
from tests.free_ports import free_ports
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.numbered_messages import numbered, place
from tests.support.running_broker import FAST, Answer, Client, broker_client, send_ext


async def send(client: Client, first: int, count: int, *, topic: str = "T", size: int = 0, **given: Any) -> Answer:
    messages = [
        BatchedMessage(b"%d:" % number + bytes(size), f"UNIQ_KEY\x01K{number}\x02")
        for number in range(first, first + count)
    ]
    ext = send_ext(topic, **({"m": True, "i": numbered(first)} | given))
    return await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(messages))


async def stored(client: Client, topic: str = "T", queue_id: int = 0) -> list[int]:
    numbers: list[int] = []
    while (answer := await client.pull(topic, queue_id, offset=len(numbers))).code == ResponseCode.SUCCESS:
        numbers += [int(record.body.partition(b":")[0]) for record in answer.records]
    return numbers


def positions(answer: Answer) -> list[int]:
    return [parse_offset_message_id(each).physical_offset for each in place(answer)["msgId"].split(",")]


async def test_repeated_batch_gets_the_first_answer_again(client: Client) -> None:
    await client.send(e=2)
    first = await send(client, 5, 10, e=2)
    again = await send(client, 5, 10, e=1)
    assert place(first) | {"alreadyStored": "10"} == place(again)
    assert (first.ext["alreadyStored"], first.ext["queueId"], first.ext["queueOffset"]) == ("0", "2", "1")
    assert first.ext["transactionId"] == ",".join(f"K{number}" for number in range(5, 15))
    assert await stored(client, queue_id=1) == []
    records = (await client.pull(queue_id=2, offset=1)).records
    assert [record.offset_message_id for record in records] == first.ext["msgId"].split(",")
    assert [record.properties.get("RAFTMQ_SEQUENCE") for record in records] == ["5-14", *[None] * 9]
    assert [record.properties.get("RAFTMQ_PRODUCER") for record in records] == ["p1", *[None] * 9]
    assert (await client.info())["raftmq.repeatedSends"] == "1"


@pytest.mark.parametrize(
    ("low", "count", "new"),
    [
        (0, 10, [0, 1, 2, 3, 4]),
        (12, 10, [15, 16, 17, 18, 19, 20, 21]),
        (0, 30, [*range(5), *range(15, 30)]),
        (7, 3, []),
        (14, 1, []),
        (15, 1, [15]),
    ],
)
async def test_rest_of_a_partly_stored_batch_is_stored(client: Client, low: int, count: int, new: list[int]) -> None:
    first = await send(client, 5, 10)
    known = await stored(client)
    answer = await send(client, low, count)
    assert place(answer)["alreadyStored"] == str(count - len(new))
    assert len(answer.ext["msgId"].split(",")) == count
    if len(new) == count:
        assert answer.ext["queueOffset"] == "10"
    elif new:
        assert answer.ext["queueOffset"] == "-1"
    else:
        assert positions(answer) == positions(first)[low - 5 : low - 5 + count]
        assert answer.ext["queueOffset"] == str(low - 5)
    assert await stored(client) == known + new
    assert place(await send(client, low, count))["alreadyStored"] == str(count)
    for number in (*known, *new):
        again = place(await client.send(i=numbered(number)))
        assert again["queueOffset"] == str((known + new).index(number))
    assert await stored(client) == known + new


@pytest.mark.parametrize(
    ("window", "rows"),
    [(50, 300), pytest.param(DEFAULT.state.ranges_per_producer_max, 6000, marks=pytest.mark.nightly)],
)
async def test_replay_beyond_the_window_adds_no_message_in_any_split(tmp_path: Path, window: int, rows: int) -> None:
    client_port, peer_port = free_ports(2)
    given = {"listen": f"127.0.0.1:{client_port}", "peers": f"n0@127.0.0.1:{peer_port}", "checkpoint_seconds": 0.02}
    given |= {"limits": replace(FAST, state=replace(FAST.state, ranges_per_producer_max=window))}
    base = 3 << 32
    async with broker_client(tmp_path, **given) as client:
        for first in range(base, base + rows, 3):
            place(await send(client, first, 3))
    async with broker_client(tmp_path, **given) as client:
        known = 0
        for count in (3, 7, 1000):
            for first in range(base, base + rows, count):
                last = min(first + count, base + rows)
                answer = await send(client, first, last - first)
                known += int(place(answer)["alreadyStored"])
                assert len(answer.ext["msgId"].split(",")) == last - first
        assert known == 3 * rows
        assert await stored(client) == list(range(base, base + rows))
        refused = await send(client, base - 1, 1)
        assert (refused.code, "SEQUENCE_FORGOTTEN" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        single = await client.send(i=numbered(base))
        assert (single.code, "SEQUENCE_FORGOTTEN" in str(single.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)


async def test_batches_on_the_wire_together_wait_for_each_other(client: Client) -> None:
    await client.send("Other")
    frames = [
        client.frame(
            RequestCode.SEND_BATCH_MESSAGE,
            send_ext(m=True, i=numbered(first)),
            encode_batch([BatchedMessage(b"%d:" % number, "") for number in range(first, first + count)]),
        )
        for first, count in ((0, 10), (5, 10), (0, 10), (3, 4), (20, 5), (0, 30))
    ]
    await client.stream.send_all(b"".join(data for _, data in frames))
    answers = [place(await client.answer(opaque)) for opaque, _ in frames]
    assert [answer["alreadyStored"] for answer in answers] == ["0", "5", "10", "4", "0", "20"]
    assert sorted(await stored(client)) == list(range(30))
    await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")


@pytest.mark.parametrize("first", [-1, "x", "", 2**63, SEQUENCE_MAX, "5-6"])
async def test_invalid_sequence_range_is_refused(client: Client, first: object) -> None:
    answer = await send(client, 1, 2, i=numbered(first))
    assert (answer.code, str(answer.remark)[:15]) == (ResponseCode.MESSAGE_ILLEGAL, "RAFTMQ_PRODUCER")
    assert await stored(client) == []
    assert (await client.send(i=numbered("5-6"))).code == ResponseCode.MESSAGE_ILLEGAL


async def test_batch_in_another_topic_is_refused(client: Client) -> None:
    place(await send(client, 1, 5, topic="A"))
    refused = await send(client, 2, 2, topic="B")
    assert (refused.code, "is in topic A" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)


async def test_refused_batch_is_stored_when_sent_again(tmp_path: Path) -> None:
    async with broker_client(tmp_path, message_bytes_max=2048) as client:
        assert (await send(client, 4, 5, size=500)).code == ResponseCode.MESSAGE_ILLEGAL
        assert place(await send(client, 4, 5))["alreadyStored"] == "0"


async def test_batch_without_room_for_its_numbers_is_refused(client: Client) -> None:

    async def fits(nbytes: int, head: str) -> bool:
        body = encode_batch([BatchedMessage(b"1:", f"UNIQ_KEY\x01K\x02own\x01{'x' * nbytes}\x02")])
        answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, send_ext(m=True, i=head), body)
        assert answer.code == ResponseCode.SUCCESS or "properties of" in str(answer.remark)
        return answer.code == ResponseCode.SUCCESS

    plain = range(props.SENT_PROPERTIES_BYTES_MAX - 200, props.SENT_PROPERTIES_BYTES_MAX - 20)
    most = max([nbytes for nbytes in plain if await fits(nbytes, "")])
    assert not await fits(most, numbered(1))
    assert await fits(most - 100, numbered(1))
    assert await fits(most - 100, numbered(1))
    assert (await client.info())["raftmq.repeatedSends"] == "1"


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_numbered_batch_can_have_shared_properties(client: Client, serialization: int) -> None:
    ext = send_ext(m=True, i=numbered(1, TAGS="t", UNIQ_KEY="of the batch", own="x"))
    body = encode_batch([BatchedMessage(b"a", ""), BatchedMessage(b"b", "")])
    answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, body, serialization=serialization)
    assert (answer.serialization, place(answer)["alreadyStored"]) == (serialization, "0")
    records = (await client.pull()).records
    assert [(record.properties["TAGS"], record.properties["own"]) for record in records] == [("t", "x")] * 2
    assert [record.properties.get("RAFTMQ_SEQUENCE") for record in records] == ["1-2", None]


async def test_sdk_sends_numbered_batches_and_reports_unknown_offsets(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, _), Producer(namesrv, "P") as producer:
        batch = [Message("T", b"%d:" % number) for number in range(3)]
        queue = MessageQueue("T", "broker-a", 0)
        numbers = {"RAFTMQ_PRODUCER": "billing-7", "RAFTMQ_SEQUENCE": "500"}
        first = await producer.send_batch(batch, queue=queue, properties=numbers)
        assert await producer.send_batch(batch, properties=numbers) == first
        assert [result.queue_offset for result in first] == [0, 1, 2]
        longer = await producer.send_batch([*batch, batch[0]], queue=queue, properties=numbers)
        assert [result.queue_offset for result in longer] == [-1] * 4


async def test_first_oneway_batch_is_stored_like_others(client: Client) -> None:
    await client.send("Other")
    body = encode_batch([BatchedMessage(b"1:", ""), BatchedMessage(b"2:", "")])
    frames = [
        client.frame(RequestCode.SEND_BATCH_MESSAGE, send_ext(m=True, i=numbered(1)), body, oneway=oneway)
        for oneway in (True, False, True)
    ]
    await client.stream.send_all(b"".join(data for _, data in frames))
    assert place(await client.answer(frames[1][0]))["alreadyStored"] == "2"
    assert await stored(client) == [1, 2]
    assert not client.answers
