"""Messages out over real sockets: found, filtered, waited for, and offsets where nothing is."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from mq.broker.consume.pull import HeldPull, Pulls
from mq.broker.consume.record_reader import RecordReader
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.store.consume_queue import ConsumeQueue
from tests.support.running_broker import (
    SUBSCRIPTION,
    SUSPEND,
    Client,
    RunningBroker,
    broker_client,
    properties,
    pull_ext,
    running,
)

COMMIT_OFFSET = 1
HELD = SUBSCRIPTION | SUSPEND
PULL = RequestCode.PULL_MESSAGE


async def held_pulls(client: Client) -> int:
    return int((await client.info())["raftmq.heldPulls"])


async def test_pull_returns_messages_from_its_offset(tmp_path: Path) -> None:
    async with broker_client(tmp_path, pull_messages_max=10) as client:
        for number in range(15):
            await client.send(body=b"%d" % number)
        answer = await client.pull(offset=3, maxMsgNums=4)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
        assert [record.body for record in answer.records] == [b"3", b"4", b"5", b"6"]
        assert answer.ext["nextBeginOffset"] == "7"
        assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "15")
        assert answer.ext["suggestWhichBrokerId"] == "0"
        assert len((await client.pull(maxMsgNums=1000)).records) == 10  # the broker's own limit
        for count in (0, -1, -(2**31)):
            assert len((await client.pull(maxMsgNums=count)).records) == 1
        lite = await client.request(RequestCode.LITE_PULL_MESSAGE, pull_ext(offset=14), serialization=BINARY)
        assert [record.body for record in lite.records] == [b"14"]
        assert lite.serialization == BINARY
        assert lite.ext["nextBeginOffset"] == "15"


async def test_pull_answer_keeps_its_byte_limit_except_for_one_message(tmp_path: Path) -> None:
    async with broker_client(tmp_path, pull_bytes_max=10_000) as client:
        for nbytes in (20_000, 4000, 4000, 4000):
            await client.send(body=bytes(nbytes))
        assert [len(record.body) for record in (await client.pull()).records] == [20_000]
        assert [len(record.body) for record in (await client.pull(offset=1)).records] == [4000, 4000]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_lagging_consumer_gets_smaller_answers(tmp_path: Path, serialization: int) -> None:
    async with broker_client(tmp_path, slow_consumer_bytes=20_000, slow_pull_bytes_max=10_000) as client:
        for nbytes in [100] * 20 + [4000] * 20:
            await client.send(body=bytes(nbytes))
        far = await client.request(PULL, pull_ext(), serialization=serialization)
        assert len(far.records) == 8
        # There is no follower to go to.
        assert far.ext == {"nextBeginOffset": "8", "minOffset": "0", "maxOffset": "40", "suggestWhichBrokerId": "0"}
        assert len((await client.pull(offset=20)).records) == 2
        near = await client.request(PULL, pull_ext(offset=36), serialization=serialization)
        assert len(near.records) == 4


async def test_pull_returns_distant_records_together(tmp_path: Path) -> None:
    """Between the messages of one queue lie those of others: few bytes, many bytes, the end of a file."""
    async with broker_client(
        tmp_path, segment_bytes=128 * 1024, message_bytes_max=32 * 1024, entry_bytes_max=1024
    ) as client:
        sent = []
        for number in range(20):
            await client.send(body=b"%d" % number * 100)
            sent.append(b"%d" % number * 100)
            await client.send(e=1, body=bytes(30_000 if number % 3 == 0 else 100))
        assert [record.body for record in (await client.pull()).records] == sent


async def test_pull_returns_only_messages_with_a_subscribed_tag(client: Client) -> None:
    for tag in ("a", "b", "c", "a", ""):
        await client.send(body=tag.encode(), i=properties(TAGS=tag) if tag else "")
    some = await client.pull(subscription="a || c")
    assert [record.body for record in some.records] == [b"a", b"c", b"a"]
    assert some.ext["nextBeginOffset"] == "5"
    none = await client.pull(subscription="nobody", expressionType="TAG", sysFlag=HELD)
    assert (none.code, none.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert none.ext["nextBeginOffset"] == "5"
    # The answer ends before the first wanted message that does not fit, not behind it.
    first = await client.pull(subscription="a", maxMsgNums=1)
    assert (len(first.records), first.ext["nextBeginOffset"]) == (1, "3")


async def test_waiting_pull_is_answered_by_the_next_message(broker: RunningBroker) -> None:
    waiting, client = await broker.connect(), await broker.connect()
    await client.create_topic("T", 2)
    opaque = await waiting.post(PULL, pull_ext(sysFlag=HELD))
    assert await waiting.alive()
    assert await held_pulls(client) == 1
    await client.send(e=1, body=b"another queue")
    assert await held_pulls(client) == 1
    await client.send(body=b"at last")
    answer = await waiting.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in answer.records] == [b"at last"]
    assert await held_pulls(client) == 0


async def test_waiting_pull_is_answered_by_a_message_with_its_tag_only(broker: RunningBroker) -> None:
    waiting, client = await broker.connect(), await broker.connect()
    await client.create_topic("T", 1)
    opaque = await waiting.post(PULL, pull_ext(sysFlag=HELD, subscription="b"))
    assert await waiting.alive()
    for _ in range(2):
        await client.send(i=properties(TAGS="a"))
    assert await held_pulls(client) == 1
    await client.send(body=b"wanted", i=properties(TAGS="b"))
    answer = await waiting.answer(opaque)
    assert [record.body for record in answer.records] == [b"wanted"]
    assert answer.ext["nextBeginOffset"] == "3"


@pytest.mark.parametrize(("reader", "method"), [(RecordReader, "read_entries"), (ConsumeQueue, "read")])
async def test_unreadable_disk_fails_only_the_waiting_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: type[Any], method: str
) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "the disk does not answer")

    async with running(tmp_path) as broker:
        waiting, client = await broker.connect(), await broker.connect()
        await client.create_topic("T", 1)
        opaque = await waiting.post(PULL, pull_ext(sysFlag=HELD))
        await client.wait_for(lambda info: info["raftmq.heldPulls"] == "1")
        with monkeypatch.context() as patched:
            patched.setattr(reader, method, fails)
            assert (await client.send(body=b"stored all the same")).code == ResponseCode.SUCCESS
            answer = await waiting.answer(opaque)
            assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, opaque)
            assert "the disk does not answer" in str(answer.remark)
            assert await held_pulls(client) == 0
            ext = {"consumerGroup": "New", "topic": "T", "queueId": 0}
            await waiting.post(RequestCode.QUERY_CONSUMER_OFFSET, ext)
            if reader is ConsumeQueue:
                assert await waiting.closed()  # an error would be taken for "no offset yet"
        assert [record.body for record in (await client.pull()).records] == [b"stored all the same"]


async def test_pull_waits_no_longer_than_its_suspend_timeout(client: Client) -> None:
    await client.create_topic("T", 1)
    await client.send()
    for milliseconds in (1, 0, -5, -(2**63)):
        answer = await client.pull(offset=1, sysFlag=HELD, suspendTimeoutMillis=milliseconds)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == ("1", "1")
    at_once = await client.pull(offset=1, suspendTimeoutMillis=15_000)
    assert at_once.code == ResponseCode.PULL_NOT_FOUND
    assert await held_pulls(client) == 0


async def test_waiting_pulls_are_dropped_with_their_connection(broker: RunningBroker) -> None:
    waiting, client = await broker.connect(), await broker.connect()
    await client.create_topic("T", 1)
    for _ in range(5):
        await waiting.post(PULL, pull_ext(sysFlag=HELD))
    assert await waiting.alive()
    assert await held_pulls(client) == 5
    await waiting.stream.aclose()
    await client.wait_for(lambda info: info["raftmq.heldPulls"] == "0")
    assert (await client.send()).code == 0


async def test_pulls_beyond_the_waiting_limit_are_answered_at_once(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, long_polls_max=2) as client:
        posted = [await client.post(PULL, pull_ext(sysFlag=HELD)) for _ in range(3)]
        assert (await client.answer(posted[2])).code == ResponseCode.PULL_NOT_FOUND
        await client.send()
        assert [(await client.answer(opaque)).code for opaque in posted[:2]] == [0, 0]


async def test_many_pulls_answered_by_one_message_do_not_delay_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were answered in one turn, 5,000 of them in 0.1 s, in which the leader did nothing else."""
    resume = Pulls.resume

    def resume_slowly(pulls: Pulls, pull: HeldPull) -> None:
        time.sleep(0.001)  # so long that not all are answered in one turn
        resume(pulls, pull)

    monkeypatch.setattr(Pulls, "resume", resume_slowly)
    async with running(tmp_path) as broker:
        waiting, client = await broker.connect(), await broker.connect()
        await client.create_topic("T", 1)
        posted = [await waiting.post(PULL, pull_ext(sysFlag=HELD, consumerGroup=f"G{n}")) for n in range(150)]
        assert await waiting.alive()
        await client.send(body=b"first")
        assert 0 < await held_pulls(client) < 150
        await client.send(body=b"second")
        answers = [await waiting.answer(opaque) for opaque in posted]
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert [answer.records[0].body for answer in answers] == [b"first"] * 150
        assert await held_pulls(client) == 0


