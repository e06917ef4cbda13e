"""Commands that create and change topics and consumer groups, and what they say that they did."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from mq.client import Message, Producer, PullConsumer
from mq.client.admin import Admin
from mq.protocol.requests.namesrv import ClusterInfo
from tests.support.name_server_and_broker import cluster
from tests.support.running_broker import running
from tests.support.waiting import until


async def printed(*arguments: str) -> str:
    """What a command prints, with the logs of the servers, which run in this process."""
    result = await trio.to_thread.run_sync(partial(CliRunner().invoke, app, arguments))
    if result.exception is not None:
        raise result.exception
    return result.stdout


async def command(*arguments: str) -> str:
    """The last line that a command prints."""
    return (await printed(*arguments)).splitlines()[-1] + "\n"


async def document(*arguments: str) -> Any:
    """The document that a command prints: what begins with a lone bracket and ends with the output."""
    lines = (await printed(*arguments, "--json")).splitlines()
    begin = next(at for at, line in enumerate(lines) if line in ("[", "{"))
    return json.loads("\n".join(lines[begin:]))


async def refusal(code: int, *arguments: str) -> str:
    with pytest.raises(CommandFailed) as refused:
        await command(*arguments)
    assert refused.value.exit_code == code
    return str(refused.value)


async def test_group_that_registers_meanwhile_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after a start, name servers know no group when the command asks, and know it when the topic is created."""
    ask, times = Admin.cluster_info, itertools.count()

    async def nobody_at_first(admin: Admin) -> ClusterInfo:
        info = await ask(admin)
        return info if next(times) else ClusterInfo()

    async with cluster(tmp_path) as namesrv:
        monkeypatch.setattr(Admin, "cluster_info", nobody_at_first)
        said = await command("topic", "create", "New", "--namesrv", namesrv)
    assert said == "created topic New in broker-a: 8 queues, perm rw\n"


