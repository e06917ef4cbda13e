"""Half messages that nobody ends: who is asked about them, when, how often, and what becomes of them then."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.broker.state.check_cursors import PUT_OFF_MAX, AdvanceChecks
from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid, SnapshotDamaged
from mq.broker.transaction.check_back import CheckTrack
from mq.broker.transaction.check_immunity import IMMUNITY_MS_MAX, immunity_ms
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import decode_record
from mq.protocol.names import HALF_TOPIC, UNENDED_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, NO_OFFSET, QueueOffset
from mq.protocol.requests.transactions import CheckTransactionState
from tests.support.check_backs import FAST, grows, produce
from tests.support.half_messages import COMMIT, PREPARED, ROLLBACK, end, end_ext, half_text, send_half
from tests.support.running_broker import broker_client, properties, running, send_ext
from tests.support.short_logs import DISK_EXPIRES
from tests.support.stored_messages import figure, stored
from tests.support.waiting_messages import WallClock

# -- asking ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_producer_decides_an_open_message_when_asked(tmp_path: Path, serialization: int) -> None:
    async with running(tmp_path, **FAST) as broker:
        client, producer = await broker.connect(), await broker.connect()
        await produce(producer)
        await client.create_topic("T", 4)
        text = half_text(KEYS="k", own="\u20ac")
        half = await client.send("T", e=3, f=PREPARED | 1, h=5, i=text, serialization=serialization)
        question, body = await producer.question()
        assert isinstance(question, CheckTransactionState)
        position = parse_offset_message_id(half.ext["msgId"]).physical_offset
        assert question.flag == 2, "one-way"
        ext = question.ext
        assert (ext.half_queue_offset, ext.half_physical_offset) == (0, position)
        assert (ext.msg_id, ext.transaction_id, ext.topic) == ("0A0B", "0A0B", "T")
        assert ext.offset_msg_id == half.ext["msgId"]
        asked = decode_record(memoryview(body))
        [waiting] = await stored(client, HALF_TOPIC)
        assert (asked.topic, asked.queue_id, asked.size) == ("T", 3, len(body))
        assert asked.properties == waiting.properties | {"TRANSACTION_CHECK_TIMES": "1"}
        for name in ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host"):
            assert getattr(asked, name) == getattr(waiting, name), name
        assert (asked.queue_offset, asked.physical_offset) == (waiting.queue_offset, waiting.physical_offset)

        answer = await end(producer, half, COMMIT, serialization=serialization, fromTransactionCheck=True)
        assert answer.code == 0
        assert len(await stored(client, "T", 3)) == 1


async def test_half_message_is_put_aside_once_after_its_last_check(tmp_path: Path) -> None:
    async with running(tmp_path, transaction_checks_max=3, **FAST) as broker:
        client, producer = await broker.connect(), await broker.connect()
        await produce(producer)
        half = await send_half(client, own="x")
        times = []
        for _ in range(3):
            question, body = await producer.question()
            assert question.ext.half_queue_offset == 0
            times.append(decode_record(memoryview(body)).properties["TRANSACTION_CHECK_TIMES"])
        assert times == ["1", "2", "3"]
        await grows(client, "transactionsGivenUp")
        [aside] = await stored(client, UNENDED_TOPIC)
        [waiting] = await stored(client, HALF_TOPIC)
        assert (aside.body, aside.properties, aside.sys_flag) == (b"body", waiting.properties, 0)
        late = await end(client, half, COMMIT)
        assert (late.code, bool(late.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        assert await stored(client) == []
        await trio.sleep(0.3)  # another check would have been made by then
        assert await figure(client, "transactionChecks") == 3
        assert len(await stored(client, UNENDED_TOPIC)) == 1


async def test_ended_messages_are_not_asked_about(tmp_path: Path) -> None:
    patient = FAST | {"transaction_timeout_seconds": 2.0, "transaction_checks_max": 2}
    async with running(tmp_path, **patient) as broker:
        client, producer = await broker.connect(), await broker.connect()
        await produce(producer)
        await client.create_topic("T")
        frames = [
            client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(i=half_text(), f=PREPARED), b"%d" % number)
            for number in range(80)
        ]
        await client.stream.send_all(b"".join(data for _, data in frames))
        halves = [await client.answer(opaque) for opaque, _ in frames]
        opened = [7, 40, 79]
        for number, half in enumerate(halves):
            if number not in opened:
                outcome = ROLLBACK if number % 2 else COMMIT
                await client.post(RequestCode.END_TRANSACTION, end_ext(half, outcome), oneway=True)
        await grows(client, "transactionsGivenUp", 3)
        asked = [(await producer.question())[0].ext.half_queue_offset for _ in range(6)]
        assert asked == opened * 2
        assert await figure(client, "transactionChecks") == 6
        assert len(await stored(client)) == sum(1 for n in range(80) if n % 2 == 0 and n not in opened)
        assert len(await stored(client, UNENDED_TOPIC)) == 3


async def test_only_producers_of_the_group_are_asked_in_turns(tmp_path: Path) -> None:
    async with running(tmp_path, **FAST) as broker:
        client, one, other, foreign = [await broker.connect() for _ in range(4)]
        await produce(one, client_id="p1")
        await produce(other, client_id="p2")
        await produce(foreign, "Q", "q1")
        for number in range(10):
            await send_half(client, b"%d" % number)
        # A busy broker asks about the first again before it has asked about all.
        asked: set[int] = set()
        while asked != set(range(10)):
            for producer in (one, other):
                asked.add((await producer.question())[0].ext.half_queue_offset)
        await foreign.info()
        assert foreign.questions == []


async def test_broker_counts_unanswerable_checks_and_asks_a_later_producer(tmp_path: Path) -> None:
    async with running(tmp_path, **FAST) as broker:
        client, producer = await broker.connect(), await broker.connect()
        half = await send_half(client)
        await grows(client, "transactionChecksUnanswerable")
        assert await figure(client, "transactionChecks") == 0
        await produce(producer)
        question, _ = await producer.question()
        assert question.ext.half_physical_offset == parse_offset_message_id(half.ext["msgId"]).physical_offset


@pytest.mark.parametrize("wrong_ms", [0, -20_000, 10**9])
async def test_producer_is_asked_only_after_its_requested_immunity_time(
    tmp_path: Path, clock: WallClock, wrong_ms: int
) -> None:
    async with running(tmp_path, transaction_checks_max=2, **FAST) as broker:
        client, producer = await broker.connect(), await broker.connect()
        await produce(producer)
        text = half_text(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        half = await client.send(i=text, f=PREPARED, g=clock.now_ms + wrong_ms)
        prompt = await client.send(i=text, f=PREPARED, g=clock.now_ms + wrong_ms)
        await send_half(client)
        asked = [(await producer.question())[0].ext.half_queue_offset for _ in range(2)]
        assert asked == [2, 2], "both checks, of the one without extra time"
        assert await figure(client, "transactionChecks") == 2
        clock.now_ms += 999
        assert (await end(client, prompt, COMMIT)).code == 0
        assert producer.questions == []
        # From the millisecond on in which the broker asks, only an answer counts.
        clock.now_ms += 1
        question, _ = await producer.question()
        assert question.ext.half_queue_offset == 0
        late = await end(client, half, COMMIT)
        assert (late.code, bool(late.remark)) == (ResponseCode.ILLEGAL_OPERATION, True)
        assert (await end(client, half, COMMIT, fromTransactionCheck=True)).code == 0
        assert len(await stored(client)) == 2


async def test_number_of_checks_outlives_a_restart(tmp_path: Path) -> None:
    slow = FAST | {"transaction_checks_max": 2}
    async with broker_client(tmp_path, **slow | {"transaction_check_seconds": 60.0}) as client:
        await send_half(client)
        await grows(client, "transactionChecksUnanswerable")
    # Time for the producer to be there before it is asked.
    async with running(tmp_path, **slow | {"transaction_check_seconds": 1.0}) as broker:
        producer = await broker.connect()
        await produce(producer)
        _, body = await producer.question()
        assert decode_record(memoryview(body)).properties["TRANSACTION_CHECK_TIMES"] == "2"
        await grows(producer, "transactionsGivenUp")


async def test_changing_the_maximum_of_checks_keeps_half_messages(tmp_path: Path) -> None:
    for most in (1, 4, 2):
        async with broker_client(tmp_path, transaction_checks_max=most, **FAST) as client:
            await send_half(client, b"%d" % most)
            await grows(client, "transactionsGivenUp")
            assert (await stored(client, UNENDED_TOPIC))[-1].body == b"%d" % most
    async with running(tmp_path, **FAST) as broker:
        assert len(await stored(await broker.connect(), UNENDED_TOPIC)) == 3


async def test_unreadable_half_messages_are_counted_and_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So full that retention takes even what waits, and not yet so that nothing can be sent.
    monkeypatch.setattr("mq.broker.services.disk_usage", lambda directory: (9 << 30, 100 << 30))
    small = DISK_EXPIRES | {
        "segment_bytes": 128 * 1024,
        "message_bytes_max": 32 * 1024,
        "retention_bytes": 1024 * 1024,
        "retention_check_seconds": 0.02,
        "checkpoint_seconds": 0.02,
    }
    async with broker_client(tmp_path, **small) as client:
        half = await send_half(client)
        ended = await send_half(client)
        assert (await end(client, ended, ROLLBACK)).code == 0
        for _ in range(150):
            assert (await client.send(body=bytes(16 * 1024))).code == 0
        young = await send_half(client, b"young")
        assert await grows(client, "transactionsExpired") == 1
        assert (await end(client, half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert (await end(client, young, COMMIT)).code == 0


async def test_unknown_producer_is_ignored(tmp_path: Path) -> None:
    """Properties of a half message are a client's: what cannot be is asked about as it is, and put aside."""
    odd = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon", "REAL_QID": "x", "REAL_TOPIC": "no topic"}
    async with broker_client(tmp_path, transaction_checks_max=1, **FAST) as client:
        await client.send(i=properties(TRAN_MSG="TRUE", PGROUP="nobody", **odd), f=PREPARED)
        await grows(client, "transactionsGivenUp")
        assert await client.alive()


