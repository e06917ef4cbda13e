"""`raftmq export` and `raftmq import` against a broker: everything is carried over, again and again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.client import Admin
from mq.client.net.client_core import ClientCore
from mq.protocol.codes import RequestCode
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import Client, limited

GROUP = SubscriptionGroupConfig(
    group_name="G",
    consume_enable=False,
    consume_from_min_enable=False,
    consume_broadcast_enable=False,
    consume_message_orderly=True,
    retry_queue_nums=3,
    retry_max_times=5,
    broker_id=1,
    which_broker_when_consume_slowly=2,
    notify_consumer_ids_changed_enable=False,
)
ATTRIBUTES = {"message.type": "FIFO", "owner": "billing", "note": "a=b", "teams": "a, b,c ", "x=y": ""}


async def run(namesrv: str, *arguments: str, code: int = 0) -> Result:
    """Run a command as a process of its own would: what the servers of the test log is not in its output."""
    command = [*arguments, "--namesrv", namesrv]
    with capture_logs():
        done = await trio.to_thread.run_sync(partial(CliRunner().invoke, app, command))
    assert done.exit_code == code, (command, done.output, done.exception)
    return done


async def steps(namesrv: str, *arguments: str, code: int = 0) -> list[tuple[str, ...]]:
    """What an import did."""
    printed = json.loads((await run(namesrv, "import", *arguments, "--json", code=code)).stdout)
    return [(step["do"], step["what"], step["name"]) for step in printed["steps"]]


async def commit(client: Client, offset: int, queue_id: int = 0) -> None:
    ext = {"consumerGroup": "G", "topic": "Orders", "queueId": queue_id, "commitOffset": offset}
    assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def define(namesrv: str, client: Client) -> None:
    """A topic and a group in which no setting is the usual one, and offsets of which one is 0."""
    async with Admin(namesrv) as admin:
        await admin.create_topic(
            "Orders",
            read_queues=2,
            write_queues=1,
            perm=4,
            order=True,
            filter_type="MULTI_TAG",
            sys_flag=3,
            attributes=ATTRIBUTES,
        )
        await admin.put_consumer_group(GROUP)


async def test_import_carries_over_every_setting(tmp_path: Path) -> None:
    file = str(tmp_path / "definitions.json")
    async with cluster_and_broker(tmp_path / "one") as (namesrv, broker):
        await define(namesrv, await broker.connect())
        await run(namesrv, "export", file)
    async with cluster_and_broker(tmp_path / "two") as (namesrv, _), Admin(namesrv) as admin:
        assert await steps(namesrv, file) == [("create", "topic", "Orders"), ("create", "consumer group", "G")]
        (config,) = (await admin.topic_config("Orders")).values()
        assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (2, 1, 4, True)
        assert (config.topic_filter_type, config.topic_sys_flag) == ("MULTI_TAG", 3)
        assert config.attributes == ATTRIBUTES
        assert list((await admin.consumer_groups())["G"].values()) == [GROUP]
        assert await steps(namesrv, file) == [], "a second import changes nothing"

        await admin.create_topic("Orders", read_queues=2, write_queues=2, attributes={"owner": None, "other": "x"})
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name="G"))
        left = "leave as it is:"
        assert await steps(namesrv, file, code=1) == [(left, "topic", "Orders"), (left, "consumer group", "G")]
        await steps(namesrv, file, "--update")
        (config,) = (await admin.topic_config("Orders")).values()
        assert config.attributes == ATTRIBUTES, "attributes that the document lacks are removed"
        assert await steps(namesrv, file) == []


async def test_importing_format_one_keeps_settings_missing_in_the_document(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    async with cluster_and_broker(tmp_path / "one") as (namesrv, broker):
        await define(namesrv, await broker.connect())
        await run(namesrv, "export", str(file))
        document: dict[str, Any] = json.loads(file.read_text())
        document["format"] = 1
        (topic,) = document["topics"]["Orders"].values()
        for name in ("filter_type", "sys_flag"):
            del topic[name]
        group = document["consumer_groups"]["G"]
        for name in ("from_min", "retry_queues", "broker_id", "broker_id_when_slow", "notify_changes"):
            del group[name]
        file.write_text(json.dumps(document))
        assert await steps(namesrv, str(file)) == []
        group["retries"] = 7
        file.write_text(json.dumps(document))
        assert await steps(namesrv, str(file), "--update") == [("change", "consumer group", "G")]
        async with Admin(namesrv) as admin:
            (config,) = (await admin.consumer_groups())["G"].values()
        assert (config.retry_max_times, config.retry_queue_nums) == (7, 3)


async def test_offsets_are_imported_where_they_are_lower(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    async with cluster_and_broker(tmp_path / "one") as (namesrv, broker), Admin(namesrv) as admin:
        client = await broker.connect()
        await admin.create_topic("Orders", 2)
        await client.fill(5, "Orders", 0)
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name="G"))
        await commit(client, 5)
        await commit(client, 0, queue_id=1)
        await run(namesrv, "export", str(file))
        rows = json.loads(file.read_text())["offsets"]["G"]
        assert [(row["queue"], row["offset"]) for row in rows] == [(0, 5), (1, 0)], "0 is an offset, too"
        assert await steps(namesrv, str(file), "--offsets") == []
        await client.fill(2, "Orders", 0)
        await commit(client, 7)
        passed = "keep, the group has passed the document's:"
        assert await steps(namesrv, str(file), "--offsets") == [(passed, "offsets", "G")]
        assert await client.committed("G", "Orders") == 7


async def test_import_refuses_and_reports_offsets_beyond_the_end(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    async with cluster_and_broker(tmp_path / "one") as (namesrv, broker), Admin(namesrv) as admin:
        client = await broker.connect()
        await admin.create_topic("Orders", 1)
        await client.fill(5, "Orders", 0)
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name="G"))
        await commit(client, 5)
        await run(namesrv, "export", str(file))
    async with cluster_and_broker(tmp_path / "two") as (namesrv, broker):
        refused = await run(namesrv, "import", str(file), "--offsets", code=1)
        assert "refused: offsets G: offset 5 is beyond the end of queue 0 of Orders" in refused.stdout
        assert await (await broker.connect()).committed("G", "Orders", setZeroIfNotFound=False) is None


@pytest.mark.parametrize("command", ["export", "import"])
async def test_requests_do_not_grow_with_topics_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """One request for each topic took minutes with 10,000 of them. Offsets are stored one by one: of those with 0, none
    here.
    """
    file = tmp_path / "definitions.json"
    codes: list[int] = []
    call, ask = ClientCore.call, ClientCore.ask_name_server

    async def counted(self: ClientCore, address: str, code: int, *rest: Any, **more: Any) -> Any:
        codes.append(code)
        return await call(self, address, code, *rest, **more)

    async def counted_at_name_server(self: ClientCore, code: int, *rest: Any, **more: Any) -> Any:
        codes.append(code)
        return await ask(self, code, *rest, **more)

    async def grow(count: int) -> None:
        """Export, or import what the document has and the cluster lacks."""
        topics = {f"T{each}": {"broker-a": topic} for each in range(count)}
        document = {"format": 4, "topics": topics, "consumer_groups": {f"G{each}": {} for each in range(count)}}
        file.write_text(json.dumps(document))
        if command == "export":
            await run(namesrv, "import", str(file))
        codes.clear()
        await run(namesrv, command, str(file))

    topic = {"read_queues": 1, "write_queues": 1, "perm": 6}
    async with cluster_and_broker(tmp_path / "one") as (namesrv, broker):
        monkeypatch.setattr(ClientCore, "call", counted)
        monkeypatch.setattr(ClientCore, "ask_name_server", counted_at_name_server)
        await grow(3)
        few = [code for code in codes if code != RequestCode.GET_ROUTEINFO_BY_TOPIC]  # one until the route is there
        await grow(60)
        many = [code for code in codes if code != RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert sorted(few) == sorted(many)
        assert await (await broker.connect()).committed("G59", "T59", setZeroIfNotFound=False) is None
        async with Admin(namesrv) as admin:
            assert {"T0", "T59"} <= set(await admin.topics())
            assert {"G0", "G59"} <= (await admin.consumer_groups()).keys()


@pytest.mark.parametrize("wrong", ["A", "B", "C"])
async def test_import_names_the_topic_that_a_broker_refuses(tmp_path: Path, wrong: str) -> None:
    """Also one that is to keep messages for longer than this broker does; everything else is imported."""
    file = tmp_path / "definitions.json"
    topic = {"read_queues": 1, "write_queues": 1, "perm": 6}
    topics: dict[str, dict[str, Any]] = {name: {"broker-a": topic} for name in "ABC"}
    topics[wrong] = {"broker-a": {**topic, "attributes": {"reserve.time": "100"}}}
    file.write_text(json.dumps({"format": 4, "topics": topics, "consumer_groups": {"G": {}}}))
    async with cluster_and_broker(tmp_path / "one") as (namesrv, _):
        refused = await run(namesrv, "import", str(file), code=1)
        assert f"refused: topic {wrong} in broker-a: reserve.time is 100 hours" in refused.stdout
        async with Admin(namesrv) as admin:
            assert {"A", "B", "C"} & set(await admin.topics()) == {"A", "B", "C"} - {wrong}
            assert "G" in await admin.consumer_groups()


async def test_export_asks_per_group_if_a_broker_has_too_many_offsets(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    async with cluster_and_broker(tmp_path / "broker") as (namesrv, broker), Admin(namesrv) as admin:
        client = await broker.connect()
        await admin.create_topic("Orders", 2)
        await client.fill(5, "Orders", 0)
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name="G"))
        await commit(client, 5)
        await run(namesrv, "export", str(one))
    limits = limited(upkeep={"offset_tables_shown_max": 0})
    async with cluster_and_broker(tmp_path / "broker", limits=limits) as (namesrv, _):
        await run(namesrv, "export", str(other))
    assert json.loads(one.read_text()) == json.loads(other.read_text())