async def test_creating_a_topic_that_exists_changes_nothing(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        at = ("--namesrv", namesrv)
        said = await command("topic", "create", "New", "--order", *at)
        assert said == "created topic New in broker-a: 8 queues, perm rw, in order\n"
        before = await admin.topic_config("New")
        assert "8 queues, perm rw, in order in broker-a" in await refusal(EXIT_FAILED, "topic", "create", "New", *at)
        assert await admin.topic_config("New") == before


async def test_topic_gets_into_a_later_broker_group_with_its_settings(tmp_path: Path) -> None:
    async with cluster(tmp_path / "a") as namesrv, Admin(namesrv) as admin:
        at = ("--namesrv", namesrv)
        await command("topic", "create", "New", "--queues", "3", "--order", "--message-type", "fifo", *at)
        async with running(tmp_path / "b", namesrv=namesrv, group="broker-b"):

            async def registered() -> bool:
                group = (await admin.cluster_info()).brokers.get("broker-b")
                return group is not None and 0 in group.broker_addrs

            await until(registered)
            refused = await refusal(EXIT_FAILED, "topic", "create", "New", "--queues", "4", *at)
            assert refused == (
                "topic New exists with other settings: 3 queues, perm rw, in order, message type fifo in broker-a. "
                "Nothing was changed. To create it in broker-b with other settings, pass --group; to change it, "
                "use raftmq topic update"
            )
            assert "already exists" in await refusal(EXIT_FAILED, "topic", "create", "New", "--group", "broker-a", *at)
            assert "known: broker-a, broker-b" in await refusal(
                EXIT_FAILED, "topic", "create", "X", "--group", "c", *at
            )
            assert set(await admin.topic_config("New")) == {"broker-a"}
            said = await command("topic", "create", "New", *at)
            assert said == "created topic New in broker-b: 3 queues, perm rw, in order, message type fifo\n"
            configs = await admin.topic_config("New")
            assert configs["broker-b"] == configs["broker-a"]
            assert "already exists" in await refusal(EXIT_FAILED, "topic", "create", "New", *at)
            created = await document("topic", "create", "T", "--group", "broker-b", "--queues", "2", *at)
            assert [(each["broker"], each["created"], each["write_queues"]) for each in created] == [
                ("broker-a", False, 1),
                ("broker-b", True, 2),
            ]


async def test_topic_shrinks_only_with_the_shrink_option(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        at = ("--namesrv", namesrv)
        await command("topic", "create", "New", "--queues", "8", *at)
        assert "--shrink" in await refusal(EXIT_REFUSED, "topic", "update", "New", "--queues", "4", *at)
        assert (await admin.topic_config("New"))["broker-a"].read_queue_nums == 8
        said = await command("topic", "update", "New", "--queues", "4", "--shrink", *at)
        assert said == "changed topic New: 8 queues, perm rw in broker-a -> 4 queues, perm rw in broker-a\n"
        said = await command("topic", "update", "New", "--perm", "r", "--order", *at)
        assert said == "changed topic New: 4 queues, perm rw in broker-a -> 4 queues, perm r, in order in broker-a\n"
        assert "nothing to change" in await refusal(EXIT_REFUSED, "topic", "update", "New", *at)
        assert "X does not exist" in await refusal(EXIT_FAILED, "topic", "update", "X", "--queues", "9", *at)
        deleted = await command("topic", "delete", "New", *at)
        assert deleted == "deleted topic New; `raftmq topic restore New` brings it back\n"


async def test_creating_a_consumer_group_that_exists_changes_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv:
        at = ("--namesrv", namesrv)
        said = await command("consumer-group", "create", "G", "--retries", "4", "--no-broadcast", *at)
        assert said == "created consumer group G: enabled, up to 4 retries, broadcast no, orderly no\n"
        assert "G already exists" in await refusal(EXIT_FAILED, "consumer-group", "create", "G", *at)
        said = await command("consumer-group", "update", "G", "--retries", "3", *at)
        assert said == (
            "changed consumer group G: enabled, up to 4 retries, broadcast no, orderly no -> "
            "enabled, up to 3 retries, broadcast no, orderly no\n"
        )
        assert "no consumer group H" in await refusal(EXIT_FAILED, "consumer-group", "update", "H", "--enabled", *at)
        assert await command("consumer-group", "delete", "G", *at) == "deleted consumer group G\n"


async def test_commands_about_topics_print_documents(tmp_path: Path) -> None:
    first = {"read_queues": 8, "write_queues": 8, "perm": "rw", "order": False, "attributes": {"message.type": "FIFO"}}
    second = first | {"read_queues": 4, "write_queues": 4, "perm": "r"}
    async with cluster(tmp_path) as namesrv:
        at = ("--namesrv", namesrv)
        created = await document("topic", "create", "New", "--message-type", "fifo", *at)
        assert created == [{"broker": "broker-a", "created": True, **first}]
        changed = await document("topic", "update", "New", "--queues", "4", "--shrink", "--perm", "r", *at)
        assert changed == [{"broker": "broker-a", "before": first, "after": second}]
        topics = {each["topic"]: each["system"] for each in await document("topic", "list", *at)}
        assert (topics["New"], topics["SCHEDULE_TOPIC_XXXX"]) == (False, True)
        deleted = await document("topic", "delete", "New", *at)
        assert deleted == {"topic": "New", "deleted": True, "restorable": True}


async def test_commands_about_consumer_groups_print_documents(tmp_path: Path) -> None:
    settings = {"enabled": True, "broadcast": True, "orderly": False, "retries": 4, "attributes": {}}
    async with cluster(tmp_path) as namesrv:
        at = ("--namesrv", namesrv)
        created = await document("consumer-group", "create", "G", "--retries", "4", *at)
        assert created == {"group": "G", **settings}
        changed = await document("consumer-group", "update", "G", "--retries", "3", *at)
        assert changed == {"group": "G", "before": settings, "after": settings | {"retries": 3}}
        deleted = await document("consumer-group", "delete", "G", "--keep-offsets", *at)
        assert deleted == {"group": "G", "deleted": True, "offsets_kept": True, "topics_deleted": False}


async def test_messages_stay_readable_after_a_topic_gets_fewer_queues(namesrv: str) -> None:
    """A message had made the topic, with four queues; a program that then set one queue hid it."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await producer.send(Message("Auto", b"first"))
        queues = await producer.queues("Auto")
        assert len(queues) == 4
        await producer.send(Message("Auto", b"in the third"), queue=queues[2])
        route = await admin.create_topic("Auto", queues=1)
        config = (await admin.topic_config("Auto"))["broker-a"]
        assert (config.read_queue_nums, config.write_queue_nums) == (3, 1)
        assert (len(route.read_queues), len(route.write_queues)) == (3, 1)
        for number in range(4):  # the producer still knows four queues
            await producer.send(Message("Auto", b"%d" % number))
        async with PullConsumer(namesrv, "readers", consume_from="first") as consumer:
            await consumer.assign(await consumer.queues("Auto"))
            found = sorted([message.body async for message in await consumer.read_to_end()])
        assert found == [b"0", b"1", b"2", b"3", b"first", b"in the third"]

        await admin.create_topic("Empty", queues=4)
        await admin.create_topic("Empty", queues=2)
        config = (await admin.topic_config("Empty"))["broker-a"]
        assert (config.read_queue_nums, config.write_queue_nums) == (2, 2)
        await admin.create_topic("Auto", read_queues=1, write_queues=1)  # wanted so
        assert (await admin.topic_config("Auto"))["broker-a"].read_queue_nums == 1
