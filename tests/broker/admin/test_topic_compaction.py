"""Topics that keep the newest message of each key."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.admin import topic_compaction
from mq.broker.admin.topic_compaction import TopicCompaction
from mq.broker.broker import Broker
from mq.broker.retention_floor import NOTHING
from mq.broker.state.commands import PutTopic, TopicConfig, encode_command
from mq.broker.state.expired_messages import ExpireMessages
from mq.broker.state.format_level import RaiseLevel
from mq.client import Admin, JsonCodec, Message, MessageRefused, Producer, PushConsumer, SendRejected, tombstone
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.records import StoredMessage
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION, DELETE_RETENTION
from tests.support.compaction import shorten_hours
from tests.support.running_broker import Client, broker_client, properties, running, send_ext
from tests.support.waiting import until

COMPACTED = f"+{CLEANUP_POLICY}={COMPACTION}"


@pytest.fixture
def short_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is old after a millisecond, and goes at once when it is not needed any more."""
    shorten_hours(monkeypatch)


async def put(client: Client, key: str, body: bytes, topic: str = "T", **more: str) -> Any:
    return await client.request(
        RequestCode.SEND_MESSAGE_V2, send_ext(topic, i=properties(KEYS=key, UNIQ_KEY=f"u{key}", **more)), body
    )


async def read_all(client: Client, topic: str = "T") -> list[StoredMessage]:
    """All messages of queue 0 in order, from its beginning on."""
    found: list[StoredMessage] = []
    offset = await client.offset(RequestCode.GET_MIN_OFFSET, topic)
    end = await client.offset(RequestCode.GET_MAX_OFFSET, topic)
    while offset < end:
        answer = await client.pull(topic, 0, offset)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            offset = int(answer.ext["nextBeginOffset"])
            continue
        assert answer.code == ResponseCode.SUCCESS, answer
        found += answer.records
        offset = found[-1].queue_offset + 1
    return found


def values(found: list[StoredMessage]) -> dict[str, bytes]:
    """The last value of each key."""
    return {each.properties[props.KEYS]: each.body for each in found}


async def begins_behind(client: Client, offset: int, topic: str = "T") -> bool:
    return await client.offset(RequestCode.GET_MIN_OFFSET, topic) >= offset


async def expires_all(client: Client, topic: str = "T") -> None:
    """Wait until the queue begins behind everything that it has now; a last message marks the end of the log."""
    await client.create_topic("Marks")
    await client.fill(1, "Marks")
    end = await client.offset(RequestCode.GET_MAX_OFFSET, topic)
    await until(partial(begins_behind, client, end, topic))


@pytest.mark.usefixtures("short_hours")
async def test_newest_value_of_each_key_stays(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, group="b-a") as client:
        for turn in range(3):
            for key in "abc":
                assert (await put(client, key, b"%s%d" % (key.encode(), turn), TAGS="t")).code == 0
        assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
        await expires_all(client)
        found = await read_all(client)
        assert values(found) == {"a": b"a2", "b": b"b2", "c": b"c2"}
        assert {each.properties["TAGS"] for each in found} == {"t"}
        assert all(each.properties[props.CARRIED].split()[0] in ("6", "7", "8") for each in found)
        for _ in range(2):
            await expires_all(client)
        found = await read_all(client)
        assert values(found) == {"a": b"a2", "b": b"b2", "c": b"c2"}
        assert all(each.properties[props.CARRIED].split()[0] in ("6", "7", "8") for each in found)
    async with broker_client(tmp_path, group="b-a") as client:
        assert values(await read_all(client)) == {"a": b"a2", "b": b"b2", "c": b"c2"}
        await expires_all(client)
        assert values(await read_all(client)) == {"a": b"a2", "b": b"b2", "c": b"c2"}


