"""Figures, settings and cleaning up as operators' tools ask for them, over real sockets."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from mq.broker.admin.broker_config import BrokerConfig
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.settings import BrokerSettings
from mq.protocol.codes import RequestCode as Code
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.requests.broker import UpdateBrokerConfig
from mq.protocol.requests.settings_text import decode_properties
from mq.protocol.requests.topics import DataVersion
from tests.support.broker_contexts import context_of
from tests.support.running_broker import Answer, Client, broker_client, broker_settings, limited, running

ENCODINGS = pytest.mark.parametrize("serialization", [JSON, BINARY])


async def stats(client: Client, name: str, key: str, serialization: int = JSON) -> Any:
    ext = {"statsName": name, "statsKey": key}
    answer = await client.request(Code.VIEW_BROKER_STATS_DATA, ext, serialization=serialization)
    assert (answer.code, answer.ext) == (0, {}), answer
    return json.loads(answer.body)


async def settings_of(client: Client) -> dict[str, str]:
    return decode_properties((await client.request(Code.GET_BROKER_CONFIG)).body)


async def change(client: Client, text: str, serialization: int = JSON) -> Answer:
    return await client.request(Code.UPDATE_BROKER_CONFIG, body=text.encode(), serialization=serialization)


@ENCODINGS
async def test_statistics_count_sends_pulls_and_send_backs(tmp_path: Path, serialization: int) -> None:
    async with running(tmp_path, limits=limited(upkeep={"statistics_seconds_min": 0.0})) as broker:
        client = await broker.connect()
        await client.create_topic("T", 2)
        for queue_id in (0, 1, 1):
            await client.send("T", bytes(100), e=queue_id)
        pulled = await client.pull("T", 1)
        sizes = sum(len(each.body) for each in pulled.records), len(pulled.body)
        assert sizes[0] == 200
        back = {"offset": pulled.records[0].physical_offset, "group": "G", "delayLevel": 0, "originMsgId": "x"}
        await client.request(Code.CONSUMER_SEND_MSG_BACK, back | {"originTopic": "T", "unitMode": False})

        nums = await stats(client, "TOPIC_PUT_NUMS", "T", serialization)
        assert nums["statsMinute"] == {"sum": 3, "tps": 0.3, "avgpt": 1.0}
        assert nums["statsHour"]["sum"] == nums["statsDay"]["sum"] == 3
        size = await stats(client, "TOPIC_PUT_SIZE", "T")
        # The records of a queue are equally long here.
        assert size["statsMinute"]["sum"] == sizes[1] // 2 * 3
        assert (await stats(client, "GROUP_GET_NUMS", "T@G"))["statsMinute"]["sum"] == 2
        assert (await stats(client, "GROUP_GET_SIZE", "T@G"))["statsMinute"]["sum"] == sizes[1]
        assert (await stats(client, "SNDBCK_PUT_NUMS", "T@G"))["statsMinute"]["sum"] == 1
        cluster = broker.settings.cluster
        assert (await stats(client, "BROKER_PUT_NUMS", cluster))["statsMinute"]["sum"] == 4, "and the delayed one"
        assert (await stats(client, "BROKER_GET_NUMS", cluster))["statsMinute"]["sum"] == 2


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "nobody"), ("GROUP_GET_NUMS", "T"), ("BROKER_PUT_NUMS", "T"), ("NO_STATS", "T"), ("", "")],
)
async def test_unknown_statistics_are_refused(client: Client, name: str, key: str) -> None:
    answer = await client.request(Code.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not exist" in str(answer.remark)


async def test_recreated_topic_counts_from_zero(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(upkeep={"statistics_seconds_min": 0.0})) as client:
        for expected in (3, 5):
            await client.create_topic("T", 1)
            for _ in range(3 if expected == 3 else 2):
                await client.send("T", b"x", e=0)
            assert (await stats(client, "TOPIC_PUT_NUMS", "T"))["statsMinute"]["sum"] == expected
            await client.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})


@ENCODINGS
async def test_runtime_figures_are_parsable_by_stock_tools(client: Client, serialization: int) -> None:
    await client.create_topic("T")
    first = await client.send("T", bytes(50))
    await client.send("T", b"later", i="DELAY\x013\x02")
    await client.pull("T", 0)
    answer = await client.request(Code.GET_BROKER_RUNTIME_INFO, serialization=serialization)
    assert (answer.code, answer.ext) == (0, {})
    table = json.loads(answer.body)["table"]
    for name in ("putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferedTps", "getTransferredTps"):
        assert len([float(rate) for rate in table[name].split(" ")]) == 3, name
    for what in ("Put", "Get"):
        for when in ("YesterdayMorning", "TodayMorning", "TodayNow"):
            assert int(table[f"msg{what}Total{when}"]) >= 0
    for kind in ("send", "pull", "query", "ack"):
        assert int(table[f"{kind}ThreadPoolQueueSize"]) >= 0
        assert int(table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"]) >= 0
    assert int(table["pageCacheLockTimeMills"]) == 0
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    message = (await client.pull("T", 0)).records[0]
    assert 0 < int(table["earliestMessageTimeStamp"]) <= message.store_timestamp_ms
    assert int(table["commitLogMinOffset"]) == 0
    assert int(table["commitLogMaxOffset"]) > message.physical_offset
    assert table["scheduleMessageOffset_3"] == "0,1"
    assert table["runtime"].startswith("[ 0 days, 0 hours, 0 minutes, ")
    assert table["brokerVersionDesc"] == "V4_9_8"
    assert first.code == ResponseCode.SUCCESS


@ENCODINGS
async def test_settings_are_shown_and_some_changed(tmp_path: Path, serialization: int) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        answer = await client.request(Code.GET_BROKER_CONFIG, serialization=serialization)
        assert (answer.code, list(answer.ext)) == (0, ["version"])
        assert set(json.loads(answer.ext["version"])) == {"counter", "timestamp", "stateVersion"}
        shown = decode_properties(answer.body)
        assert (shown["brokerName"], shown["brokerId"]) == (broker.settings.group, "0")
        assert (shown["autoCreateTopicEnable"], shown["raftmq.auto_create_topics"]) == ("true", "true")
        assert shown["fileReservedTime"] == "72"
        assert shown["messageDelayLevel"] == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

        answer = await change(client, "autoCreateTopicEnable=false\nfileReservedTime=48\n", serialization)
        assert (answer.code, answer.ext, answer.remark) == (0, {}, None)
        assert (await client.send("Unheard")).code == ResponseCode.TOPIC_NOT_EXIST
        shown = await settings_of(client)
        assert (shown["raftmq.retention_hours"], shown["autoCreateTopicEnable"]) == ("48.0", "false")
        await change(client, "raftmq.auto_create_topics=true")
        assert (await client.send("Unheard")).code == ResponseCode.SUCCESS
    async with running(tmp_path) as broker:
        assert (await settings_of(await broker.connect()))["fileReservedTime"] == "72", "it was the process's own"


async def test_changed_settings_take_effect_at_once(client: Client) -> None:
    await client.create_topic("T")
    await client.fill(3, "T")
    assert len((await client.pull("T")).records) == 3
    changed = "maxTransferCountOnMessageInMemory=2\nraftmq.retention_bytes=2097152\nraftmq.sql_filter=false\n"
    assert (await change(client, changed)).code == 0
    assert len((await client.pull("T")).records) == 2
    sql = await client.pull("T", expressionType="SQL92", subscription="a IS NULL")
    assert (sql.code, "SQL92" in str(sql.remark)) == (ResponseCode.SYSTEM_ERROR, True), sql
    assert (await settings_of(client))["raftmq.retention_bytes"] == "2097152"
    assert (await change(client, "raftmq.retention_bytes=\nautoCreateSubscriptionGroup=false")).code == 0
    shown = await settings_of(client)
    assert (shown["raftmq.retention_bytes"], shown["autoCreateSubscriptionGroup"]) == ("", "false")


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("raftmq.segment_bytes=1", ResponseCode.NO_PERMISSION, "elections and the log are set up with it"),
        ("raftmq.pull_messages_max=0", ResponseCode.SYSTEM_ERROR, "pull_messages_max"),
        ("maxTransferCountOnMessageInMemory=65537", ResponseCode.SYSTEM_ERROR, "pull_messages_max"),
        ("fileReservedTime=1e305", ResponseCode.SYSTEM_ERROR, "retention_hours"),
        (f"raftmq.retention_bytes={2**63}", ResponseCode.SYSTEM_ERROR, "retention_bytes"),
        (f"raftmq.bulk_bytes_per_second={2**63}", ResponseCode.SYSTEM_ERROR, "bulk_bytes_per_second"),
        ("raftmq.bulk_bytes_per_second=", ResponseCode.SYSTEM_ERROR, "bulk_bytes_per_second"),
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort is '"),
        ("brokerConfigPath=/etc", ResponseCode.NO_PERMISSION, "brokerConfigPath"),
        ("raftmq.peers=n0@127.0.0.1:1", ResponseCode.NO_PERMISSION, "raftmq.peers is '"),
        ("unheard=1", ResponseCode.SYSTEM_ERROR, "no setting unheard"),
        ("fileReservedTime=-1", ResponseCode.SYSTEM_ERROR, "retention_hours"),
        ("fileReservedTime=nan", ResponseCode.SYSTEM_ERROR, "retention_hours"),
        ("deleteWhen=24", ResponseCode.SYSTEM_ERROR, "delete_when"),
        ("autoCreateTopicEnable=false\nfileReservedTime=x", ResponseCode.SYSTEM_ERROR, "retention_hours"),
        ("autoCreateTopicEnable", ResponseCode.SYSTEM_ERROR, "line 1 is not name=value"),
        ("x=1\n" * 5000, ResponseCode.SYSTEM_ERROR, "5000 lines"),
    ],
)
async def test_unchangeable_settings_are_refused(client: Client, text: str, code: ResponseCode, remark: str) -> None:
    before = await settings_of(client)
    answer = await change(client, text)
    assert (answer.code, remark in str(answer.remark)) == (code, True), answer
    assert await settings_of(client) == before


@ENCODINGS
@pytest.mark.parametrize(
    "code", [Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.DELETE_EXPIRED_COMMITLOG]
)
async def test_cleanup_request_deletes_only_expired_files(client: Client, code: Code, serialization: int) -> None:
    sent = await client.send("T", e=0)
    answer = await client.request(code, serialization=serialization)
    assert (answer.code, answer.ext, answer.remark, answer.body) == (0, {}, None, b"")
    assert (await client.pull("T", 0, int(sent.ext["queueOffset"]))).records, "nothing was due to go"


@ENCODINGS
async def test_status_shows_progress_of_delayed_messages(client: Client, serialization: int) -> None:
    answer = await client.request(Code.GET_ALL_DELAY_OFFSET, serialization=serialization)
    assert json.loads(answer.body) == {"offsetTable": {}}
    await client.send("T", i="DELAY\x011\x02")

    async def delivered() -> bool:
        answer = await client.request(Code.GET_ALL_DELAY_OFFSET)
        return bool(json.loads(answer.body) == {"offsetTable": {"1": 1}})

    while not await delivered():
        await client.info()


@pytest.mark.parametrize(("ours", "shown"), [(True, "true"), (False, "false")])
async def test_auto_create_groups_is_reported_as_configured(ours: bool, shown: str, tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_groups=ours) as broker:
        assert (await settings_of(await broker.connect()))["autoCreateSubscriptionGroup"] == shown


@pytest.mark.parametrize(("allowed", "changes"), [(True, 1), (False, 0)])
async def test_settings_change_only_from_allowed_addresses(allowed: bool, changes: int, tmp_path: Path) -> None:
    changed: list[BrokerSettings] = []
    asked: list[str] = []

    def is_allowed(peer: str) -> bool:
        asked.append(peer)
        return allowed

    running_settings = BrokerConfig(
        context_of(
            settings=broker_settings(tmp_path),
            log=structlog.get_logger(),
            appender__is_open=True,
            data_version=DataVersion,
        ),
        is_allowed=is_allowed,
        on_changed=changed.append,
    )
    peer: Any = SimpleNamespace(peer="10.0.0.9:5")
    request = UpdateBrokerConfig(opaque=1)
    with nullcontext() if allowed else pytest.raises(RequestRefused, match=r"10\.0\.0\.9:5, .* setting admin_networks"):
        running_settings.handle_update(Call(peer, request, b"deleteWhen=5", JSON))
    assert [settings.delete_when for settings in changed] == [5] * changes
    assert asked == ["10.0.0.9:5"]
