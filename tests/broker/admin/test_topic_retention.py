"""Topics that keep their messages for less time than the log."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mq.broker.admin import topic_expiry
from mq.broker.base.message_times import StampedLog, old_until
from mq.broker.broker import Broker
from mq.broker.state.commands import encode_command
from mq.broker.state.expired_messages import ExpireMessages
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.retention_attributes import RESERVE_TIME
from tests.support.running_broker import Client, broker_client, broker_settings, properties, running, send_ext
from tests.support.waiting import until
from tests.support.waiting_messages import WallClock


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers look all the time."""
    monkeypatch.setattr(topic_expiry, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(topic_expiry, "_AGAIN_SECONDS", 0.0)


@pytest.fixture
def short_hours(looks_often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour is a millisecond, too."""
    monkeypatch.setattr(topic_expiry, "_HOUR_MS", 1)


async def limit(client: Client, hours: str, topic: str = "T", **given: str) -> ResponseCode:
    """Create or change a topic; returns how that ended."""
    said = ",".join(f"+{name}={value}" for name, value in {RESERVE_TIME: hours, **given}.items())
    return ResponseCode((await client.create_topic(topic, attributes=said)).code)


async def begin(client: Client, topic: str = "T") -> int:
    return await client.offset(RequestCode.GET_MIN_OFFSET, topic)


@pytest.mark.usefixtures("short_hours")
async def test_messages_expire_for_all_requests_and_for_this_topic_only(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        await client.create_topic("Other")
        await client.create_topic("T")
        await client.fill(3, "Other")
        sent = []
        for number in range(3):
            ext = send_ext("T", i=properties(KEYS=f"k{number}", UNIQ_KEY=f"u{number}"))
            sent.append(await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"body"))
        found = {"topic": "T", "key": "k1", "maxNum": 5, "beginTimestamp": 0, "endTimestamp": 2**62}
        assert (await client.request(RequestCode.QUERY_MESSAGE, found)).code == ResponseCode.SUCCESS
        assert await begin(client) == 0, "without the attribute nothing expires"

        assert await limit(client, "1") == ResponseCode.SUCCESS

        async def expired() -> bool:
            return await begin(client) == 3

        await until(expired)
        assert await begin(client, "Other") == 0
        assert (await client.pull("T", offset=0)).ext["nextBeginOffset"] == "3"
        assert (await client.request(RequestCode.QUERY_MESSAGE, found)).code == ResponseCode.QUERY_NOT_FOUND
        position = int(sent[1].ext["msgId"][16:32], 16)
        viewed = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position})
        assert viewed.code == ResponseCode.SYSTEM_ERROR
        assert "has expired" in (viewed.remark or "")
        assert len((await client.pull("Other")).records) == 3
        assert (await client.info())["raftmq.topicMessagesExpired"] == "3"
    async with broker_client(tmp_path, group="b-a") as client:
        assert await begin(client) == 3, "a restart brings nothing back"
        assert int((await client.send("T")).ext["queueOffset"]) == 3


@pytest.mark.usefixtures("short_hours")
async def test_popped_message_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, group="b-a") as client:
        await client.fill(3, "T")
        ext = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": 0,
            "maxMsgNums": 1,
            "invisibleTime": 600_000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
        }
        assert len((await client.request(RequestCode.POP_MESSAGE, ext)).records) == 1
        await client.create_topic("Seen", attributes=f"+{RESERVE_TIME}=1")
        await client.fill(1, "Seen")
        assert await limit(client, "1") == ResponseCode.SUCCESS

        async def looked() -> bool:
            return await begin(client, "Seen") == 1

        await until(looked)
        assert await begin(client) == 0


@pytest.mark.parametrize(
    ("hours", "given"), [("73", {}), ("0", {}), ("1.5", {}), ("1", {"message.type": "LITE"})], ids=str
)
async def test_broker_refuses_retention_longer_than_its_log(tmp_path: Path, hours: str, given: dict[str, str]) -> None:
    async with broker_client(tmp_path, group="b-a", retention_hours=72.0) as client:
        assert await limit(client, hours, **given) == ResponseCode.INVALID_PARAMETER
        assert await limit(client, "-1") == ResponseCode.SUCCESS
        assert await limit(client, "72") == ResponseCode.SUCCESS


async def test_topic_above_a_lowered_retention_limit_can_still_be_changed(tmp_path: Path) -> None:
    async with running(tmp_path, group="b-a") as broker:
        assert await limit(await broker.connect(), "72") == ResponseCode.SUCCESS
    async with running(tmp_path, group="b-a", retention_hours=1.0) as broker:
        assert (await (await broker.connect()).create_topic("T", 2)).code == ResponseCode.SUCCESS


async def test_topic_with_its_own_retention_cannot_get_lite_topics(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        assert await limit(client, "1") == ResponseCode.SUCCESS
        refused = await client.create_topic("T", attributes="+message.type=LITE")
        assert (refused.code, RESERVE_TIME in str(refused.remark)) == (ResponseCode.INVALID_PARAMETER, True)
        assert (await client.create_topic("T", attributes=f"+message.type=LITE,-{RESERVE_TIME}")).code == 0


async def test_expiry_command_ignores_unknown_and_shorter_queues(tmp_path: Path, brokers: list[Broker]) -> None:
    rows = [("T", 0, 2**62), ("T", 1, 2**62), ("T", 7, 9), ("Gone", 0, 5), ("T", 0, 1)]
    async with broker_client(tmp_path, queues=2, group="b-a") as client:
        await client.fill(3)
        command = encode_command(ExpireMessages(rows=[(topic, at, QueueOffset(first)) for topic, at, first in rows]))
        brokers[0].appender.add_command(command)
        brokers[0].end_turn()
        await until(partial(begins_at, client, "T", 0, 3))
        await client.fill(2)
        await client.fill(1, "T", 1)
        moved = await client.pull("T", 0, 0)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
        assert len((await client.pull("T", 1, 0)).records) == 1


async def test_retention_time_is_refused_while_a_member_is_older(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a", format_level_max=5) as client:
        assert await limit(client, "1") == ResponseCode.VERSION_NOT_SUPPORTED
        assert await limit(client, "-1") == ResponseCode.SUCCESS


@pytest.mark.usefixtures("looks_often")
async def test_clock_set_a_day_ahead_expires_nothing_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first topic with a time of its own comes when messages have the wrong time already."""
    clock = WallClock()
    monkeypatch.setattr("raftlog.Machine.wall_clock_ms", clock)
    looked: list[int] = []

    def look(log: StampedLog, before_ms: int) -> PhysicalOffset | None:
        looked.append(before_ms)
        return old_until(log, before_ms)

    monkeypatch.setattr(topic_expiry, "old_until", look)
    async with broker_client(tmp_path, queues=1, group="b-a") as client:
        await client.fill(3)
        right_ms = clock.now_ms
        clock.now_ms += 24 * 3_600_000
        await client.fill(1)
        assert await limit(client, "1") == ResponseCode.SUCCESS
        await until(lambda: len(looked) >= 3)
        assert looked[0] < right_ms - 3_000_000
        assert await begin(client) == 0


@pytest.mark.usefixtures("short_hours")
async def test_queue_beginnings_agree_after_checkpoint_replay_and_snapshot(tmp_path: Path) -> None:
    """From its checkpoint, by the whole log, and by the log up to a snapshot that came from another replica.

    Topics: one with a time of its own, one that lost it, and one that was deleted and created again with more queues.
    """
    live, whole, behind = (tmp_path / name for name in ("live", "whole", "behind"))
    address = broker_settings(live).listen
    async with broker_client(live, group="b-a", listen=address) as client:
        for topic in ("Kept", "Again"):
            await client.create_topic(topic, 2, attributes=f"+{RESERVE_TIME}=1")
            await client.fill(3, topic, 1)
            await until(partial(begins_at, client, topic, 1, 3))
        assert (await client.create_topic("Kept", 1, attributes=f"-{RESERVE_TIME}")).code == 0
        await client.fill(2, "Kept")
        assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Again"})).code == 0
        await client.create_topic("Again", 4)
        await client.fill(2, "Again", 1)
        await client.create_topic("T", attributes=f"+{RESERVE_TIME}=1")
        await client.fill(2)
        await client.create_topic("Other")  # the last message of a log is not known to be old
        await until(partial(begins_at, client, "T", 0, 2))
        assert await client.offset(RequestCode.GET_MIN_OFFSET, "Kept", 0) == 0
    for copy in (whole, behind):
        shutil.copytree(live, copy)
        shutil.rmtree(copy / "queues")
    (whole / "checkpoint").unlink()
    (behind / "checkpoint").rename(behind / "commitlog" / "snapshot")
    states = []
    for directory in (live, whole, behind):
        with capture_logs() as log:
            async with broker_client(directory, group="b-a", listen=address) as client:
                places = [("Kept", 0), ("Kept", 1), ("Again", 1), ("T", 0)]
                codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
                states.append([[await client.offset(code, *place) for code in codes] for place in places])
        assert not [line for line in log if line["log_level"] == "error"]
    assert states == [[[0, 2], [3, 3], [3, 5], [2, 2]]] * 3


async def begins_at(client: Client, topic: str, queue_id: int, offset: int) -> bool:
    return await client.offset(RequestCode.GET_MIN_OFFSET, topic, queue_id) == offset


@pytest.mark.usefixtures("looks_often")
async def test_oldest_messages_are_deleted_from_a_topic_with_too_many_bytes(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        await client.create_topic("Other")
        await client.create_topic("T", attributes="+reserve.bytes=1048576")
        for number in range(12):
            for topic in ("T", "Other"):
                assert (await client.send(topic, body=b"%d" % number + bytes(200_000), e=0)).code == 0

        async def limited() -> bool:
            return await begin(client) == 6  # each is a chunk: five records have 1,000,000 bytes and more

        await until(limited)
        assert await begin(client, "Other") == 0
        assert (await client.pull("T", offset=6)).records[0].body[:1] == b"6"
        assert (await client.create_topic("T", attributes="-reserve.bytes")).code == 0
        assert (await client.send("T", body=bytes(300_000), e=0)).code == 0
    async with broker_client(tmp_path, group="b-a") as client:
        assert await begin(client) == 6
        assert int((await client.send("T", e=0)).ext["queueOffset"]) == 13


@pytest.mark.parametrize("value", ["0", "1000", "1 GB", "1e9", "-2"])
async def test_limits_that_no_topic_can_have_are_refused(tmp_path: Path, value: str) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        answer = await client.create_topic("T", attributes=f"+reserve.bytes={value}")
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "whole bytes from 1048576 on" in (answer.remark or "")
        lite = "+message.type=LITE,+lite.topic.expiration=-1,+reserve.bytes=2000000"
        assert (await client.create_topic("L", attributes=lite)).code == ResponseCode.INVALID_PARAMETER
        assert (await client.create_topic("T", attributes="+reserve.bytes=-1")).code == 0
