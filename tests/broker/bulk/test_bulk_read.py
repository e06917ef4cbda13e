"""Bulk reads at a broker: what is committed, in the order of the log, or a typed answer that says why not."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Any

import pytest
import trio

from mq.protocol.bulk import BULK_BYTES_MAX, RANGES_MAX, BulkStatus, ReadRange, decode_answer, encode_ranges
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset
from tests.support.bulk_reading import bulk, bulk_ext, bulk_request, read_all, records
from tests.support.damaged_records import FIELDS, File, body_of, close_the_first_file, send
from tests.support.running_broker import FAST, Client, RunningBroker, broker_client, limited, pull_ext, running
from tests.support.sent_messages import sent
from tests.support.short_logs import SMALL, fill, shortened

RANGE = Struct(">iqq")


async def pulled(client: Client, topic: str, queue_id: int, end: int) -> list[bytes]:
    """The records of a queue as pulls bring them."""
    found: list[bytes] = []
    while len(found) < end:
        answer = await client.request(RequestCode.PULL_MESSAGE, pull_ext(topic, queue_id, len(found)))
        at = 0
        for record in answer.records:
            found.append(answer.body[at : at + record.size])
            at += record.size
    return found


@pytest.mark.parametrize("bytes_max", [1, 1000, 10_000, BULK_BYTES_MAX])
async def test_all_queues_are_read_in_log_order_and_match_pulls(tmp_path: Path, bytes_max: int) -> None:
    async with broker_client(tmp_path, queues=3, entry_bytes_max=2000) as client:
        await client.create_topic("Other", 1)
        for _ in range(3):
            await sent(client, 60)
            await sent(client, 5, 1, topic="Other")
        found = await read_all(client, (0, 0, 60), (1, 7, 60), (2, 0, 41), bytesMax=bytes_max)
        positions = [record.physical_offset for record in found]
        assert positions == sorted(positions)
        for queue_id, start, end in ((0, 0, 60), (1, 7, 60), (2, 0, 41)):
            mine = [record for record in found if record.queue_id == queue_id]
            assert [record.queue_offset for record in mine] == list(range(start, end))
        answer = await bulk(client, (1, 0, 60), bytesMax=BULK_BYTES_MAX)
        assert bytes(answer.data) == b"".join(await pulled(client, "T", 1, 60))
        info = await client.info()
        assert int(info["raftmq.bulkRowsAsLeader.c"]) == len(found) + 60
        assert int(info["raftmq.bulkBytesAsLeader.c"]) == sum(record.size for record in found) + len(answer.data)
        assert int(info["raftmq.bulkBytesAsFollower"]) == 0


async def test_old_messages_are_read_from_the_files_of_the_log(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=3) as client:
        await sent(client, 300, body_bytes=5000)
    async with broker_client(tmp_path) as client:
        found = await read_all(client, *((queue_id, 0, 100) for queue_id in range(3)))
        assert [record.body[:6] for record in found] == [b"%06d" % n for n in range(300)]


async def test_bulk_read_skips_messages_with_other_tags(client: Client) -> None:
    await client.create_topic("T", 3)
    await sent(client, 60)
    found = await read_all(client, (0, 0, 20), (2, 0, 20), tags="even || other")
    assert sorted((record.queue_id, record.queue_offset) for record in found) == [
        (queue_id, offset) for queue_id in (0, 2) for offset in range(0, 20, 2)
    ]
    answer = await bulk(client, (0, 0, 20), tags="other")
    assert (answer.status, answer.offsets, len(answer.sizes)) == (BulkStatus.RECORDS, {0: 20}, 0)


async def test_offsets_can_be_read_without_messages(client: Client) -> None:
    await client.create_topic("T", 3)
    await sent(client, 60)
    answer = await bulk(client, (0, 3, 50), (2, 0, 10), offsetsOnly=True)
    assert (answer.status, answer.offsets) == (BulkStatus.RECORDS, {0: 20, 2: 10})
    assert (answer.without_records, len(answer.sizes), len(answer.data)) == (True, 0, 0)
    behind = await bulk(client, (0, 20, 50), offsetsOnly=True)
    assert (behind.status, behind.offsets) == (BulkStatus.BEHIND, {0: 20})
    tagged = await bulk(client, (0, 0, 20), offsetsOnly=True, tags="even")
    assert (tagged.without_records, len(tagged.sizes)) == (False, 10)
    whole = await bulk(client, (0, 0, 20))
    assert (whole.without_records, len(whole.sizes)) == (False, 20)


async def test_bulk_read_without_bodies_returns_all_other_fields(client: Client) -> None:
    await client.create_topic("T", 1)
    await sent(client, 5, 1, body_bytes=600)
    whole, cut = await bulk(client, (0, 0, 5)), await bulk(client, (0, 0, 5), bodies=False)
    assert (whole.without_bodies, cut.without_bodies) == (False, True)
    expected = b""
    for record in records(whole):
        at = len(expected) + 600 * record.queue_offset
        expected += bytes(whole.data[at : at + 88]) + bytes(whole.data[at + 688 : at + record.size])
    assert bytes(cut.data) == expected


async def test_bulk_read_waits_for_missing_offsets_then_answers_behind(broker: RunningBroker, client: Client) -> None:
    await client.create_topic("T", 2)
    await sent(client, 4, 2)
    answer = await bulk(client, (0, 2, 9), (1, 5, 9))
    assert (answer.status, answer.offsets) == (BulkStatus.BEHIND, {0: 2, 1: 2})
    some = await bulk(client, (0, 1, 9), (1, 5, 9))
    assert [record.queue_offset for record in records(some)] == [1]
    other = await broker.connect()
    body = encode_ranges([ReadRange(0, QueueOffset(2), QueueOffset(9))])
    waiting = await other.post(RequestCode.BULK_READ, bulk_ext(waitMs=30_000), body)
    await client.wait_for(lambda info: info["raftmq.bulkReadsWaiting"] == "1")
    await sent(client, 2, 2)
    assert [record.queue_offset for record in records(decode_answer((await other.answer(waiting)).body))] == [2]


async def test_waiting_readers_do_not_block_reads_of_stored_messages(tmp_path: Path) -> None:
    async with running(tmp_path, bulk_reads_max=1) as broker:
        client, patient = await broker.connect(), await broker.connect()
        await client.create_topic("T", 1)
        await sent(client, 2, 1)
        body = encode_ranges([ReadRange(0, QueueOffset(2), QueueOffset(9))])
        waiting = [
            await patient.post(RequestCode.BULK_READ, bulk_ext(waitMs=30_000), body)
            for _ in range(FAST.bulk.waiting_factor)
        ]
        await client.wait_for(lambda info: info["raftmq.bulkReadsWaiting"] == str(len(waiting)))
        assert len(records(await bulk(client, (0, 0, 2)))) == 2
        assert (await bulk(client, (0, 2, 9), waitMs=30_000)).status is BulkStatus.BUSY
        await sent(client, 1, 1)
        for opaque in waiting:
            assert len(records(decode_answer((await patient.answer(opaque)).body))) == 1


async def test_bulk_read_of_deleted_messages_names_the_first_offsets(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=4, **SMALL) as client:
        await fill(client)
        await shortened(client, tmp_path / "commitlog")
        answer = await bulk(client, (0, 0, 400))
        low = await client.offset(RequestCode.GET_MIN_OFFSET)
        assert (answer.status, list(answer.offsets)) == (BulkStatus.GONE, [0])
        assert 0 < answer.offsets[0] <= low
        start = low
        while (answer := await bulk(client, (0, start, 400))).status is not BulkStatus.RECORDS:
            if answer.status is BulkStatus.GONE:  # another file was dropped meanwhile
                assert start < answer.offsets[0] < 400
                start = answer.offsets[0]
        found = records(answer)
        assert found
        assert [record.queue_offset for record in found] == list(range(start, answer.offsets[0]))


async def test_leader_refuses_bulk_reads_that_allow_only_followers(client: Client) -> None:
    await client.create_topic("T", 1)
    await sent(client, 1, 1)
    answer = await bulk(client, (0, 0, 1), allowLeader=False)
    assert (answer.status, answer.text) == (BulkStatus.NOT_FOLLOWER, "")
    assert (await client.info())["raftmq.bulkBytesAsLeader"] == "0"


async def test_recreated_topic_is_a_different_topic(client: Client) -> None:
    await client.create_topic("T", 1)
    identity = (await client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})).ext["topicIdentity"]
    await sent(client, 3, 1)
    assert len(records(await bulk(client, (0, 0, 3), topicIdentity=identity))) == 3
    await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await client.create_topic("T", 1)
    await sent(client, 3, 1)
    answer = await bulk(client, (0, 3, 6), topicIdentity=identity)
    assert answer.status is BulkStatus.RECREATED
    assert len(records(await bulk(client, (0, 3, 6), topicIdentity=answer.text))) == 3


async def test_bulk_read_never_returns_altered_records(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1) as client:
        await client.create_topic("Filler", 1)
        for field in FIELDS:
            await send(client, "T", field)
        await close_the_first_file(client)
    file = File(tmp_path)
    async with broker_client(tmp_path) as client:
        for number, field in enumerate(FIELDS):
            file.restore()
            file.flip(field, field)
            for bodies in (True, False):
                answer = await bulk(client, (0, number, number + 1), bodies=bodies)
                assert (answer.status, len(answer.sizes)) == (BulkStatus.DAMAGED, 0), field
        file.restore()
        found = await read_all(client, (0, 0, len(FIELDS)))
        assert [record.body for record in found] == [body_of(field) for field in FIELDS]
        assert int((await client.info())["raftmq.bulkReadsDamaged"]) == 2 * len(FIELDS)


async def test_throttled_reader_gets_the_time_to_retry(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, bulk_bytes_per_second=1024 * 1024) as client:
        await sent(client, 100, 1, body_bytes=30_000)
        answers = [await bulk(client, (0, 0, 100), bytesMax=BULK_BYTES_MAX) for _ in range(3)]
        assert [answer.status for answer in answers] == [BulkStatus.RECORDS, BulkStatus.BUSY, BulkStatus.BUSY]
        assert 0 < answers[1].pause_ms <= 3000
        assert (await client.info())["raftmq.bulkReadsBusy"] == "2"


async def test_too_many_waiting_reads_are_answered_busy(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, limits=limited(bulk={"waiting_factor": 0})) as client:
        await sent(client, 1, 1)
        assert (await bulk(client, (0, 0, 1))).status is BulkStatus.BUSY
        assert (await client.info())["raftmq.bulkReadsBusy"] == "1"


async def test_broker_stops_answering_a_client_that_does_not_read(tmp_path: Path) -> None:
    async with running(tmp_path, limits=limited(bulk={"unread_bytes_max": 100_000})) as broker:
        client, lazy = await broker.connect(), await broker.connect()
        await client.create_topic("T", 1)
        await sent(client, 100, 1, body_bytes=30_000)
        body = encode_ranges([ReadRange(0, QueueOffset(0), QueueOffset(100))])
        posted = []
        with trio.fail_after(60):
            while (await client.info())["raftmq.bulkReadsBusy"] == "0":
                posted.append(await lazy.post(RequestCode.BULK_READ, bulk_ext(bytesMax=BULK_BYTES_MAX), body))
        statuses = {decode_answer((await lazy.answer(opaque)).body).status for opaque in posted}
        assert statuses == {BulkStatus.RECORDS, BulkStatus.BUSY}


BAD: list[tuple[dict[str, Any], bytes, ResponseCode]] = [
    ({}, b"", ResponseCode.SYSTEM_ERROR),
    ({}, b"\0" * 19, ResponseCode.SYSTEM_ERROR),
    ({}, RANGE.pack(0, 1, 1), ResponseCode.SYSTEM_ERROR),
    ({}, RANGE.pack(0, 2, 1), ResponseCode.SYSTEM_ERROR),
    ({}, RANGE.pack(0, -2, 1), ResponseCode.SYSTEM_ERROR),
    ({}, RANGE.pack(-1, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({}, RANGE.pack(0, 0, 1) * 2, ResponseCode.SYSTEM_ERROR),
    ({}, b"".join(RANGE.pack(n, 0, 1) for n in range(RANGES_MAX + 1)), ResponseCode.SYSTEM_ERROR),
    ({}, RANGE.pack(2, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({}, RANGE.pack(2**31 - 1, 0, 2**63 - 1), ResponseCode.INVALID_PARAMETER),
    ({"bytesMax": 0}, RANGE.pack(0, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({"bytesMax": -1}, RANGE.pack(0, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({"bytesMax": BULK_BYTES_MAX + 1}, RANGE.pack(0, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({"bytesMax": "many"}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"bytesMax": None}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"bytesMax": 2**31}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"bytesMax": "1e3"}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"bytesMax": "1000.0"}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"bodies": "maybe"}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"allowLeader": "1"}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
    ({"waitMs": -1}, RANGE.pack(0, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({"waitMs": 10**6}, RANGE.pack(0, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({"clientId": "c" * 256}, RANGE.pack(0, 0, 1), ResponseCode.INVALID_PARAMETER),
    ({"tags": "||"}, RANGE.pack(0, 0, 1), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ({"topic": "Nowhere"}, RANGE.pack(0, 0, 1), ResponseCode.TOPIC_NOT_EXIST),
    ({"topic": "../T"}, RANGE.pack(0, 0, 1), ResponseCode.TOPIC_NOT_EXIST),
    ({"topic": "Written"}, RANGE.pack(0, 0, 1), ResponseCode.NO_PERMISSION),
    ({"topic": None}, RANGE.pack(0, 0, 1), ResponseCode.SYSTEM_ERROR),
]


async def test_bulk_read_refuses_bad_requests(client: Client) -> None:
    await client.create_topic("T", 2)
    await client.create_topic("Written", 1, perm=2)
    await sent(client, 2, 2)
    for ext, body, code in BAD:
        answer = await client.request(RequestCode.BULK_READ, bulk_ext(**ext), body)
        assert (answer.code, answer.body) == (code, b""), (ext, body, answer)
        assert answer.remark
    whole = await bulk_request(client, (0, 0, 2**63 - 1), (1, 0, 1), clientId="ü\0{}" * 20)
    assert len(records(decode_answer(whole.body))) == 2


async def test_disconnected_client_is_not_served(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await client.create_topic("T", 1)
    body = encode_ranges([ReadRange(0, QueueOffset(0), QueueOffset(9))])
    await other.post(RequestCode.BULK_READ, bulk_ext(waitMs=30_000), body)
    await client.wait_for(lambda info: info["raftmq.bulkReadsWaiting"] == "1")
    await other.stream.aclose()
    await client.wait_for(lambda info: info["raftmq.bulkReadsWaiting"] == "0")