# -- parts -------------------------------------------------------------------------------------------------------------


def test_check_track_returns_the_offset_of_an_earlier_time() -> None:
    track = CheckTrack(32.0)
    assert track.position_before(0.0) == 0
    for second in range(100):
        track.add_sample(float(second), QueueOffset(second * 10))
        assert track.position_before(float(second)) == max(0, second - 32) * 10
    track.add_sample(99.5, QueueOffset(5000))  # too soon after the last sample
    assert track.position_before(131.0) == 990


def test_track_is_bounded() -> None:
    track = CheckTrack(1.0)
    for step in range(10_000):
        track.add_sample(step / 10_000, QueueOffset(step))
    assert len(track._samples) <= 34


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, 0), ("5", 5000), ("-1", 6000), ("x", 6000), ("-7", 0), ("9" * 4000, IMMUNITY_MS_MAX), ("", 6000)],
)
def test_immunity_time_is_parsed_with_its_default(text: str | None, expected: int) -> None:
    assert immunity_ms(text, 6000) == expected


def test_checks_advance_and_survive_a_snapshot() -> None:
    metadata = Metadata()
    for number, offset in ((1, 10), (2, 5), (1, 7), (2, 6)):
        metadata.apply(decode_command(encode_command(AdvanceChecks(number=number, offset=QueueOffset(offset)))))
    assert metadata.checks.offsets == {1: 10, 2: 6}
    restored = Metadata()
    restored.restore(metadata.snapshot())
    assert restored.checks.offsets == {1: 10, 2: 6}
    assert restored.snapshot() == metadata.snapshot()
    for put_off in ([QueueOffset(3), QueueOffset(2)], None):
        metadata.apply(decode_command(encode_command(AdvanceChecks(number=2, offset=QueueOffset(6), put_off=put_off))))
        restored.restore(metadata.snapshot())
        assert restored.checks.put_off == (2, 3)
        assert restored.checks.offsets == {1: 10, 2: 6}
        assert restored.snapshot() == metadata.snapshot()
    metadata.apply(AdvanceChecks(number=2, offset=QueueOffset(6), put_off=[]))
    assert metadata.checks.put_off == ()
    for refused in ([NO_OFFSET], [QueueOffset(2**63)], [FIRST_OFFSET] * (PUT_OFF_MAX + 1)):
        with pytest.raises(CommandInvalid):
            decode_command(encode_command(AdvanceChecks(number=1, offset=QueueOffset(1), put_off=refused)))
    for state in ([[-1, 1]], [[0, -1]], [[1, -1]], [[101, 1]]):
        with pytest.raises(SnapshotDamaged):
            metadata.checks.restore(state)
    metadata.checks.topic_deleted(HALF_TOPIC)
    assert metadata.checks.offsets == {}


@pytest.mark.parametrize(("number", "offset"), [(0, 1), (101, 1), (1, -1), (1, 2**63)])
def test_impossible_commands_are_refused(number: int, offset: int) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(AdvanceChecks(number=number, offset=QueueOffset(offset)))
