"""Sends with a sequence number over real sockets: stored once, repeats answered with the place of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from tests.free_ports import free_ports
from tests.support.half_messages import COMMIT, PREPARED, end, half_text
from tests.support.numbered_messages import numbered, place
from tests.support.running_broker import LONG_NAMES, Answer, Client, RunningBroker, broker_client, properties, send_ext
from tests.support.waiting import until


async def bodies(client: Client, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    answer = await client.pull(topic, queue_id)
    return [record.body for record in answer.records] if answer.code == ResponseCode.SUCCESS else []


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_repeated_send_is_answered_with_the_first_offset(
    broker: RunningBroker, client: Client, code: int, serialization: int
) -> None:

    async def send(body: bytes, **given: Any) -> Answer:
        ext = send_ext(**given)
        if code == RequestCode.SEND_MESSAGE:
            ext = {LONG_NAMES[name]: value for name, value in ext.items()}
        return await (await broker.connect()).request(code, ext, body, serialization=serialization)

    await client.send(e=2)
    first = await send(b"first", e=2, i=numbered(7, UNIQ_KEY="K1", TAGS="t"))
    other = await send(b"other", e=2, i=numbered(7, "p2"))
    repeat = await send(b"repeat", e=1, i=numbered(7, UNIQ_KEY="K2"))
    assert place(first) == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": first.ext["msgId"],
        "queueId": "2",
        "queueOffset": "1",
        "transactionId": "K1",
    }
    assert place(repeat) == place(first)
    assert repeat.serialization == serialization
    assert repeat.opaque == first.opaque
    assert place(other)["queueOffset"] == "2"
    [_, stored, _] = (await client.pull(queue_id=2)).records
    assert (stored.body, stored.offset_message_id) == (b"first", first.ext["msgId"])
    assert stored.properties["RAFTMQ_PRODUCER"] == "p1"
    assert await bodies(client, queue_id=1) == []
    assert (await client.info())["raftmq.repeatedSends"] == "1"


async def test_concurrent_repeats_wait_for_the_first_send(broker: RunningBroker, client: Client) -> None:
    await client.send()
    others = [await broker.connect() for _ in range(3)]
    sent: list[tuple[Client, int]] = []
    async with trio.open_nursery() as nursery:
        for each in (client, *others):
            frames = [each.frame(RequestCode.SEND_MESSAGE_V2, send_ext(i=numbered(1)), b"x") for _ in range(4)]
            sent += [(each, opaque) for opaque, _ in frames]
            nursery.start_soon(each.stream.send_all, b"".join(data for _, data in frames))
    places = [place(await each.answer(opaque)) for each, opaque in sent]
    assert len(places) == 16
    assert all(each == places[0] for each in places)
    assert await bodies(client) == [b"body", b"x"]
    await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")


async def test_too_many_waiting_repeats_are_answered_busy(client: Client) -> None:
    await client.send()
    frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(i=numbered(1)), b"x") for _ in range(40)]
    await client.stream.send_all(b"".join(data for _, data in frames))
    answers = [await client.answer(opaque) for opaque, _ in frames]
    codes = [answer.code for answer in answers]
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    assert codes.count(ResponseCode.SUCCESS) >= 17
    assert await bodies(client) == [b"body", b"x"]
    await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")


async def test_repeat_of_a_oneway_send_is_not_stored(client: Client) -> None:
    await client.send()
    frames = [
        client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(i=numbered(1)), b"x", oneway=oneway)
        for oneway in (True, False, True)
    ]
    await client.stream.send_all(b"".join(data for _, data in frames))
    assert place(await client.answer(frames[1][0]))["queueOffset"] == "1"
    assert place(await client.send(i=numbered(1)))["queueOffset"] == "1"
    assert not client.answers
    assert await bodies(client) == [b"body", b"x"]


async def test_dedup_accepts_gaps_and_disorder_but_refuses_forgotten_numbers(client: Client) -> None:
    for number in (10_000, 5, 100, 5, 2**63 - 1, 100, 10_000):
        assert (await client.send(body=b"%d" % number, i=numbered(number))).code == ResponseCode.SUCCESS
    assert await bodies(client) == [b"10000", b"5", b"100", b"9223372036854775807"]
    frames = [
        client.frame(RequestCode.SEND_MESSAGE_V2, send_ext("Many", i=numbered(number, "p2")), b"x")
        for number in range(1, 1100)
    ]
    await client.stream.send_all(b"".join(data for _, data in frames))
    for opaque, _ in frames:
        place(await client.answer(opaque))
    refused = await client.send("Many", i=numbered(75, "p2"))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "SEQUENCE_FORGOTTEN" in str(refused.remark)
    assert (await client.send("Many", i=numbered(0, "p2"))).code == ResponseCode.MESSAGE_ILLEGAL
    assert place(await client.send("Many", i=numbered(76, "p2")))["queueOffset"] == "75"


@pytest.mark.parametrize(
    "text",
    [
        properties(RAFTMQ_SEQUENCE="1"),
        numbered("x"),
        numbered(-1),
        numbered(2**63),
        numbered(1, "p" * 65),
    ],
)
async def test_invalid_sequence_number_is_refused(client: Client, text: str) -> None:
    answer = await client.send(i=text)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "RAFTMQ_SEQUENCE" in str(answer.remark)
    assert await bodies(client) == []
    assert place(await client.send(i=properties(RAFTMQ_PRODUCER="p1")))["queueOffset"] == "0"


async def test_batch_with_sequence_numbers_in_its_messages_is_refused(client: Client) -> None:
    body = encode_batch([BatchedMessage(b"a", ""), BatchedMessage(b"b", numbered(1))])
    for given in ("", numbered(5)):
        answer = await client.send(body=body, m=True, i=given)
        assert (answer.code, str(answer.remark)[:21]) == (ResponseCode.MESSAGE_ILLEGAL, "message 1 of a batch ")


async def test_number_cannot_be_used_again_in_another_topic(client: Client) -> None:
    place(await client.send("A", i=numbered(1)))
    refused = await client.send("B", i=numbered(1))
    assert (refused.code, "is in topic A" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
    place(await client.send("B", i=numbered(2)))


async def test_refused_message_is_stored_when_sent_again(tmp_path: Path) -> None:
    async with broker_client(tmp_path, message_bytes_max=1024) as client:
        assert (await client.send(body=bytes(2000), i=numbered(1))).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await client.send(i=numbered(1, DELAY="x"))).code == ResponseCode.MESSAGE_ILLEGAL
        assert place(await client.send(i=numbered(1)))["queueOffset"] == "0"


async def test_delivery_of_a_numbered_delayed_message_is_not_a_repeat(client: Client) -> None:
    await client.create_topic("T", 4)
    text = numbered(1, DELAY="1")
    first = place(await client.send(body=b"later", e=3, i=text))
    assert place(await client.send(body=b"again", e=0, i=text)) == first
    assert first["queueId"] == "3"
    assert await bodies(client, queue_id=3) == []

    async def delivered() -> bool:
        return await bodies(client, queue_id=3) != []

    await until(delivered)  # after a second
    assert await bodies(client, queue_id=3) == [b"later"]
    assert place(await client.send(body=b"again", i=text)) == first
    assert place(await client.send(body=b"new", e=3, i=numbered(2)))["queueOffset"] == "1"


async def test_repeat_of_a_numbered_timer_can_be_recalled(client: Client) -> None:
    await client.create_topic("T", 4)
    text = numbered(1, TIMER_DELAY_SEC="600")
    first = place(await client.send(e=2, i=text))
    repeat = place(await client.send(e=2, i=text, body=b"again"))
    assert repeat == first
    assert first["queueId"] == "2"
    recall = {"topic": "T", "recallHandle": repeat["recallHandle"], "producerGroup": "P"}
    assert (await client.request(RequestCode.RECALL_MESSAGE, recall)).code == ResponseCode.SUCCESS
    assert place(await client.send(e=2, i=text)) == first


async def test_commit_of_a_numbered_half_message_is_not_a_repeat(client: Client) -> None:
    await client.create_topic("T", 4)
    text = half_text(RAFTMQ_PRODUCER="p1", RAFTMQ_SEQUENCE="1")
    first = await client.send(e=2, f=PREPARED, i=text)
    repeat = await client.send(e=2, f=PREPARED, i=text)
    assert place(repeat) == place(first)
    assert repeat.ext["queueId"] == "2"
    assert (await end(client, repeat, COMMIT)).code == ResponseCode.SUCCESS
    assert await bodies(client, queue_id=2) == [b"body"]
    assert place(await client.send(e=2, f=PREPARED, i=text)) == place(first)
    assert (await client.info())["raftmq.repeatedSends"] == "2"
    assert place(await client.send(e=2, i=numbered(2)))["queueOffset"] == "1"


async def test_messages_sent_to_a_retry_topic_are_not_dropped_as_repeats(client: Client) -> None:
    await client.heartbeat("c1", "G")
    place(await client.send(i=numbered(1)))
    for _ in range(2):
        place(await client.send("%RETRY%G", i=numbered(1)))
    assert len(await bodies(client, "%RETRY%G")) == 2


@pytest.mark.parametrize("text", ["0-4294967296", "5-9223372036854775807", "7-7", "9-3"])
async def test_impossible_batch_range_is_ignored(tmp_path: Path, text: str) -> None:
    """A client writes it into what looks like a consumer's copy: every replica reads it from the log."""
    for _ in range(2):
        async with broker_client(tmp_path) as client:
            await client.heartbeat("c1", "G")
            place(await client.send("T", b"8", i=numbered(8)))
            place(await client.send("%RETRY%G", i=numbered(text)))
    async with broker_client(tmp_path) as client:
        assert await bodies(client) == [b"8"]


