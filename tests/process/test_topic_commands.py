"""`raftmq topic` and `raftmq consumer-group` as processes, against a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.local_cluster import DevCluster, Ports
from tests.support.commands import raftmq
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS_MAX = 60.0
OF_BYTES = ("produce", "consume", "tail", "bench")
"""They read and write descriptors, and run as processes. So does `bench`, which measures its own process."""

SENT_THREE = {"minute": 3, "hour": 3, "day": 3}


class Commands:
    """Runs commands against one cluster."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv

    async def run(self, *arguments: str, given: bytes = b"", code: int = 0) -> str:
        """What it prints, on standard error if its exit code ``code`` is another than 0."""
        if arguments[0] not in OF_BYTES:
            ended = await raftmq(*arguments, "--namesrv", self._namesrv, given=given)
            assert ended.code == code, (arguments, ended)
            return ended.out if code == 0 else ended.err
        command = [sys.executable, "-m", "mq.cli", *arguments, "--namesrv", self._namesrv]
        with trio.fail_after(SECONDS_MAX):
            done = await trio.run_process(command, stdin=given, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == code, (arguments, done.stderr.decode())
        return (done.stdout if code == 0 else done.stderr).decode()

    async def first_line(self, *arguments: str) -> str:
        """The first line of a command that runs until it is stopped."""
        command = [sys.executable, "-m", "mq.cli", *arguments, "--namesrv", self._namesrv]
        with trio.fail_after(SECONDS_MAX):
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            said = b""
            while b"\n" not in said:
                said += await process.stdout.receive_some()
            process.kill()
            await process.wait()
        return said.split(b"\n")[0].decode()

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.run(*arguments, "--json"))

    async def has_stats(self, topic: str, wanted: dict[str, int]) -> bool:
        """Whether so many messages were sent, by span; there are no spans before the broker has looked."""
        return {row["span"]: row["messages"] for row in await self.json("topic", "stats", topic)} == wanted


