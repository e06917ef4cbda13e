"""Messages at any time through a real broker, under a clock that the test moves."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest

from mq.broker.broker import Broker
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.delay import timer_slot
from mq.protocol.messages.recall_handle import RecallHandle
from mq.protocol.messages.records import RawRecord, RecordError, split_record
from mq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from mq.protocol.numbers import QueueOffset
from raftlog import Refusal
from raftlog.consensus.raft import RaftCore
from tests.support.running_broker import (
    LONG_NAMES,
    Answer,
    Client,
    broker_client,
    limited,
    properties,
    running,
    send_ext,
)
from tests.support.stored_messages import figure, stored, wait_stored
from tests.support.waiting_messages import WallClock, beats

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.fixture
def clock(clock: WallClock) -> WallClock:
    clock.now_ms += HOUR - clock.now_ms % HOUR  # so that slots are where the tests say
    return clock


async def send_at(client: Client, due_ms: int, body: bytes = b"body", **given: Any) -> Answer:
    answer = await client.send(body=body, i=properties(TIMER_DELIVER_MS=str(due_ms)), **given)
    assert answer.code == 0, answer
    return answer


async def recall(client: Client, handle: str, topic: str = "T", **options: Any) -> Answer:
    ext = {"topic": topic, "recallHandle": handle, "producerGroup": "P"}
    return await client.request(RequestCode.RECALL_MESSAGE, ext, **options)


async def bodies(client: Client, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in await stored(client, topic, queue_id)]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_delayed_message_is_delivered_at_its_time(
    tmp_path: Path, clock: WallClock, code: int, serialization: int
) -> None:
    due_ms = clock.now_ms + 90_001
    text = properties(KEYS="k", TAGS="café", UNIQ_KEY="0A0B", own="\u20ac", TIMER_DELIVER_MS=str(due_ms))
    async with running(tmp_path, cluster="C1") as broker:
        client = await broker.connect()
        await client.create_topic("T", 4)
        ext: dict[str, Any] = send_ext("T", e=2, f=1, h=-7, i=text, j=5)
        if code == RequestCode.SEND_MESSAGE:
            ext = {LONG_NAMES[name]: value for name, value in ext.items()}
        sent_ms = clock.now_ms
        answer = await client.request(code, ext, b"body", serialization=serialization)
        place = parse_offset_message_id(answer.ext["msgId"])
        handle = f"v1 T {broker.settings.group} {due_ms + 1} 0A0B 0"
        assert (answer.code, answer.serialization) == (0, serialization)
        assert {name: value for name, value in answer.ext.items() if name != "msgId"} == {
            "queueId": "2",
            "queueOffset": "0",
            "transactionId": "0A0B",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "recallHandle": base64.urlsafe_b64encode(handle.encode()).decode(),
        }
        [waiting] = await stored(client, TIMER_TOPIC, timer_slot(due_ms))
        assert waiting.physical_offset == place.physical_offset
        made = {"CLUSTER": "C1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        kept = props.decode(text) | made | {"TIMER_OUT_MS": str(due_ms)}
        assert waiting.properties == kept | {"REAL_TOPIC": "T", "REAL_QID": "2"}

        clock.now_ms = due_ms - 1
        await beats(client)
        assert await stored(client, "T", 2) == []
        assert await figure(client, "timersPending") == 1
        clock.now_ms += 1
        [message] = await wait_stored(client, 1, "T", 2)
        assert message.properties == kept | {"TIMER_ENQUEUE_MS": str(sent_ms), "TIMER_DEQUEUE_MS": str(due_ms)}
        assert (message.body, message.flag, message.sys_flag, message.reconsume_times) == (b"body", -7, 1, 5)
        assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1_700_000_000_000, clock.now_ms)
        clock.now_ms += DAY
        await beats(client)
        assert len(await stored(client, "T", 2)) == 1
        assert len((await client.pull("T", 2, subscription="café")).records) == 1, "the tag code is that of the tags"
        assert (await figure(client, "timersPending"), await figure(client, "timersDelivered")) == (0, 1)


async def test_timers_accept_every_form_of_delivery_time(client: Client, clock: WallClock) -> None:
    start_ms = clock.now_ms
    asked = (
        (b"s", 3 * SECOND, {"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "x"}),
        (b"m", 2500, {"TIMER_DELAY_MS": "2500", "TIMER_DELIVER_MS": "7"}),
        (b"a", 4 * SECOND, {"TIMER_DELIVER_MS": str(start_ms + 4 * SECOND)}),
        (b"z", 5 * SECOND, {"DELAY": "0", "TIMER_DELAY_SEC": "+5"}),
        (b"l", 10 * SECOND, {"DELAY": "3", "TIMER_DELAY_SEC": "1", "TIMER_DELIVER_MS": "x"}),
    )
    for body, _, given in asked:
        answer = await client.send(body=body, i=properties(**given))
        assert (answer.code, "recallHandle" in answer.ext) == (0, body != b"l")
    for count, (body, after_ms, _) in enumerate(sorted(asked, key=lambda each: each[1])):
        clock.now_ms = start_ms + after_ms - 1
        await beats(client)
        assert len(await stored(client)) == count
        clock.now_ms += 1
        assert (await wait_stored(client, count + 1))[-1].body == body
    assert set(props.TIMER_PROPERTIES) & set((await stored(client))[-1].properties) == set(), "a level counts first"


@pytest.mark.parametrize(
    "given",
    [
        {"TIMER_DELIVER_MS": "5"},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-1"},
        {"TIMER_DELIVER_MS": str(-(2**63) + 1)},
        {"DELAY": "-1", "TIMER_DELAY_MS": "0"},
    ],
)
async def test_message_due_already_is_delivered_at_once(
    tmp_path: Path, clock: WallClock, given: dict[str, str]
) -> None:
    async with broker_client(tmp_path) as client:
        answer = await client.send(i=properties(**given))
        assert (answer.code, answer.ext["queueOffset"], "recallHandle" in answer.ext) == (0, "0", False)
        [message] = await stored(client)
        assert "REAL_TOPIC" not in message.properties
        assert await figure(client, "timersPending") == 0


async def test_broker_refuses_invalid_delivery_times(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, timer_delay_max_seconds=60, message_bytes_max=2048) as client:
        for given in (
            *(
                {name: text}
                for name in props.TIMER_PROPERTIES
                for text in ("x", "1_0", "٣", " 5", "9" * 20, "9" * 5000)
            ),
            {"TIMER_DELAY_SEC": "61"},
            {"TIMER_DELAY_SEC": str(2**62)},
            {"TIMER_DELAY_MS": "60001"},
            {"TIMER_DELIVER_MS": str(clock.now_ms + 60_001)},
            {"TIMER_DELAY_SEC": "5", "long": "x" * 32_740},
        ):
            answer = await client.send(i=properties(**given))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (given, answer)
        assert (await client.send(body=bytes(2049), i=properties(TIMER_DELAY_SEC="1"))).code == 13
        sent = await client.send(TIMER_TOPIC, i=properties(TIMER_DELAY_SEC="1"))
        assert sent.code == ResponseCode.NO_PERMISSION
        assert (await client.send(i=properties(TIMER_DELAY_SEC="60"))).code == 0
        assert await figure(client, "timersPending") == 1


async def test_message_due_far_ahead_is_copied_each_day(client: Client, clock: WallClock, brokers: Any) -> None:
    start_ms = clock.now_ms
    due_ms = start_ms + 3 * DAY + 5 * MINUTE + 7
    slot = timer_slot(due_ms)
    sent = await send_at(client, due_ms, b"far")
    turns_ms = [start_ms + 5 * MINUTE + 7 + day * DAY for day in range(4)]
    for day, turn_ms in enumerate(turns_ms):
        clock.now_ms = turn_ms - 1
        await beats(client)
        assert await client.offset(RequestCode.GET_MAX_OFFSET, TIMER_TOPIC, slot) == day + 1
        clock.now_ms += 1
        if day < 3:
            await wait_stored(client, day + 2, TIMER_TOPIC, slot)
            brokers[-1]._store.get(TIMER_TOPIC, slot).min_offset = day + 1  # the log forgets the old one
    [message] = await wait_stored(client, 1)
    assert (message.body, message.properties["TIMER_ROLL_TIMES"]) == (b"far", "3")
    assert message.properties["UNIQ_KEY"] == sent.ext["transactionId"]
    assert await figure(client, "timersRolled") == 3
    assert await figure(client, "timersExpired") == 0


async def test_many_timers_deliver_once_and_in_the_order_of_their_times(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, entry_bytes_max=32768) as client:
        order = [number * 7919 % 1000 for number in range(1000)]
        frames = []
        for number in order:
            text = properties(TIMER_DELIVER_MS=str(clock.now_ms + 1 + number * 20))
            frames.append(client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(i=text), b"%d" % number))
        await client.stream.send_all(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            assert (await client.answer(opaque)).code == 0
        clock.now_ms += 20 * 1000
        assert [message.body for message in await wait_stored(client, 1000)] == [b"%d" % n for n in range(1000)]
        await beats(client)
        assert await client.offset(RequestCode.GET_MAX_OFFSET) == 1000
        assert await figure(client, "timersPending") == 0


async def test_overdue_messages_are_delivered_once_after_an_outage(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path / "a") as client:
        for number in range(100):
            await send_at(client, clock.now_ms + 1 + (number % 2) * 40 * MINUTE, b"%d" % number)
        clock.now_ms += 1000
        await wait_stored(client, 50)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    clock.now_ms += 2 * HOUR
    for directory in ("a", "b"):  # stopped, and crashed
        for _ in range(2):
            async with broker_client(tmp_path / directory) as client:
                await wait_stored(client, 100)
                await beats(client)
                assert sorted(map(int, await bodies(client))) == list(range(100))
        (tmp_path / directory / "checkpoint").unlink()
        shutil.rmtree(tmp_path / directory / "queues")
        async with broker_client(tmp_path / directory) as client:
            await beats(client)
            assert len(await bodies(client)) == 100, "progress survives the loss of everything but the log"


async def test_clock_steps_neither_lose_nor_repeat_messages(client: Client, clock: WallClock) -> None:
    start_ms = clock.now_ms
    await send_at(client, start_ms + 30 * SECOND, b"before")
    clock.now_ms = start_ms - 7 * HOUR
    await beats(client)
    await send_at(client, clock.now_ms + 10 * SECOND, b"behind")
    await send_at(client, start_ms + 40 * SECOND, b"both")
    clock.now_ms += 10 * SECOND
    assert [message.body for message in await wait_stored(client, 1)] == [b"behind"]
    clock.now_ms = start_ms + 5 * DAY
    assert sorted(message.body for message in await wait_stored(client, 3)) == [b"before", b"behind", b"both"]
    clock.now_ms = start_ms
    await send_at(client, start_ms + 1, b"again")
    clock.now_ms += 1
    await wait_stored(client, 4)
    await beats(client)
    assert len(await bodies(client)) == 4


async def test_full_disk_postpones_delivery_and_loses_nothing(
    tmp_path: Path, clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_client(tmp_path, entry_bytes_max=32768) as client:
        answers = [await send_at(client, clock.now_ms + 5, b"%d" % number) for number in range(200)]
        with monkeypatch.context() as patched:
            patched.setattr(RaftCore, "propose", lambda *_: Refusal.DISK_FULL)
            refused = await recall(client, answers[7].ext["recallHandle"])
            assert (refused.code, "DISK_FULL" in (refused.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            clock.now_ms += 5
            await beats(client)
            assert await stored(client) == []
        clock.now_ms += 1000
        await wait_stored(client, 200)
        await beats(client)
        assert sorted(map(int, await bodies(client))) == list(range(200))
        assert (await client.info())["raftmq.pendingBytes"] == "0"


async def test_unreadable_delayed_message_does_not_delay_others(
    tmp_path: Path, clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = True

    def split(data: bytes) -> RawRecord:
        if damaged and b"damaged" in data:
            raise RecordError(0, "the body's checksum is wrong")
        return split_record(data)

    monkeypatch.setattr("mq.broker.schedule.timers.split_record", split)
    async with broker_client(tmp_path) as client:
        for number, body in enumerate((b"first", b"damaged", b"behind"), 1):
            await send_at(client, clock.now_ms + number, body)
        clock.now_ms += 5000
        await wait_stored(client, 2)
        await beats(client)
        assert await bodies(client) == [b"first", b"behind"]
        damaged = False
        clock.now_ms += 1000
        assert [message.body for message in await wait_stored(client, 3)][2:] == [b"damaged"]


async def test_messages_deleted_from_the_log_before_due_are_counted(
    client: Client, clock: WallClock, brokers: list[Broker]
) -> None:
    due_ms = clock.now_ms + 10 * MINUTE
    for number in range(10):
        await send_at(client, due_ms, b"%d" % number)
    queue = brokers[0]._store.get(TIMER_TOPIC, timer_slot(due_ms))
    assert queue is not None
    queue.min_offset = QueueOffset(4)
    clock.now_ms = due_ms
    assert [message.body for message in await wait_stored(client, 6)] == [b"%d" % n for n in range(4, 10)]
    assert await figure(client, "timersExpired") == 4
    await client.wait_for(lambda table: table["raftmq.timersPending"] == "0")


async def test_message_of_a_deleted_topic_is_dropped(client: Client, clock: WallClock) -> None:
    await client.create_topic("Gone", 1)
    for topic in ("T", "Gone", "T"):
        await send_at(client, clock.now_ms + 1, topic=topic)
    deleted = await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
    assert deleted.code == 0
    clock.now_ms += 1
    await wait_stored(client, 2)
    assert await figure(client, "timersDropped") == 1


# -- levels of one's own -----------------------------------------------------------------------------------------------


async def test_custom_delay_levels_replace_the_defaults(tmp_path: Path, clock: WallClock) -> None:
    start_ms = clock.now_ms
    table = "1s 3s " + " ".join(["1m"] * 17) + " 2d"
    async with broker_client(tmp_path, delay_levels=table) as client:
        for level in (1, 2, 20, 99):
            answer = await client.send(body=b"%d" % level, i=properties(DELAY=str(level), TIMER_DELAY_MS="1"))
            assert (answer.code, "recallHandle" in answer.ext) == (0, False)
        assert await client.offset(RequestCode.GET_MAX_OFFSET, SCHEDULE_TOPIC, 0) == 1, "as the default level"
        clock.now_ms = start_ms + 1000
        await wait_stored(client, 1)
        clock.now_ms = start_ms + 2999
        await beats(client)
        assert await bodies(client) == [b"1"]
        clock.now_ms += 1
        assert (await wait_stored(client, 2))[1].properties["DELAY"] == "2"
    # With another table, those that wait keep their time.
    async with broker_client(tmp_path) as client:
        clock.now_ms = start_ms + 2 * DAY - 1
        await beats(client)
        assert len(await bodies(client)) == 2
        clock.now_ms += 1
        last = (await wait_stored(client, 4))[2:]
        assert [(message.body, message.properties["DELAY"]) for message in last] == [(b"20", "20"), (b"99", "20")]


# -- recall ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_recalled_message_is_never_delivered(tmp_path: Path, clock: WallClock, serialization: int) -> None:
    due_ms = clock.now_ms + 50
    async with broker_client(tmp_path) as client:
        first, second = [await send_at(client, due_ms, body) for body in (b"first", b"second")]
        answer = await recall(client, first.ext["recallHandle"], serialization=serialization)
        assert answer == Answer(0, answer.opaque, {"msgId": first.ext["transactionId"]}, None, b"", serialization)
        again = await recall(client, first.ext["recallHandle"])
        assert (again.code, "no such pending message" in (again.remark or "")) == (ResponseCode.ILLEGAL_OPERATION, True)
        clock.now_ms = due_ms
        assert [message.body for message in await wait_stored(client, 1)] == [b"second"]
        late = await recall(client, second.ext["recallHandle"])
        assert (late.code, "is being delivered" in (late.remark or "")) == (ResponseCode.ILLEGAL_OPERATION, True)
        clock.now_ms += DAY
        later = await recall(client, second.ext["recallHandle"])
        assert (later.code, later.remark) == (
            ResponseCode.ILLEGAL_OPERATION,
            f"recall failed, too late: the message was due {DAY} ms ago, and is delivered or recalled already",
        )
    async with broker_client(tmp_path) as client:
        await beats(client)
        assert await bodies(client) == [b"second"]
        assert await figure(client, "timersPending") == 0


async def test_recall_finds_a_rolled_message(tmp_path: Path, clock: WallClock) -> None:
    due_ms = clock.now_ms + 2 * DAY + HOUR
    one_by_one = limited(waiting={"recall_bytes_max": 4096})
    async with broker_client(tmp_path, limits=one_by_one) as client:
        sent = [await send_at(client, due_ms, b"%d" % number) for number in range(3)]
        for day in range(3):
            stock = RecallHandle.decode(sent[day].ext["recallHandle"])._replace(queue_offset=None).encode()
            assert stock is not None
            assert (await recall(client, stock if day % 2 else sent[day].ext["recallHandle"])).code == 0
            clock.now_ms += DAY
            await beats(client)
        assert await bodies(client) == []


async def test_forged_recall_handles_are_refused(client: Client, clock: WallClock) -> None:
    due_ms = clock.now_ms + 5000
    await client.create_topic("Other", 1)
    sent = await send_at(client, due_ms)
    level = await client.send(i=properties(DELAY="2"))
    true = RecallHandle.decode(sent.ext["recallHandle"])
    forged: list[tuple[int, str, str]] = [
        (ResponseCode.TOPIC_NOT_EXIST, "Nowhere", sent.ext["recallHandle"]),
        (ResponseCode.ILLEGAL_OPERATION, "Other", sent.ext["recallHandle"]),
        *((ResponseCode.ILLEGAL_OPERATION, "T", text) for text in ("", "x", "é" * 8, "A" * 9000, "djEgVA==")),
    ]
    for change in (
        {"broker_name": "broker-x"},
        {"due_ms": due_ms + 1},
        {"due_ms": due_ms - 1},
        {"due_ms": due_ms + 86_400_000},
        {"due_ms": clock.now_ms - 1},
        {"due_ms": 10**17},
        {"unique_key": "nobody"},
        {"unique_key": level.ext["transactionId"]},
        {"unique_key": "nobody", "queue_offset": 10**17},
    ):
        handle = true._replace(**change).encode()
        assert handle is not None
        forged.append((ResponseCode.ILLEGAL_OPERATION, "T", handle))
    other = true._replace(topic="Other").encode()
    assert other is not None
    forged.append((ResponseCode.ILLEGAL_OPERATION, "Other", other))
    for code, topic, handle in forged:
        assert (await recall(client, handle, topic)).code == code, (topic, handle)
    clock.now_ms = due_ms
    await wait_stored(client, 2)


async def test_handle_recalls_only_one_of_two_stored_copies(client: Client, clock: WallClock) -> None:
    due_ms = clock.now_ms + 50
    asked = properties(TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="U")
    first, again = [await client.send(body=body, i=asked) for body in (b"first", b"again")]
    assert (await recall(client, again.ext["recallHandle"])).code == 0
    assert (await recall(client, again.ext["recallHandle"])).code == ResponseCode.ILLEGAL_OPERATION
    clock.now_ms = due_ms
    assert [message.body for message in await wait_stored(client, 1)] == [b"first"]
    assert (await recall(client, first.ext["recallHandle"])).code == ResponseCode.ILLEGAL_OPERATION


async def test_exactly_one_of_delivery_and_recall_succeeds(tmp_path: Path, clock: WallClock) -> None:
    """Recalls arrive in the same turn in which messages become due; each is either answered with 0 or delivered."""
    async with broker_client(tmp_path, entry_bytes_max=32768) as client:
        recalled: set[bytes] = set()
        for turn in range(20):
            due_ms = clock.now_ms + 10
            sent = [await send_at(client, due_ms, b"%d-%d" % (turn, number)) for number in range(8)]
            clock.now_ms = due_ms - turn % 2  # now and then the clock stands short of it
            posted = []
            for number, answer in enumerate(sent):
                ext = {"topic": "T", "recallHandle": answer.ext["recallHandle"], "producerGroup": "P"}
                posted.append((number, await client.post(RequestCode.RECALL_MESSAGE, ext)))
                clock.now_ms = due_ms - (number < 4) * (turn % 2)
            for number, opaque in posted:
                if (await client.answer(opaque)).code == 0:
                    recalled.add(b"%d-%d" % (turn, number))
            clock.now_ms = due_ms
        everything = {b"%d-%d" % (turn, number) for turn in range(20) for number in range(8)}
        await client.wait_for(lambda table: table["raftmq.timersPending"] == "0")
        delivered = await bodies(client)
        assert len(delivered) == len(set(delivered))
        assert set(delivered) == everything - recalled
        assert recalled