@pytest.mark.usefixtures("short_hours")
async def test_old_values_are_deleted_despite_a_step_without_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps without anything to expire do not put off what is due."""
    monkeypatch.setattr(topic_compaction, "_LINGER_SECONDS", 0.2)
    monkeypatch.setattr(topic_compaction, "_AGAIN_SECONDS", 60.0)
    async with broker_client(tmp_path, group="b-a") as client:
        assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
        assert (await put(client, "a", b"1")).code == 0
        await expires_all(client)
        assert values(await read_all(client)) == {"a": b"1"}


@pytest.mark.usefixtures("short_hours")
async def test_tombstone_stays_for_its_time_and_its_key_is_gone(tmp_path: Path, brokers: list[Broker]) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
        assert (await put(client, "a", b"1")).code == 0
        assert (await put(client, "b", b"1")).code == 0
        assert (await put(client, "a", b"")).code == 0
        await expires_all(client)
        assert values(await read_all(client)) == {"a": b"", "b": b"1"}, "it stays a day by default"
        await expires_all(client)
        assert values(await read_all(client)) == {"a": b"", "b": b"1"}, "its copy, too"
        assert (await client.create_topic("T", attributes=f"+{DELETE_RETENTION}=0")).code == 0
        await expires_all(client)
        await expires_all(client)
        assert values(await read_all(client)) == {"b": b"1"}
        [compaction] = [each for each in brokers[0].services._services if isinstance(each, TopicCompaction)]
        assert compaction.counters()["compacted_keys"] == 1


@pytest.mark.usefixtures("short_hours")
async def test_readers_see_values_in_send_order_while_messages_are_carried(tmp_path: Path) -> None:
    """Every reader sees the values of a key in the order in which they were sent."""
    async with running(tmp_path, group="b-a") as broker:
        client, reader = await broker.connect(), await broker.connect()
        assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
        await client.create_topic("Marks")
        newest: dict[str, int] = {}
        offset = 0
        for number in range(1, 300):
            key = f"k{number * 7 % 11}"
            assert (await put(client, key, b"%d" % number)).code == 0
            if number % 10 == 0:
                await client.fill(1, "Marks")
                answer = await reader.pull("T", 0, offset)
                if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                    offset = int(answer.ext["nextBeginOffset"])
                    continue
                for each in answer.records:
                    assert newest.get(each.properties[props.KEYS], 0) <= int(each.body)
                    newest[each.properties[props.KEYS]] = int(each.body)
                    offset = each.queue_offset + 1
        await expires_all(client)
        assert values(await read_all(client)) == {f"k{number * 7 % 11}": b"%d" % number for number in range(289, 300)}
        assert int((await client.info())["raftmq.compactedMessagesCarried"]) > 0


async def test_compacted_topic_refuses_unsuitable_messages(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
        for more in ({}, {"KEYS": " "}):
            ext = send_ext("T", i=properties(UNIQ_KEY="u", **more))
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"body")
            assert (answer.code, "has no key" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        late = (
            {props.DELAY: "3"},
            {props.TIMER_DELAY_SEC: "5"},
            {props.TRANSACTION_PREPARED: "true"},
            {props.PRIORITY: "1"},
        )
        for more in late:
            answer = await put(client, "k", b"body", **more)
            assert (answer.code, "in the order" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert (await put(client, "k", b"body")).code == 0
        keyed, keyless = (BatchedMessage(b"", text, 0) for text in (properties(KEYS="k"), properties(TAGS="t")))
        for elements, code in (([keyed, keyless], ResponseCode.MESSAGE_ILLEGAL), ([keyed, keyed], 0)):
            ext = send_ext("T", m=True, i="")
            assert (await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(elements))).code == code
        assert await client.offset(RequestCode.GET_MAX_OFFSET, "T") == 3


@pytest.mark.parametrize(
    ("attributes", "word"),
    [
        ("+cleanup.policy=KEEP", "allowed: DELETE and COMPACTION"),
        (f"{COMPACTED},+message.type=DELAY", "another order"),
        (f"{COMPACTED},+message.type=TRANSACTION", "another order"),
        (f"{COMPACTED},+message.type=LITE", "another order"),
        (f"{COMPACTED},+reserve.bytes=2000000", "exclude each other"),
        (f"{COMPACTED},+{DELETE_RETENTION}=1h", "whole milliseconds"),
        (f"+{DELETE_RETENTION}=1000", "is for topics with"),
    ],
)
async def test_attributes_that_no_topic_can_have_together_are_refused(
    tmp_path: Path, attributes: str, word: str
) -> None:
    async with running(tmp_path, group="b-a") as broker:
        answer = await (await broker.connect()).create_topic("T", attributes=attributes)
        assert (answer.code, word in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), answer.remark


async def test_group_with_older_members_compacts_no_topic(tmp_path: Path) -> None:
    async with running(tmp_path, group="b-a", format_level_max=7) as broker:
        answer = await (await broker.connect()).create_topic("T", attributes=COMPACTED)
        assert answer.code == ResponseCode.VERSION_NOT_SUPPORTED


@pytest.mark.usefixtures("short_hours")
async def test_recreated_topic_has_no_old_values(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        for turn in range(5):
            assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
            assert values(await read_all(client)) == {}
            for key in range(40):
                assert (await put(client, f"{turn}-{key}", b"x")).code == 0
            await client.create_topic("Marks")
            await client.fill(1, "Marks")
            if turn % 2:
                await expires_all(client)
            assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0


@pytest.mark.usefixtures("short_hours")
async def test_too_many_keys_are_refused_until_some_are_deleted(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a", compacted_keys_max=1000) as client:
        assert (await client.create_topic("T", attributes=f"{COMPACTED},+{DELETE_RETENTION}=0")).code == 0
        for number in range(0, 1000, 100):
            elements = [BatchedMessage(b"v", properties(KEYS=f"k{each}"), 0) for each in range(number, number + 100)]
            ext = send_ext("T", m=True, i="")
            assert (await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(elements))).code == 0

        async def refused() -> bool:
            answer = await put(client, "k0", b"v")
            return bool(answer.code == ResponseCode.SYSTEM_BUSY and "compacted_keys_max" in (answer.remark or ""))

        async def taken() -> bool:
            return bool((await put(client, "k0", b"v")).code == 0)

        await until(refused)
        for number in range(1, 3):
            assert (await put(client, f"k{number}", b"")).code == 0
        mixed = [BatchedMessage(body, properties(KEYS=f"k{each}"), 0) for each, body in ((3, b""), (4, b"v"))]
        ext = send_ext("T", m=True, i="")
        answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(mixed))
        assert answer.code == ResponseCode.SYSTEM_BUSY
        tombstones = [BatchedMessage(b"", properties(KEYS=f"k{each}"), 0) for each in (3, 4)]
        assert (await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(tombstones))).code == 0
        await expires_all(client)
        await until(taken)


@pytest.mark.usefixtures("short_hours")
async def test_sdk_builds_a_table_from_a_compacted_topic(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        await admin.create_topic("Prices", queues=2, compacted=True)
        for number in range(3):
            for key in ("apple", "pear"):
                await producer.send(Message("Prices", b"%d" % number, keys=[key], sharding_key=key))
        await producer.send(tombstone("Prices", "pear"))
        codec = JsonCodec(int)
        await producer.send(Message("Prices", b"7", keys=["plum"], sharding_key="plum"))
        await producer.send(Message("Marks", b"the last message of a log is not known to be old"))
        with pytest.raises(MessageRefused, match="0 if the message has keys"):
            await producer.send(Message("Prices", b""))
        with pytest.raises(SendRejected, match="has no key"):
            await producer.send(Message("Prices", b"1"))

        table: dict[str, int] = {}
        carried = 0
        with trio.fail_after(60):
            async with PushConsumer(namesrv, "G", codec=codec, consume_from="first") as consumer:
                consumer.subscribe("Prices")
                async for message in consumer:
                    [key] = message.keys
                    if message.is_tombstone:
                        table.pop(key, None)
                    else:
                        table[key] = message.body
                    carried += message.is_carried
                    if carried >= 3:
                        break
        assert table == {"apple": 2, "plum": 7}
        config = await admin.topic_config("Prices")
        assert [each.attributes[CLEANUP_POLICY] for each in config.values()] == [COMPACTION]


async def test_files_of_a_compacted_topic_stay_until_its_messages_are_carried(
    tmp_path: Path, brokers: list[Broker]
) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        kept = brokers[0].services.kept_messages
        assert kept.first_pos() == NOTHING
        assert (await client.create_topic("T", 2, attributes=COMPACTED)).code == 0
        assert kept.first_pos() == NOTHING
        first = int((await put(client, "a", b"1")).ext["msgId"][16:32], 16)
        second = int((await put(client, "a", b"2")).ext["msgId"][16:32], 16)
        assert kept.first_pos() == kept.first_pos() == first
        brokers[0].appender.add_command(encode_command(ExpireMessages(rows=[("T", 0, QueueOffset(1))])))
        brokers[0].end_turn()
        await until(partial(begins_behind, client, 1))
        assert kept.first_pos() == second
        assert (await client.create_topic("T", 2, attributes=f"-{CLEANUP_POLICY}")).code == 0
        assert kept.first_pos() == NOTHING


@pytest.mark.usefixtures("short_hours")
async def test_topic_with_the_attribute_is_compacted_once_the_level_allows(
    tmp_path: Path, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release stored the attribute, and did not follow it."""
    step, steps = TopicCompaction.run, list[TopicCompaction]()

    def noted(compaction: TopicCompaction) -> None:
        step(compaction)
        steps.append(compaction)

    monkeypatch.setattr(TopicCompaction, "run", noted)
    async with broker_client(tmp_path, group="b-a", format_level_max=7) as client:
        config = TopicConfig(name="T", read_queues=1, write_queues=1, attributes={CLEANUP_POLICY: COMPACTION})
        brokers[0].appender.add_command(encode_command(PutTopic(config=config, timestamp_ms=1)))
        brokers[0].end_turn()
        assert (await put(client, "a", b"1")).code == 0
        answer = await client.request(
            RequestCode.SEND_MESSAGE_V2, send_ext("T", i=properties(UNIQ_KEY="u", DELAY="1")), b"without a key"
        )
        assert answer.code == 0
        before = len(steps)
        await until(lambda: len(steps) > before + 1)
        brokers[0].appender.add_command(encode_command(RaiseLevel(level=8, timestamp_ms=1)))
        brokers[0].end_turn()
        await expires_all(client)
        assert values([each for each in await read_all(client) if props.KEYS in each.properties]) == {"a": b"1"}


