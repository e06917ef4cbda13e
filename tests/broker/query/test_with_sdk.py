"""Looking messages up with the SDK and the command line: a name server and a broker, real sockets."""

from __future__ import annotations

import datetime as dt
import json
from functools import partial
from pathlib import Path

import pytest
import trio
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.client import Admin, ClientError, Message, MessageQueue, NoRoute, Producer, TopicNotFound
from mq.protocol.message_ids import parse_offset_message_id
from tests.support.commands import LOGGED
from tests.support.name_server_and_broker import cluster


async def test_messages_are_looked_up_by_id_and_key(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        before = dt.datetime.now(dt.UTC)
        sent = [await producer.send(Message("T", b"%d" % n, keys=[f"k{n}", "all"])) for n in range(5)]
        after = dt.datetime.now(dt.UTC)
        for number, result in enumerate(sent):
            found = await admin.message_by_id(result.offset_message_id)
            assert found is not None
            assert (found.body, found.message_id, found.queue_offset) == (b"%d" % number, result.message_id, number)
            assert found.queue == MessageQueue("T", "broker-a", 0)
            (again,) = await admin.messages_by_key("T", result.message_id, unique=True)
            assert again.body == found.body
        assert [each.body for each in await admin.messages_by_key("T", "all", count_max=3)] == [b"2", b"3", b"4"]
        assert len(await admin.messages_by_key("T", "all", begin=before - dt.timedelta(seconds=1), end=after)) == 5
        assert await admin.messages_by_key("T", "all", end=before - dt.timedelta(seconds=1)) == []
        assert await admin.messages_by_key("T", "nothing") == []
        none = sent[0].offset_message_id[:-1] + "1"
        assert await admin.message_by_id(none) is None
        with pytest.raises(NoRoute, match="No broker group has a replica"):
            await admin.message_by_id("7F000001" + "00000001" + "0" * 16)
        with pytest.raises(ValueError, match="hexa"):
            await admin.message_by_id("X" * 32)
        with pytest.raises(TopicNotFound):
            await admin.messages_by_key("Nowhere", "all")
        assert issubclass(NoRoute, ClientError)


async def test_sdk_finds_a_message_by_id_after_its_broker_moved(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, Producer(namesrv) as producer:
        sent = await producer.send(Message("T", b"x"))
    async with cluster(tmp_path) as namesrv, Admin(namesrv) as admin:  # on another port
        addresses = (await admin.cluster_info()).brokers["broker-a"].broker_addrs.values()
        ip, port, _ = parse_offset_message_id(sent.offset_message_id)
        assert f"{ip}:{port}" not in addresses
        found = await admin.message_by_id(sent.offset_message_id.lower())
        assert found is not None
        assert (found.body, found.offset_message_id) == (b"x", sent.offset_message_id)


async def test_command_line_marks_the_brokers_own_topics(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv:
        lines = set((await command("topic", "list", "--namesrv", namesrv)).splitlines())
    assert {
        "T",
        "DefaultCluster (system)",
        "DefaultCluster_REPLY_TOPIC (system)",
        "broker-a (system)",
        "TBW102 (system)",
        "SCHEDULE_TOPIC_XXXX (system)",
    } <= lines
    assert [line for line in lines if not line.endswith("(system)")] == ["T"]


async def test_command_line_shows_every_figure_of_a_broker(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        await producer.send(Message("T", b"x"))
        [address] = (await admin.cluster_info()).brokers["broker-a"].broker_addrs.values()
        names = (await admin.broker_runtime(address)).keys()
        shown = await command("status", "--all", "--namesrv", namesrv)
        assert names == {name for name in names if f"\n{name} " in shown}
        [group] = json.loads(await command("status", "--all", "--json", "--namesrv", namesrv))
        assert group["replicas"][0]["figures"].keys() == names
        [group] = json.loads(await command("status", "--json", "--namesrv", namesrv))
        assert "figures" not in group["replicas"][0]


async def command(*arguments: str) -> str:
    """What a command prints, on a wide terminal, without what the broker logs, which is in this process."""
    result = await trio.to_thread.run_sync(partial(CliRunner(env={"COLUMNS": "200"}).invoke, app, arguments))
    if result.exception is not None:
        raise result.exception
    return LOGGED.sub("", result.stdout)


async def test_message_command_shows_messages_by_id_and_key(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        sent = [await producer.send(Message("T", b"body %d" % n, keys=["all"])) for n in range(3)]

        async def lines(*arguments: str) -> list[str]:
            result = await trio.to_thread.run_sync(
                partial(CliRunner().invoke, app, ["message", *arguments, "--namesrv", namesrv])
            )
            if result.exception is not None:
                raise result.exception
            # The broker is in this process, and may log something meanwhile.
            return [line.strip() for line in result.stdout.splitlines() if line.strip() and "[info " not in line]

        shown = await lines("by-id", sent[1].offset_message_id)
        assert "body  body 1" in shown
        assert "property  KEYS=all" in shown
        assert f"message_id  {sent[1].message_id}" in shown
        found = json.loads("".join(await lines("by-key", "T", "all", "--count", "2", "--json")))
        assert [(each["offset"], each["body"]) for each in found] == [(1, "body 1"), (2, "body 2")]
        assert await lines("by-time", "T", "2020-01-01T00:00:00") == ["broker-a/0: 0"]
        ends = json.loads("".join(await lines("by-time", "T", "2120-01-01T00:00:00", "--json")))
        assert ends == [{"broker": "broker-a", "queue": 0, "offset": 3}]
        for wrong in (
            ["by-key", "T", "nothing"],
            ["by-id", "nonsense"],
            ["by-key", "T", "all", "--until", "2020-01-01"],
        ):
            with pytest.raises(CommandFailed):
                await lines(*wrong)
