"""Messages in over real sockets, and what was stored: read back byte for byte."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.records import CRC_MASK, FIXED, IN_LITE_TOPIC, Host, encode_host, encode_record
from mq.protocol.numbers import QueueOffset
from tests.support.running_broker import (
    ADDED,
    LONG_NAMES,
    Client,
    RunningBroker,
    broker_client,
    properties,
    running,
    send_ext,
)
from tests.support.waiting import until

GET_MAX, GET_MIN = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET


async def send_as(client: Client, code: int, serialization: int, body: bytes = b"body", **given: Any) -> Any:
    ext = send_ext(**given)
    if code == RequestCode.SEND_MESSAGE:
        ext = {LONG_NAMES[name]: value for name, value in ext.items()}
    return await client.request(code, ext, body, serialization=serialization)


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_message_is_stored_unchanged(tmp_path: Path, code: int, serialization: int) -> None:
    body = bytes(range(256)) * 5
    text = properties(KEYS="k1 k2", TAGS="café", WAIT="true", UNIQ_KEY="0A0B", own="\u20ac")
    async with running(tmp_path, cluster="C1") as broker:
        client = await broker.connect()
        before_ms = time.time_ns() // 1_000_000
        first = await send_as(client, code, serialization, body, e=2, f=1, h=-7, i=text, j=3)
        second = await send_as(client, code, serialization, b"", e=2, g=-5)
        assert (first.code, second.code) == (0, 0)
        assert first.serialization == serialization
        assert first.ext["queueId"] == second.ext["queueId"] == "2"
        assert (first.ext["queueOffset"], second.ext["queueOffset"]) == ("0", "1")
        assert first.ext["MSG_REGION"] == "DefaultRegion"
        assert first.ext["TRACE_ON"] == "true"
        assert first.ext["transactionId"] == "0A0B"

        pulled = await client.pull(queue_id=2)
        assert pulled.code == ResponseCode.SUCCESS
        assert {name: pulled.ext[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")} == {
            "nextBeginOffset": "2",
            "minOffset": "0",
            "maxOffset": "2",
        }
        stored, empty = pulled.records
        host, port = broker.settings.listen_address
        born = client.stream.socket.getsockname()
        assert before_ms <= stored.store_timestamp_ms <= time.time_ns() // 1_000_000
        assert stored.store_host == Host(host, port)
        assert stored.born_host == Host(born[0], born[1])
        assert stored.offset_message_id == first.ext["msgId"]
        assert parse_offset_message_id(first.ext["msgId"]).physical_offset == stored.physical_offset
        assert pulled.body[: stored.size] == encode_record(
            topic="T",
            queue_id=2,
            body=body,
            properties=text + properties(**ADDED),
            queue_offset=QueueOffset(0),
            physical_offset=stored.physical_offset,
            born_timestamp_ms=1_700_000_000_000,
            born_host=encode_host(born[0], born[1]),
            store_timestamp_ms=stored.store_timestamp_ms,
            store_host=encode_host(host, port),
            flag=-7,
            sys_flag=1,
            reconsume_times=3,
        )
        assert int.from_bytes(pulled.body[8:12], "big") == zlib.crc32(body) & CRC_MASK
        assert (empty.body, empty.queue_offset, empty.born_timestamp_ms) == (b"", 1, -5)
        assert empty.physical_offset > stored.physical_offset
        assert empty.offset_message_id == second.ext["msgId"]


async def test_broker_gives_a_unique_key_to_messages_without_one(client: Client) -> None:
    answers = [
        await client.send(i=properties(TAGS="a")),
        await client.send(i="XUNIQ_KEY\x01no"),
        await client.send(),
    ]
    records = (await client.pull()).records
    keys = [record.properties["UNIQ_KEY"] for record in records]
    assert [answer.ext["transactionId"] for answer in answers] == keys
    assert len(set(keys)) == 3
    assert all(len(key) == 32 and int(key, 16) for key in keys)
    assert [set(record.properties) for record in records] == [
        {"TAGS", "UNIQ_KEY", *ADDED},
        {"XUNIQ_KEY", "UNIQ_KEY", *ADDED},
        {"UNIQ_KEY", *ADDED},
    ]


async def test_unique_key_may_be_any_text(client: Client) -> None:
    for serialization in (JSON, BINARY):
        answer = await client.send(i=properties(UNIQ_KEY='"\\ %d é'), serialization=serialization)
        assert answer.ext["transactionId"] == '"\\ %d é'


async def test_sender_decides_neither_about_hosts_nor_about_transactions(client: Client) -> None:
    flags = [0, 1, 0x10, 0x20, 0x30, 0x4, 0x8, 0xC, -1, 0x7FFFFFFF, -(2**31)]
    for flag in flags:
        assert (await client.send(f=flag)).code == 0
    records = (await client.pull()).records
    assert [record.sys_flag for record in records] == [flag & ~0x3C & ~IN_LITE_TOPIC for flag in flags]
    for record in records:
        assert record.body == b"body"
        assert record.size == FIXED + 4 + 1 + len(props.encode(record.properties))


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_receipt_of_a_popped_message_is_not_stored_with_its_copy(client: Client) -> None:
    await client.create_topic("T")
    receipt = "0 1 60000 0 0 b 0 0"
    given = properties(a="1", POP_CK=receipt, MY_POP_CK="2", UNIQ_KEY="U")
    assert (await client.send(i=given)).code == 0
    assert (await client.send(i=given + properties(DELAY="1"))).code == 0
    body = encode_batch([BatchedMessage(b"x", properties=properties(c="3", POP_CK=receipt, UNIQ_KEY="V"))])
    batch = await client.request(RequestCode.SEND_BATCH_MESSAGE, send_ext(i=given, m=True), body)
    assert batch.code == 0, batch
    wanted = {"a": "1", "MY_POP_CK": "2"}
    found: list[dict[str, str]] = []

    async def all_stored() -> bool:
        found[:] = [record.properties for record in (await client.pull()).records]
        return len(found) == 3

    await until(all_stored)
    for stored in found:
        assert "POP_CK" not in stored
        assert wanted.items() <= stored.items()


async def test_first_message_makes_the_topic(client: Client) -> None:
    for asked, queues in ((1, 1), (4, 4), (8, 8), (9, 8), (2**31 - 1, 8)):
        topic = f"New{asked}"
        assert (await client.send(topic, d=asked, e=queues - 1)).ext["queueId"] == str(queues - 1)
        refused = await client.send(topic, e=queues)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert f"queue id {queues} is illegal" in str(refused.remark)
        assert [await client.offset(GET_MAX, topic, queue) for queue in range(queues)] == [0] * (queues - 1) + [1]


async def test_rules_of_automatic_creation(client: Client) -> None:
    no_queue, no_template, no_inheritance = ({"d": 0}, {"d": -1}), ({"c": "Nothing"}, {"c": ""}), ({"c": "Plain"},)
    await client.create_topic("Plain", perm=6)
    for given in (*no_queue, *no_template, *no_inheritance):
        answer = await client.send("New", **given)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST, given
        assert "New" in str(answer.remark)
        assert (await client.pull("New")).code == ResponseCode.TOPIC_NOT_EXIST, given


async def test_unknown_topic_is_refused_when_automatic_creation_is_off(tmp_path: Path) -> None:
    async with broker_client(tmp_path, auto_create_topics=False) as client:
        assert (await client.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.create_topic("New")).code == ResponseCode.SUCCESS
        assert (await client.send("New")).code == ResponseCode.SUCCESS


async def test_topic_permissions_restrict_sends_and_pulls(client: Client) -> None:
    await client.create_topic("ReadOnly", perm=4)
    await client.create_topic("WriteOnly", perm=2)
    assert (await client.send("ReadOnly")).code == ResponseCode.NO_PERMISSION
    assert (await client.send("WriteOnly")).code == ResponseCode.SUCCESS
    assert (await client.pull("WriteOnly")).code == ResponseCode.NO_PERMISSION
    await client.create_topic("WriteOnly", perm=4)
    assert (await client.send("WriteOnly")).code == ResponseCode.NO_PERMISSION
    assert len((await client.pull("WriteOnly")).records) == 1


async def test_clients_may_not_write_to_internal_topics(client: Client) -> None:
    internal = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_raftmq_meta")
    others = ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC")
    last = (await client.info())["raftmq.lastIndex"]
    for topic in internal + others:
        assert (await client.send(topic)).code == ResponseCode.NO_PERMISSION, topic
    assert (await client.info())["raftmq.lastIndex"] == last


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_queue_below_zero_is_chosen_by_the_broker(client: Client) -> None:
    for queue_id in (-1, -(2**31)):
        queues = [int((await client.send(e=queue_id)).ext["queueId"]) for _ in range(60)]
        assert set(queues) == {0, 1, 2, 3}
    assert sum([await client.offset(GET_MAX, queue_id=queue) for queue in range(4)]) == 120


REFUSED: list[tuple[str, dict[str, Any], bytes, ResponseCode]] = [
    ("queue id too large", {"e": 4}, b"", ResponseCode.INVALID_PARAMETER),
    ("largest queue id", {"e": 2**31 - 1}, b"", ResponseCode.INVALID_PARAMETER),
    ("body too large", {}, bytes(4097), ResponseCode.MESSAGE_ILLEGAL),
    ("properties too long", {"i": properties(KEYS="k" * 32_760)}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("properties too long in bytes only", {"i": properties(KEYS="\u20ac" * 11_000)}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("too long with what the broker adds", {"i": properties(KEYS="k" * 32_750)}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("topic that leaves its directory", {"b": "../x"}, b"", ResponseCode.INVALID_PARAMETER),
    ("topic with a slash", {"b": "a/b"}, b"", ResponseCode.INVALID_PARAMETER),
    ("topic with a zero", {"b": "a\x00"}, b"", ResponseCode.INVALID_PARAMETER),
    ("topic with a line end", {"b": "a\n"}, b"", ResponseCode.INVALID_PARAMETER),
    ("topic that is no ASCII", {"b": "ä"}, b"", ResponseCode.INVALID_PARAMETER),
    ("topic of 200 characters", {"b": "t" * 200}, b"", ResponseCode.INVALID_PARAMETER),
    ("topic of 128 characters", {"b": "t" * 128}, b"", ResponseCode.INVALID_PARAMETER),
    ("batch", {"m": True}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("delay that is not a number", {"i": properties(DELAY="x")}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("delay in seconds", {"i": properties(TIMER_DELAY_SEC="3s")}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("delay in milliseconds", {"i": properties(TIMER_DELAY_MS="3s")}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ("delivery time", {"i": properties(TIMER_DELIVER_MS="3s")}, b"", ResponseCode.MESSAGE_ILLEGAL),
]


async def test_refused_sends_leave_no_state(tmp_path: Path) -> None:
    async with running(tmp_path, message_bytes_max=4096) as broker:
        client, other = await broker.connect(), await broker.connect()
        await client.create_topic("T", 4)
        before = await client.info()
        for what, given, body, code in REFUSED:
            for serialization in (JSON, BINARY):
                answer = await client.send(body=body, serialization=serialization, **({"topic": "T"} | _topic(given)))
                assert answer.code == code, (what, answer)
                assert answer.remark, what
        assert (await client.send("", serialization=JSON)).code == ResponseCode.INVALID_PARAMETER
        # A binary header cannot carry an empty value: the field is missing, which is another mistake.
        assert (await client.send("", serialization=BINARY)).code == ResponseCode.SYSTEM_ERROR
        after = await other.info()
        assert after["raftmq.lastIndex"] == before["raftmq.lastIndex"]
        assert after["raftmq.pendingBytes"] == "0"
        assert [await client.offset(GET_MAX, queue_id=queue) for queue in range(4)] == [0, 0, 0, 0]


def _topic(given: dict[str, Any]) -> dict[str, Any]:
    return {"topic" if name == "b" else name: value for name, value in given.items()}


async def test_limits_themselves_are_allowed(tmp_path: Path) -> None:
    unique, added = "UNIQ_KEY\x01u\x02", properties(**ADDED | {"CLUSTER": "DefaultCluster"})
    longest = properties(KEYS="k" * (29_696 - len(unique) - len(added) - len(properties(KEYS=""))))
    async with broker_client(tmp_path, message_bytes_max=4096) as client:
        assert (await client.send("t" * 127, bytes(4096), e=3, i=longest + unique)).code == 0
        (record,) = (await client.pull("t" * 127, 3)).records
        assert len(record.properties["KEYS"]) == len(longest) - 6
        assert (await client.send(i=properties(DELAY="0", TRAN_MSG="false", XDELAY="3"))).code == 0


# -- many, large, one-way ----------------------------------------------------------------------------------------------


async def test_oneway_messages_are_stored_without_an_answer(client: Client) -> None:
    await client.create_topic("T", 1)
    for number in range(3):
        await client.post(RequestCode.SEND_MESSAGE_V2, send_ext(), b"%d" % number, oneway=True)
    await client.post(RequestCode.SEND_MESSAGE_V2, send_ext(e=99), oneway=True)
    await client.post(77, oneway=True)
    answer = await client.send(body=b"last")
    assert answer.ext["queueOffset"] == "3"
    assert client.order == [1, answer.opaque]
    assert [record.body for record in (await client.pull()).records] == [b"0", b"1", b"2", b"last"]


async def test_many_messages_in_one_write_keep_their_order_in_each_queue(tmp_path: Path) -> None:
    count, queues = 2000, 4
    async with broker_client(tmp_path, entry_bytes_max=16 * 1024) as client:
        frames = [
            client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(e=number % queues), b"%d" % number)
            for number in range(count)
        ]
        await client.stream.send_all(b"".join(data for _, data in frames))
        answers = [await client.answer(opaque) for opaque, _ in frames]
        assert client.order == [opaque for opaque, _ in frames]
        positions = [parse_offset_message_id(answer.ext["msgId"]).physical_offset for answer in answers]
        assert positions == sorted(set(positions))
        assert [int(answer.ext["queueOffset"]) for answer in answers] == [number // queues for number in range(count)]
        for queue in range(queues):
            bodies: list[bytes] = []
            while (pulled := await client.pull(queue_id=queue, offset=len(bodies))).code == ResponseCode.SUCCESS:
                bodies += [record.body for record in pulled.records]
            assert bodies == [b"%d" % number for number in range(queue, count, queues)]


async def test_messages_to_a_topic_being_created_are_stored_in_order(broker: RunningBroker) -> None:
    clients = [await broker.connect() for _ in range(3)]
    frames = [
        [client.frame(RequestCode.SEND_MESSAGE_V2, send_ext("New"), b"%d" % number) for number in range(20)]
        for client in clients
    ]
    for client, own in zip(clients, frames, strict=True):
        await client.stream.send_all(b"".join(data for _, data in own))
    offsets = []
    for client, own in zip(clients, frames, strict=True):
        mine = [int((await client.answer(opaque)).ext["queueOffset"]) for opaque, _ in own]
        assert mine == sorted(mine)
        offsets += mine
    assert sorted(offsets) == list(range(60))


async def test_offsets_stay_consecutive_while_the_topic_changes(broker: RunningBroker) -> None:
    """Queues are looked up anew after a change, with messages for them still under way."""
    client, admin = await broker.connect(), await broker.connect()
    await client.create_topic("T", 1)
    offsets: list[int] = []

    async def change() -> None:
        for number in range(40):
            assert (await admin.create_topic("T", 1 + number % 5)).code == 0

    async def send() -> None:
        waiting: list[int] = []
        for _ in range(400):
            waiting.append(await client.post(RequestCode.SEND_MESSAGE_V2, send_ext()))
            if len(waiting) > 3:
                offsets.append(int((await client.answer(waiting.pop(0))).ext["queueOffset"]))
        offsets.extend([int((await client.answer(opaque)).ext["queueOffset"]) for opaque in waiting])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        nursery.start_soon(send)
    assert offsets == list(range(400))


async def test_large_body_in_small_pieces(tmp_path: Path) -> None:
    body = bytes(range(251)) * (3 * 1024 * 1024 // 251)
    async with running(tmp_path) as broker:
        client, other = await broker.connect(), await broker.connect()
        opaque, data = client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(), body)
        behind, small = client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(), b"small")
        data += small
        pieces = [7, 3, 40, 1000, 4096, 60_000, 70_000, 200_000]
        at = 0
        for number in range(10_000):
            if at >= len(data):
                break
            piece = pieces[number % len(pieces)]
            await client.stream.send_all(data[at : at + piece])
            at += piece
            if number == 20:
                assert await other.alive()
        assert (await client.answer(opaque)).code == 0
        assert (await client.answer(behind)).ext["queueOffset"] == "1"
        large = await client.pull()
        assert [record.body for record in large.records] == [body]
        assert [record.body for record in (await client.pull(offset=1)).records] == [b"small"]


async def test_messages_wait_in_memory_only_up_to_a_limit(tmp_path: Path) -> None:
    """More than a round can take in comes at once: the broker says it is busy, and takes messages again afterwards."""
    async with broker_client(tmp_path, queues=1, uncommitted_bytes_max=1024 * 1024) as client:
        frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(), bytes(600 * 1024)) for _ in range(8)]
        await client.stream.send_all(b"".join(data for _, data in frames))
        codes = [(await client.answer(opaque)).code for opaque, _ in frames]
        assert set(codes) <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert await client.offset(GET_MAX) == codes.count(ResponseCode.SUCCESS)
        assert (await client.send()).code == ResponseCode.SUCCESS
        assert (await client.info())["raftmq.pendingBytes"] == "0"


async def test_read_only_queue_still_stores_sends_that_name_the_queue(client: Client) -> None:
    await client.create_topic("S", readQueueNums=4, writeQueueNums=2)
    assert (await client.send("S", e=3)).code == ResponseCode.SUCCESS
    chosen = {(await client.send("S", e=-1)).ext["queueId"] for _ in range(50)}
    assert chosen == {"0", "1"}
    assert (await client.send("S", e=4)).code == ResponseCode.INVALID_PARAMETER