async def test_pull_is_answered_at_once_if_waiting_pulls_use_all_their_memory(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, long_poll_bytes_max=1024 * 1024) as client:
        long = "||".join(map(str, range(4000)))
        first = await client.post(PULL, pull_ext(sysFlag=HELD, subscription=long))
        refused = await client.request(PULL, pull_ext(sysFlag=HELD, subscription=long))
        assert refused.code == ResponseCode.PULL_NOT_FOUND
        short = await client.post(PULL, pull_ext(sysFlag=HELD))
        assert 800_000 < int((await client.info())["raftmq.heldBytes"]) < 1024 * 1024
        await client.send(i=properties(TAGS="17"))
        assert [(await client.answer(opaque)).code for opaque in (first, short)] == [0, 0]
        assert (await client.info())["raftmq.heldBytes"] == "0"


async def test_client_asking_faster_than_reading_gets_all_answers(tmp_path: Path) -> None:
    async with running(tmp_path, client_unread_replies_bytes_max=8 * 1024 * 1024) as broker:
        client = await broker.connect()
        await client.create_topic("T", 1)
        await client.send(body=bytes(1024 * 1024))
        posted = [await client.post(PULL, pull_ext()) for _ in range(40)]
        await (await broker.connect()).send()  # the broker has seen all of them
        for opaque in posted:
            answer = await client.answer(opaque)
            assert (answer.code, len(answer.records)) == (0, 1)