async def test_commands_create_and_change_topics_and_groups(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        commands = Commands(cluster.namesrv)
        said = await commands.run("topic", "create", "T", "--queues", "2", "--order", "--message-type", "fifo")
        assert said == "created topic T in broker-a: 2 queues, perm rw, in order, message type fifo\n"
        await commands.run("produce", "T", "--key-prefix", "line", "--trace", given=b"a\nb\nc\n")
        [described] = await commands.json("topic", "describe", "T")
        assert (described["write_queues"], described["perm"], described["order"]) == (2, "rw", True)
        assert described["attributes"] == {"message.type": "FIFO"}
        assert described["identity"]
        assert sum(queue["next_offset"] for queue in described["queues"]) == 3
        await messages_are_found(commands)
        # The broker looks at the ends of queues once a second.
        await until(partial(commands.has_stats, "T", SENT_THREE))
        assert "2 queues, perm rw, in order, message type fifo in broker-a" in await commands.run(
            "topic", "create", "T", code=1
        )
        assert "--shrink" in await commands.run("topic", "update", "T", "--queues", "1", code=2)
        assert "nothing to change" in await commands.run("topic", "update", "T", code=2)
        [described] = await commands.json("topic", "describe", "T")
        assert (described["read_queues"], described["write_queues"], described["perm"]) == (2, 2, "rw")
        said = await commands.run("topic", "update", "T", "--perm", "r", "--no-order")
        assert said == (
            "changed topic T: 2 queues, perm rw, in order, message type fifo in broker-a -> "
            "2 queues, perm r, message type fifo in broker-a\n"
        )
        assert "-> 1 queues, perm r" in await commands.run("topic", "update", "T", "--queues", "1", "--shrink")
        await commands.run("topic", "update", "T", "--queues", "2")
        assert (await commands.json("topic", "describe", "T"))[0]["perm"] == "r"
        assert "X does not exist" in await commands.run("topic", "update", "X", "--queues", "9", code=1)

        said = await commands.run("consumer-group", "create", "G", "--retries", "4", "--no-broadcast", "--orderly")
        assert said == "created consumer group G: enabled, up to 4 retries, broadcast no, orderly yes\n"
        assert "G already exists" in await commands.run("consumer-group", "create", "G", code=1)
        assert "up to 4 retries, broadcast no, orderly yes -> enabled, up to 3 retries" in await commands.run(
            "consumer-group", "update", "G", "--retries", "3"
        )
        assert "no consumer group H" in await commands.run("consumer-group", "update", "H", "--retries", "3", code=1)
        assert await commands.json("consumer-group", "list") == ["G"]
        await commands.run("consume", "T", "--group", "G", "--count", "3")
        group = await commands.json("consumer-group", "describe", "G")
        settings = {"enabled": True, "broadcast": False, "orderly": True, "retries": 3, "attributes": {}}
        assert group["brokers"] == {"broker-a": settings}
        assert sum(queue["offset"] for queue in group["queues"]) == 3
        assert sum(queue["behind"] for queue in group["queues"]) == 0

        for position, offsets in (("first", 0), ("last", 3), ("2020-01-01", 0), ("2100-01-01T00:00+01:00", 3)):
            reset = await commands.json("consumer-group", "reset", "G", "T", position)
            assert sum(queue["offset"] for queue in reset) == offsets
            group = await commands.json("consumer-group", "describe", "G")
            assert sum(queue["offset"] for queue in group["queues"] if queue["topic"] == "T") == offsets
        assert "neither first nor last" in await commands.run("consumer-group", "reset", "G", "T", "earliest", code=2)
        assert "X does not exist" in await commands.run("consumer-group", "reset", "G", "X", "first", code=1)
        assert "no consumer group H" in await commands.run("consumer-group", "reset", "H", "T", "first", code=1)

        assert "deleted consumer group G" in await commands.run("consumer-group", "delete", "G", "--topics")
        assert "no consumer group G" in await commands.run("consumer-group", "delete", "G", code=1)
        assert "no consumer group G" in await commands.run("consumer-group", "describe", "G", code=1)
        assert (
            await commands.run("topic", "delete", "T") == "deleted topic T; `raftmq topic restore T` brings it back\n"
        )
        assert "T does not exist" in await commands.run("topic", "delete", "T", code=1)
        assert "T does not exist" in await commands.run("topic", "describe", "T", code=1)
        for refused in (
            ("topic", "create", "../T"),
            ("topic", "create", "T", "--perm", "x"),
            ("topic", "create", "T", "--message-type", "x"),
        ):
            assert await commands.run(*refused, code=2)
        await speed_is_measured(commands, tmp_path)


async def messages_are_found(commands: Commands) -> None:
    """By key, by both ids, and by the time that the first command printed."""
    [second] = await commands.json("message", "by-key", "T", "line2")
    assert (second["body"], second["topic"], second["reconsume_times"]) == ("b", "T", 0)
    assert await commands.json("message", "by-id", second["offset_message_id"]) == [second]
    assert await commands.json("message", "by-key", "T", second["message_id"], "--unique") == [second]
    assert await commands.json("message", "by-key", "T", "line2", "--since", second["stored"]) == [second]
    offsets = await commands.json("message", "by-time", "T", second["stored"])
    [found] = [each["offset"] for each in offsets if each["queue"] == second["queue"]]
    assert found <= second["offset"]
    assert "is not a time" in await commands.run("message", "by-time", "T", "noon", code=2)
    assert "no message matches" in await commands.run("message", "by-key", "T", "line9", code=1)
    story = await commands.json("trace", second["message_id"])
    assert [sent["success"] for sent in story["sent"]] == [True]


async def test_name_server_reports_mistakes_in_its_config_and_data_files(tmp_path: Path) -> None:
    ports = Ports.free(1)
    config = tmp_path / "namesrv.toml"
    config.write_text("order_topics = true\nno_such = 1\n")
    command = [sys.executable, "-m", "mq.cli", "namesrv", "--listen", f"127.0.0.1:{ports.namesrv}"]
    run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)
    with trio.fail_after(SECONDS_MAX):
        done: subprocess.CompletedProcess[bytes] = await run([*command, "--config", str(config)])
        assert (done.returncode, b"no_such" in done.stderr) == (2, True)
        (tmp_path / "kvConfig.json").write_text("{")
        done = await run([*command, "--data-dir", str(tmp_path)])
        assert (done.returncode, b"kvConfig.json" in done.stderr) == (2, True)