async def test_table_outlives_the_broker_and_its_topic(tmp_path: Path) -> None:
    client_port, peer_port = free_ports(2)
    given = {"listen": f"127.0.0.1:{client_port}", "peers": f"n0@127.0.0.1:{peer_port}", "checkpoint_seconds": 0.02}
    async with broker_client(tmp_path, **given) as client:
        first = place(await client.send("A", i=numbered(1, UNIQ_KEY="K")))
    async with broker_client(tmp_path, **given) as client:
        assert place(await client.send("A", i=numbered(1))) == first
        second = place(await client.send("A", i=numbered(2)))
        assert second["queueOffset"] == "1"
        assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "A"})).code == 0
        await client.create_topic("A")
        assert place(await client.send("A", i=numbered(1))) == first
        assert await bodies(client, "A") == []


async def test_repeat_of_a_deleted_message_is_recognized_by_id(tmp_path: Path) -> None:
    small = 256 * 1024
    given: dict[str, Any] = {"segment_bytes": small, "message_bytes_max": 32 * 1024, "retention_bytes": 4 * small}
    async with broker_client(tmp_path, **given, retention_check_seconds=0.02, checkpoint_seconds=0.02) as client:
        first = place(await client.send(e=1, i=numbered(1, UNIQ_KEY="K")))

        async def is_lost() -> bool:
            place(await client.send(body=bytes(30_000)))
            repeat = place(await client.send(e=1, i=numbered(1, UNIQ_KEY="K")))
            assert repeat in (first, first | {"queueOffset": "-1"})
            return repeat != first

        await until(is_lost)
        assert await bodies(client, queue_id=1) == []