@pytest.mark.usefixtures("short_hours")
async def test_forged_mark_of_a_copy_changes_nothing(tmp_path: Path) -> None:
    """Programs that forward what they received, and others, may send the property of copies."""
    async with broker_client(tmp_path, group="b-a") as client:
        assert (await client.create_topic("T", attributes=COMPACTED)).code == 0
        marks = ("0 0", "x", "9 999999999999999999", "-1 -1")
        for number, mark in enumerate(marks):
            assert (await put(client, f"k{number}", b"", **{props.CARRIED: mark})).code == 0
        assert not {each.properties.get(props.CARRIED) for each in await read_all(client)} & set(marks)
        shared = [BatchedMessage(b"v", properties(KEYS=f"b{n}", **{props.CARRIED: m}), 0) for n, m in enumerate(marks)]
        ext = send_ext("T", m=True, i="")
        assert (await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(shared))).code == 0
        assert not {each.properties.get(props.CARRIED) for each in await read_all(client)} & set(marks)
        await expires_all(client)
        found = {each.properties[props.KEYS]: each for each in await read_all(client)}
        assert {key: each.body for key, each in found.items()} == {
            **{f"k{number}": b"" for number in range(4)},
            **{f"b{number}": b"v" for number in range(4)},
        }
        for each in found.values():
            original, _, stored_ms = each.properties[props.CARRIED].partition(" ")
            assert original.isdigit(), each
            assert 0 <= int(stored_ms) <= each.store_timestamp_ms


@pytest.mark.usefixtures("short_hours")
async def test_values_in_a_removed_queue_stay(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        assert (await client.create_topic("T", 2, attributes=COMPACTED)).code == 0
        ext = send_ext("T", i=properties(KEYS="a", UNIQ_KEY="u")) | {"e": 1}
        assert (await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"1")).code == 0
        assert (await client.create_topic("T", 1)).code == 0
        await client.create_topic("Marks")
        await client.fill(1, "Marks")
        end = await client.offset(RequestCode.GET_MAX_OFFSET, "T", 1)

        async def is_carried() -> bool:
            return await client.offset(RequestCode.GET_MIN_OFFSET, "T", 1) >= end

        await until(is_carried)
        assert (await client.create_topic("T", 2)).code == 0
        first = await client.offset(RequestCode.GET_MIN_OFFSET, "T", 1)
        while (answer := await client.pull("T", 1, first)).code == ResponseCode.PULL_OFFSET_MOVED:
            first = int(answer.ext["nextBeginOffset"])
        assert {each.body for each in answer.records} == {b"1"}