async def test_definitions_are_exported_and_imported(tmp_path: Path) -> None:
    document = tmp_path / "definitions.json"
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        commands = Commands(cluster.namesrv)
        await commands.run("topic", "create", "T", "--queues", "2", "--order", "--message-type", "fifo")
        await commands.run("consumer-group", "create", "G", "--retries", "4")
        await commands.run("produce", "T", given=b"a\nb\nc\n")
        await commands.run("consume", "T", "--group", "G", "--count", "3")
        said = await commands.run("export", str(document))
        assert said == f"{document}: topics: 1, consumer groups: 1, schedules: 0, queues with offsets: 2\n"
        assert json.loads(await commands.run("export")) == json.loads(document.read_text())
        assert await commands.run("import", str(document)) == "everything exists already\n"

        await commands.run("consumer-group", "delete", "G")
        await commands.run("topic", "delete", "T")
        planned = await commands.run("import", str(document), "--dry-run")
        assert planned.count("(not done: --dry-run)") == 2
        assert json.loads(await commands.run("export"))["topics"] == {}
        await commands.run("import", str(document))
        restored = json.loads(await commands.run("export"))
        assert (restored["topics"], restored["offsets"]) == (json.loads(document.read_text())["topics"], {})
        assert restored["consumer_groups"]["G"]["retries"] == 4
        await commands.run("produce", "T", given=b"a\nb\nc\n")
        await commands.run("import", str(document), "--offsets")
        assert json.loads(await commands.run("export")) == json.loads(document.read_text())

        changed = document.read_text().replace('"read_queues": 2', '"read_queues": 3')
        assert (await commands.run("import", "-", given=changed.encode(), code=1)) == ""
        said = await commands.run("import", "-", "--update", given=changed.encode())
        assert said == "change topic T in broker-a\n"
        for given, fault in (
            (b'{"format": 7}', "has format 7, this version of raftmq reads formats 1 to 4"),
            (b"[", "is not a file of raftmq export"),
            (
                changed.replace("broker-a", "broker-x").encode(),
                "names the broker group broker-x, and there is broker-a",
            ),
        ):
            assert fault in await commands.run("import", "-", given=given, code=2)
        assert "No such file" in await commands.run("import", str(tmp_path / "none"), code=2)


async def test_tail_shows_new_messages_without_a_group(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        commands = Commands(cluster.namesrv)
        await commands.run("topic", "create", "T", "--queues", "1")
        await commands.run("produce", "T", "--tag", "A", "--key-prefix", "k", given=b"a\nb\nc\n")
        assert await commands.run("tail", "T", "--last", "2", "--count", "2") == "b\nc\n"
        line = await commands.run("tail", "T", "-n", "1", "--count", "1", "--verbose")
        assert line.split()[1:] == ["broker-a/0@2", "A", "k3", "c"]
        row = json.loads(await commands.run("tail", "T", "-n", "1", "--count", "1", "--json"))
        assert (row["offset"], row["tag"], row["keys"], row["body"]) == (2, "A", ["k3"], "c")
        described = "--key", "order-7", "--property", "amount=3=4", "--sharding-key", "customer", "--whole"
        await commands.run("produce", "T", *described, given=b"two\n\nlines")
        row = json.loads(await commands.run("tail", "T", "-n", "1", "--count", "1", "--json"))
        assert (row["offset"], row["keys"], row["body"]) == (3, ["order-7"], "two\n\nlines")
        assert row["properties"]["amount"] == "3=4"
        assert row["properties"]["__SHARDINGKEY"] == "customer"
        assert "'amount' is not a property" in await commands.run("produce", "T", "--property", "amount", code=2)
        too_much = bytes(4 * 1024 * 1024 + 1)
        assert "more than the 4,194,304 bytes" in await commands.run("produce", "T", "--whole", given=too_much, code=2)
        assert "cannot have a sharding key" in await commands.run(
            "produce", "T", "--priority", "1", "--sharding-key", "k", given=b"x", code=1
        )
        assert json.loads(await commands.run("export"))["consumer_groups"] == {}
        await commands.run("consume", "T", "--group", "G", "--count", "1")
        seen = await commands.json("top", "--once")
        assert [(group["group"], group["leader"]) for group in seen["groups"]] == [("broker-a", "n0")]
        assert seen["groups"][0]["rates"]["n0"]["stored"] is not None
        assert seen["lag"] == [{"group": "G", "topic": "T", "messages": 3}]
        page = await commands.run("top", "--once")
        assert "broker-a: led by n0" in page
        assert "G" in page
        assert await commands.first_line("top") == page.splitlines()[0], "a pipe gets pages, too"


async def speed_is_measured(commands: Commands, directory: Path) -> None:
    load = ("--topic", "B", "--queues", "2", "--size", "100", "--seconds", "0.3", "--warm-up", "0.1")
    produced = await commands.json("bench", "produce", *load, "--batch", "5", "--in-flight", "4")
    assert produced["produced"]["messages"] >= 5
    assert produced["failed"] == {}
    assert produced["acknowledged_ms"]["p50"] > 0
    assert produced["cpu_us_per_message"].keys() == {"client", "broker-a/n0"}
    plot = directory / "percentiles.hgrm"
    both = await commands.json("bench", "end-to-end", *load, "--rate", "200", "--percentiles", str(plot))
    assert both["produced"]["messages"] == both["consumed"]["messages"] > 0
    assert both["missing"] == 0
    assert "#[Mean" in plot.read_text()
    consumed = await commands.json("bench", "consume", "--topic", "B")
    assert consumed["consumed"]["messages"] > produced["produced"]["messages"]