async def test_pull_at_offsets_without_messages_returns_the_next_offset(client: Client) -> None:
    await client.create_topic("T", 2)
    await client.send()
    for queue_id, offset, code, next_offset in (
        (0, 1, ResponseCode.PULL_NOT_FOUND, 1),
        (0, 2, ResponseCode.PULL_OFFSET_MOVED, 1),
        (0, 2**63 - 1, ResponseCode.PULL_OFFSET_MOVED, 1),
        (0, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
        (0, -(2**63), ResponseCode.PULL_OFFSET_MOVED, 0),
        (1, 0, ResponseCode.PULL_NOT_FOUND, 0),
        (1, 1, ResponseCode.PULL_OFFSET_MOVED, 0),
        (1, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
    ):
        answer = await client.pull(queue_id=queue_id, offset=offset)
        assert (answer.code, int(answer.ext["nextBeginOffset"])) == (code, next_offset), (queue_id, offset)
        assert answer.body == b""
    moved = await client.pull(offset=7, sysFlag=HELD)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED  # an offset that is wrong is not waited for


async def test_broker_refuses_impossible_pulls(client: Client) -> None:
    await client.create_topic("T", 2)
    for what, ext, code in (
        ("unknown topic", pull_ext("Nothing"), ResponseCode.TOPIC_NOT_EXIST),
        ("topic of the metadata", pull_ext("rmq_sys_raftmq_meta"), ResponseCode.TOPIC_NOT_EXIST),
        ("topic outside", pull_ext("../T"), ResponseCode.TOPIC_NOT_EXIST),
        ("queue too large", pull_ext(queue_id=2), ResponseCode.INVALID_PARAMETER),
        ("queue below zero", pull_ext(queue_id=-1), ResponseCode.INVALID_PARAMETER),
        ("group outside", pull_ext(consumerGroup="../G"), ResponseCode.INVALID_PARAMETER),
        ("empty group", pull_ext(consumerGroup=""), ResponseCode.INVALID_PARAMETER),
        ("long group", pull_ext(consumerGroup="g" * 121), ResponseCode.INVALID_PARAMETER),
        ("expression of another type", pull_ext(expressionType="CLASS"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("SQL92 for everything", pull_ext(expressionType="SQL92"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("expression without a tag", pull_ext(subscription="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("nobody subscribed", pull_ext(sysFlag=0), ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ):
        answer = await client.request(PULL, ext)
        assert answer.code == code, (what, answer)
        assert answer.remark, what
    assert await held_pulls(client) == 0


async def test_pull_uses_the_subscription_of_its_group(client: Client) -> None:
    await client.send(i=properties(TAGS="a"))
    assert (await client.heartbeat("c1", "G")).code == 0
    assert len((await client.pull(sysFlag=0)).records) == 1
    other = await client.pull("TBW102", sysFlag=0)
    assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_pull_carries_the_groups_offset(broker: RunningBroker, client: Client) -> None:
    for _ in range(3):
        await client.send()
    await client.pull(commitOffset=2)
    assert await client.committed() == 0  # without the flag it does not count
    await client.pull(sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=2)
    assert await client.committed() == 2
    other = await broker.connect()
    await other.pull(queueOffset=2)
    await other.pull(queueOffset=2, sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=1)
    await other.pull(queueOffset=2, sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=-1)
    assert await client.committed() == 2
    await client.pull(queueOffset=1)  # it reads from there, so the offset may go back
    await client.pull(queueOffset=1, sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=1)
    assert await client.committed() == 1
