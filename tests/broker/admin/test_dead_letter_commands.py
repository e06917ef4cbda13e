"""`raftmq dlq` with a broker, the SDK's consumers, and dead letters that they made."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.client import Admin, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from tests.support.name_server_and_broker import cluster

DLQ = "%DLQ%mail"


class Dlq:
    """Runs `raftmq dlq`, and knows the cluster."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    async def text(self, *arguments: str, code: int = 0) -> str:
        line = ["dlq", *arguments, "--namesrv", self.namesrv]
        result = await trio.to_thread.run_sync(partial(CliRunner().invoke, app, line))
        if isinstance(result.exception, CommandFailed):
            assert result.exception.exit_code == code, str(result.exception)
            return str(result.exception)
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.text(*arguments, "--json"))

    async def bodies(self, *options: str) -> list[str]:
        """The bodies of the dead letters that `export` writes."""
        return [json.loads(line)["body"] for line in (await self.text("export", "mail", *options)).splitlines()]


async def doctor(namesrv: str) -> str:
    line = ["doctor", "--watch", "0", "--namesrv", namesrv]
    return (await trio.to_thread.run_sync(partial(CliRunner().invoke, app, line))).stdout


async def consume(namesrv: str, group: str, count: int, *, fail: bool) -> list[ReceivedMessage]:
    """What a group gets from the topic T; all of it fails at once if ``fail``."""
    got: list[ReceivedMessage] = []
    consumer = PushConsumer(namesrv, group=group, ordered=False, max_reconsume_times=0, consume_from="first")

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        got.append(message)
        if len(got) == count:
            consumer.stop()
        if fail:
            raise LookupError("no such address")

    async with consumer:
        with trio.fail_after(30):
            await consumer.run()
    return got


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """The broker of this process logs nothing: its lines would be among those of the commands."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
async def dlq(tmp_path: Path) -> AsyncIterator[Dlq]:
    """A cluster in which the group ``mail`` gave up three messages."""
    async with cluster(tmp_path) as namesrv:
        async with Producer(namesrv) as producer:
            for number in range(3):
                properties = {"colour": "red"}
                await producer.send(Message("T", b"letter %d" % number, keys=[f"k{number}"], properties=properties))
        await consume(namesrv, "mail", 3, fail=True)
        yield Dlq(namesrv)


async def test_dead_letters_are_listed_and_shown_with_their_reason(dlq: Dlq) -> None:
    [row] = await dlq.json("list")
    assert (row["group"], row["to_deal_with"], row["kept"]) == ("mail", 3, 3)
    listed = await dlq.json("list", "mail", "--limit", "2")
    assert (len(listed["dead_letters"]), listed["more"]) == (2, True)
    first = listed["dead_letters"][0]
    assert (first["queue"], first["offset"], first["topic"], first["attempts"]) == ("broker-a/0", 0, "T", 1)
    assert first["failure"].startswith("LookupError: no such address")
    text = await dlq.text("list", "mail")
    assert "given up after 1 delivery: LookupError: no such address" in text
    shown = await dlq.text("show", "mail", "1")
    assert "colour=red" in shown
    assert "letter" in shown
    assert "no dead letter at offset 7" in await dlq.text("show", "mail", "7", code=1)


async def test_requeued_letters_reach_only_their_group_and_leave_the_list(dlq: Dlq) -> None:
    before = {message.body: message.message_id for message in await consume(dlq.namesrv, "audit", 3, fail=False)}
    assert (await dlq.json("requeue", "mail"))["requeued"] == 3
    again = await consume(dlq.namesrv, "mail", 3, fail=False)
    assert {message.body: message.message_id for message in again} == before
    for message in again:
        assert (message.topic, message.reconsume_times) == ("T", 0)
        assert message.user_properties == {"colour": "red"}
        assert message.properties["RAFTMQ_REQUEUED_BY"]
        assert "RAFTMQ_DEAD_REASON" not in message.properties
    async with Admin(dlq.namesrv) as admin:
        assert sum(ends.max_offset for ends in (await admin.topic_stats("T")).values()) == 3
    assert (await dlq.json("list", "mail"))["dead_letters"] == []
    assert (await dlq.json("requeue", "mail"))["requeued"] == 0
    assert len(await dlq.bodies("--all")) == 3


async def test_message_failing_again_is_a_new_dead_letter(dlq: Dlq) -> None:
    await dlq.json("requeue", "mail")
    await consume(dlq.namesrv, "mail", 3, fail=True)
    listed = (await dlq.json("list", "mail"))["dead_letters"]
    assert [(letter["offset"], letter["topic"], letter["attempts"]) for letter in listed] == [
        (3, "T", 1),
        (4, "T", 1),
        (5, "T", 1),
    ]


async def test_chosen_letters_are_requeued_and_stay_in_the_list(dlq: Dlq) -> None:
    [body] = await dlq.bodies("--key", "k1")
    assert body == "letter 1"
    assert (await dlq.json("requeue", "mail", "--key", "k1"))["requeued"] == 1
    [message] = await consume(dlq.namesrv, "mail", 1, fail=False)
    assert message.body == b"letter 1"
    assert len((await dlq.json("list", "mail"))["dead_letters"]) == 3
    assert (await dlq.json("requeue", "mail", "--failure", "no such street"))["requeued"] == 0
    assert (await dlq.json("requeue", "mail", "--offset", "0", "--offset", "2"))["requeued"] == 2
    # It used to end with 0 and "requeued 0 dead letters".
    said = await dlq.text("requeue", "mail", "--offset", "0", "--offset", "99", code=1)
    assert said == "mail has no dead letter at offset 99; requeued 1 others"


async def test_letters_sent_to_their_topic_reach_all_groups(dlq: Dlq) -> None:
    await consume(dlq.namesrv, "audit", 3, fail=False)
    assert (await dlq.json("requeue", "mail", "--to-topic"))["requeued"] == 3
    again = await consume(dlq.namesrv, "audit", 3, fail=False)
    assert sorted(message.body for message in again) == [b"letter 0", b"letter 1", b"letter 2"]


async def test_letter_without_the_property_of_retries_is_sent_to_its_topic(dlq: Dlq) -> None:
    """`--to-topic` ended with a KeyError if only DLQ_ORIGIN_TOPIC names the topic, as other software may write it."""
    async with (
        PullConsumer(dlq.namesrv, "TOOLS_CONSUMER", consume_from="first") as consumer,
        Admin(dlq.namesrv) as admin,
    ):
        await consumer.assign(await consumer.queues(DLQ))
        letter = await anext(aiter(await consumer.read_to_end()))
        letter.record.properties.pop("RETRY_TOPIC")
        await admin.requeue_dead_letter("mail", letter, to_topic=True)
        assert sum(ends.max_offset for ends in (await admin.topic_stats("T")).values()) == 4


async def test_dismissed_letters_leave_the_list_and_stay_in_their_topic(dlq: Dlq) -> None:
    assert "consumer group mail has 3 dead letters" in await doctor(dlq.namesrv)
    assert (await dlq.json("dismiss", "mail", "--until", "2020-01-01T00:00Z"))["dismissed"] == 0
    assert (await dlq.json("dismiss", "mail"))["dismissed"] == 3
    [row] = await dlq.json("list")
    assert (row["to_deal_with"], row["kept"]) == (0, 3)
    assert "dead letter" not in await doctor(dlq.namesrv)


async def test_describe_names_the_members_with_their_queues(dlq: Dlq) -> None:
    line = ["consumer-group", "describe", "audit", "--json", "--namesrv", dlq.namesrv]
    consumer = PushConsumer(dlq.namesrv, group="audit", consume_from="first", commit_seconds=0.02)
    read = trio.Event()

    @consumer.on("T")
    async def handle(_: ReceivedMessage) -> None:
        read.set()

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        with trio.fail_after(30):
            await read.wait()
            result = await trio.to_thread.run_sync(partial(CliRunner().invoke, app, line))
        nursery.cancel_scope.cancel()
    [member] = json.loads(result.stdout)["members"]
    assert (member["language"], member["queues"]) == ("PYTHON", ["T broker-a/0"])
    assert member["client_id"] == consumer.client_id
    assert member["unfinished"] is not None


async def test_bad_input_is_refused_with_a_reason(dlq: Dlq, tmp_path: Path) -> None:
    assert "there is no consumer group nobody" in await dlq.text("list", "nobody", code=1)
    assert "there is no queue broker-z/0: broker-a/0" in await dlq.text(
        "show", "mail", "0", "--queue", "broker-z/0", code=1
    )
    file = tmp_path / "letters.jsonl"
    await dlq.text("export", "mail", str(file))
    assert len(file.read_text().splitlines()) == 3
    assert "File exists" in await dlq.text("export", "mail", str(file), code=2)
    await dlq.text("requeue", "mail", "--since", "yesterday", code=2)
    # The file used to be there afterwards, empty, and the next try ended with "File exists".
    other = tmp_path / "others.jsonl"
    await dlq.text("export", "nobody", str(other), code=1)
    assert not other.exists()


async def test_group_without_dead_letters_has_an_empty_list(dlq: Dlq) -> None:
    await consume(dlq.namesrv, "audit", 3, fail=False)
    assert await dlq.text("list", "audit") == "audit has no dead letters to deal with\n"
    assert (await dlq.json("requeue", "audit"))["requeued"] == 0
    # It used to say "there is no queue None: none".
    assert await dlq.text("show", "audit", "17", code=1) == "the group has no dead letters"
