"""Delayed messages through a real broker, under a clock that the test moves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mq.broker.broker import Broker
from mq.broker.state.commands import DeleteTopic, encode_command
from mq.broker.write_path.appender import Appender
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.delay import DELAY_LEVELS_MS
from mq.protocol.messages.records import Host
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.numbers import QueueOffset
from raftlog import Refusal
from raftlog.consensus.raft import RaftCore
from tests.support.running_broker import LONG_NAMES, Client, broker_client, properties, send_ext
from tests.support.stored_messages import figure, stored, wait_stored
from tests.support.waiting_messages import WallClock, beats

SEND_V2 = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_delayed_message_arrives_when_due(
    tmp_path: Path, clock: WallClock, code: int, serialization: int
) -> None:
    text = properties(KEYS="k", TAGS="café", WAIT="true", UNIQ_KEY="0A0B", own="\u20ac", DELAY="3")
    async with broker_client(tmp_path, queues=4, cluster="C1") as client:
        ext: dict[str, Any] = send_ext("T", e=2, f=1, h=-7, i=text, j=5)
        if code == RequestCode.SEND_MESSAGE:
            ext = {LONG_NAMES[name]: value for name, value in ext.items()}
        sent_ms = clock.now_ms
        answer = await client.request(code, ext, b"body", serialization=serialization)
        place = parse_offset_message_id(answer.ext["msgId"])
        assert (answer.code, answer.serialization) == (0, serialization)
        assert {name: value for name, value in answer.ext.items() if name != "msgId"} == {
            "queueId": "2",
            "queueOffset": "0",
            "transactionId": "0A0B",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        [waiting] = await stored(client, SCHEDULE_TOPIC, 2)
        assert waiting.physical_offset == place.physical_offset
        expected = props.decode(text) | props.of_cluster("C1") | {"REAL_TOPIC": "T", "REAL_QID": "2"}
        assert waiting.properties == expected

        clock.now_ms = sent_ms + DELAY_LEVELS_MS[2] - 1
        await beats(client)
        assert await stored(client, "T", 2) == []
        clock.now_ms += 1
        [message] = await wait_stored(client, 1, "T", 2)
        assert message.properties == expected
        born = client.stream.socket.getsockname()
        assert message.born_host == Host(born[0], born[1])
        assert (message.body, message.flag, message.sys_flag, message.reconsume_times) == (b"body", -7, 1, 5)
        assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1_700_000_000_000, clock.now_ms)
        assert (message.queue_id, message.queue_offset) == (2, 0)
        await beats(client)
        assert len(await stored(client, "T", 2)) == 1
        assert len((await client.pull("T", 2, subscription="café")).records) == 1, "the tag code is that of the tags"


async def test_every_delay_level_delays_by_its_time(client: Client, clock: WallClock) -> None:
    start_ms = clock.now_ms
    for level in reversed(range(1, 19)):
        assert (await client.send(body=b"%d" % level, i=properties(DELAY=str(level)))).code == 0
    assert (await client.send(body=b"19", i=properties(DELAY="2000000000"))).code == 0
    for level, delay_ms in enumerate(DELAY_LEVELS_MS, 1):
        clock.now_ms = start_ms + delay_ms - 1
        await beats(client)
        assert len(await stored(client)) == level - 1
        clock.now_ms += 1
        await wait_stored(client, level)
    assert [message.body for message in await wait_stored(client, 19)] == [b"%d" % n for n in range(1, 20)]


@pytest.mark.parametrize("delay", ["0", "-5", "-99999999999999999999"])
async def test_zero_delay_delivers_at_once(client: Client, clock: WallClock, delay: str) -> None:
    assert (await client.send(i=properties(DELAY=delay))).ext["queueOffset"] == "0"
    assert len(await stored(client)) == 1


async def test_broker_refuses_invalid_delays(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, message_bytes_max=2048) as client:
        await client.create_topic("ReadOnly", perm=4)
        for code, given in (
            (ResponseCode.MESSAGE_ILLEGAL, {"i": properties(DELAY="x")}),
            (ResponseCode.MESSAGE_ILLEGAL, {"i": properties(DELAY="9" * 5000)}),
            (ResponseCode.MESSAGE_ILLEGAL, {"i": properties(TIMER_DELIVER_MS="x")}),
            (ResponseCode.MESSAGE_ILLEGAL, {"i": properties(DELAY="1", TRAN_MSG="true")}),
            (ResponseCode.MESSAGE_ILLEGAL, {"i": properties(DELAY="1"), "body": bytes(2049)}),
            (ResponseCode.MESSAGE_ILLEGAL, {"i": properties(DELAY="1", long="x" * 32_740)}),
            (ResponseCode.NO_PERMISSION, {"i": properties(DELAY="1"), "topic": "ReadOnly"}),
            (ResponseCode.NO_PERMISSION, {"i": properties(DELAY="1"), "topic": SCHEDULE_TOPIC}),
            (ResponseCode.INVALID_PARAMETER, {"i": properties(DELAY="1"), "e": 4}),
        ):
            answer = await client.send(**given)
            assert answer.code == code, (given, answer)
        for level in range(18):
            assert await client.offset(RequestCode.GET_MAX_OFFSET, SCHEDULE_TOPIC, level) == 0


async def test_name_of_the_real_topic_cannot_be_forged(client: Client, clock: WallClock) -> None:
    forged = properties(REAL_TOPIC="rmq_sys_raftmq_meta", REAL_QID="-1", DELAY="1")
    assert (await client.send(i=forged + forged, e=3)).code == 0
    clock.now_ms += 1000
    [message] = await wait_stored(client, 1, "T", 3)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "3")


async def test_many_delayed_messages_are_delivered_once_and_in_order(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, entry_bytes_max=4096) as client:
        delayed = properties(DELAY="1")
        frames = [client.frame(SEND_V2, send_ext(i=delayed), b"%d" % n + bytes(n % 50)) for n in range(1000)]
        await client.stream.send_all(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            assert (await client.answer(opaque)).code == 0
        clock.now_ms += 1000
        bodies = [message.body for message in await wait_stored(client, 1000)]
        assert bodies == [b"%d" % n + bytes(n % 50) for n in range(1000)]
        await beats(client)
        assert await client.offset(RequestCode.GET_MAX_OFFSET) == 1000
        assert await figure(client, "delayedDelivered") == 1000


async def test_too_fast_producers_do_not_stop_deliveries(
    tmp_path: Path, clock: WallClock, brokers: list[Broker]
) -> None:
    async with broker_client(tmp_path, uncommitted_bytes_max=2**20) as client:
        for number in range(100):
            assert (await client.send(body=b"%d" % number, i=properties(DELAY="1"))).code == 0
        brokers[0].appender.pending_bytes += 2**20
        clock.now_ms += DELAY_LEVELS_MS[0]
        assert len(await wait_stored(client, 100)) == 100


async def test_large_message_is_delivered_alone(client: Client, clock: WallClock) -> None:
    for size in (10, 4 * 1024 * 1024, 10):
        assert (await client.send(body=bytes(size), i=properties(DELAY="1"))).code == 0
    clock.now_ms += 1000
    assert [len(message.body) for message in await wait_stored(client, 3)] == [10, 4 * 1024 * 1024, 10]


async def test_topic_may_become_smaller_meanwhile(client: Client, clock: WallClock) -> None:
    await client.create_topic("Big", 4)
    assert (await client.send("Big", b"body", e=3, i=properties(DELAY="1"))).code == 0
    await client.create_topic("Big", 2)
    clock.now_ms += 1000
    assert [message.body for message in await wait_stored(client, 1, "Big", 1)] == [b"body"]


async def test_message_of_a_deleted_topic_is_dropped(client: Client, clock: WallClock, brokers: list[Broker]) -> None:
    await client.create_topic("Gone", 1)
    for topic in ("T", "Gone", "T"):
        assert (await client.send(topic, i=properties(DELAY="1"))).code == 0
    gone = encode_command(DeleteTopic(name="Gone", timestamp_ms=clock.now_ms))
    brokers[0].appender.add_command(gone)
    assert (await client.create_topic("Behind", 1)).code == 0
    clock.now_ms += 1000
    await wait_stored(client, 2)
    assert await figure(client, "delayedDropped") == 1
    await client.create_topic("Gone", 1)
    await beats(client)
    assert await stored(client, "Gone") == []


async def test_messages_deleted_from_the_log_before_due_are_counted(
    client: Client, clock: WallClock, brokers: list[Broker]
) -> None:
    for number in range(10):
        assert (await client.send(body=b"%d" % number, i=properties(DELAY="1"))).code == 0
    queue = brokers[0]._store.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    queue.min_offset = QueueOffset(4)
    clock.now_ms += 1000
    assert [message.body for message in await wait_stored(client, 6)] == [b"%d" % n for n in range(4, 10)]
    assert await figure(client, "delayedExpired") == 4


def copied_at_once(directory: Path, copy: Path) -> bool:
    """Whether nothing was written while the directory was copied: else the copy may have a note of what it lacks."""

    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}

    shutil.rmtree(copy, ignore_errors=True)
    try:
        before = written()
        shutil.copytree(directory, copy)
        return written() == before
    except (FileNotFoundError, shutil.Error):
        return False  # a temporary file is gone


async def test_overdue_messages_are_delivered_once_after_an_outage(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path / "a") as client:
        for number in range(100):
            assert (await client.send(body=b"%d" % number, i=properties(DELAY=str(1 + number % 2)))).code == 0
        clock.now_ms += 1000
        await wait_stored(client, 50)
        while not copied_at_once(tmp_path / "a", tmp_path / "b"):
            await beats(client)
    clock.now_ms += 60_000
    for directory in ("a", "b"):  # stopped, and crashed
        for _ in range(2):
            async with broker_client(tmp_path / directory) as client:
                await wait_stored(client, 100)
                await beats(client)
                bodies = sorted(int(message.body) for message in await stored(client))
                assert bodies == list(range(100))


async def test_progress_survives_the_loss_of_everything_but_the_log(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path) as client:
        await client.send(i=properties(DELAY="1"))
        clock.now_ms += 1000
        await wait_stored(client, 1)
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "queues")
    async with broker_client(tmp_path) as client:
        await client.send(i=properties(DELAY="1"))
        await beats(client)
        assert len(await stored(client)) == 1
        clock.now_ms += 1000
        assert len(await wait_stored(client, 2)) == 2


async def test_full_disk_postpones_delivery_and_loses_nothing(
    tmp_path: Path, clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_client(tmp_path, entry_bytes_max=4096) as client:
        for number in range(100):
            await client.send(body=b"%d" % number, i=properties(DELAY="1"))
        with monkeypatch.context() as patched:
            patched.setattr(RaftCore, "propose", lambda *_: Refusal.DISK_FULL)
            clock.now_ms += 1000
            await beats(client)
            refused = await client.send(i=properties(DELAY="1"))
            assert (refused.code, "DISK_FULL" in (refused.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            assert await stored(client) == []
            await beats(client)
        clock.now_ms += 1000
        bodies = [message.body for message in await wait_stored(client, 100)]
        await beats(client)
        assert bodies == [b"%d" % number for number in range(100)]
        assert await client.offset(RequestCode.GET_MAX_OFFSET) == 100
        assert (await client.info())["raftmq.pendingBytes"] == "0"


async def test_deliveries_in_progress_when_the_disk_fills_are_not_repeated(
    tmp_path: Path, clock: WallClock, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.schedule.delivery._PAUSE_MS", 0)
    propose, report = RaftCore.propose, Appender._report
    rooms = 0

    def fills_up(core: RaftCore, *given: Any) -> Any:
        nonlocal rooms
        rooms += 1
        return propose(core, *given) if rooms % 2 else Refusal.DISK_FULL

    def report_and_run(appender: Appender, *given: Any) -> None:
        report(appender, *given)
        brokers[0].services.delays.run()  # as its timer may at this moment

    async with broker_client(tmp_path, entry_bytes_max=4096) as client:
        for number in range(200):
            await client.send(body=b"%d" % number, i=properties(DELAY="1"))
        with monkeypatch.context() as patched:
            patched.setattr(RaftCore, "propose", fills_up)
            patched.setattr(Appender, "_report", report_and_run)
            clock.now_ms += 1000
            bodies = [message.body for message in await wait_stored(client, 200)]
        await beats(client)
        assert rooms > 4
        assert bodies == [b"%d" % number for number in range(200)]
        assert await client.offset(RequestCode.GET_MAX_OFFSET) == 200


async def test_setting_the_clock_back_does_not_prolong_a_delay(client: Client, clock: WallClock) -> None:
    for number in range(100):
        await client.send(body=b"%d" % number, i=properties(DELAY="1"))
        clock.now_ms += 1
    clock.now_ms -= 3_600_000
    await beats(client)
    back_ms = clock.now_ms
    await client.send(body=b"100", i=properties(DELAY="1"))
    clock.now_ms = back_ms + 899
    await beats(client)
    assert len(await stored(client)) == 0
    clock.now_ms = back_ms + 1099
    bodies = [message.body for message in await wait_stored(client, 101)]
    assert bodies == [b"%d" % number for number in range(101)]
