"""What one message, topic or answer does to `raftmq mirror`, and to a cut-over."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
import trio

from mq.cli.errors import CommandFailed
from mq.cli.mirror.clusters import ClusterAdmin, PullResult
from mq.cli.mirror.commands import _mirror
from mq.cli.mirror.plan import Choice
from mq.cli.mirror.verification import verify
from mq.client import BrokerError, Message, MessageQueue, NoRoute, Producer
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from tests.broker.mirror.mirroring import (
    address,
    change_over,
    content,
    copy_all,
    orders,
    orders_mirror,
    saved,
    send_orders,
    two_clusters,
)
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.waiting import until


async def test_copy_with_too_long_properties_blocks_its_queue_or_is_listed(
    tmp_path: Path,
) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        pull = source.pull

        async def longer(*args: object, **given: object) -> PullResult:
            """As of an original that a broker of RocketMQ has stored."""
            answer = await pull(*args, **given)  # type: ignore[arg-type]
            for each in answer.messages:
                each.properties["own"] = "x" * 32_650
            return answer

        with mock.patch.object(source, "pull", longer):
            blocked = await copy_all(source, target, path)
            [why] = blocked.block_reasons.values()
            assert "refuses message 0: the properties have 32" in why
            left_out: list[str] = []
            await copy_all(source, target, path, on_refusal=lambda _, __, why: left_out.append(why))
        assert len(left_out) == 1


async def test_message_with_a_forgotten_number_is_not_left_out(tmp_path: Path) -> None:
    """Or --skip-refused would leave out all that follows."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        forgotten = BrokerError(ResponseCode.MESSAGE_ILLEGAL, "SEQUENCE_FORGOTTEN: the broker does not know", "b")
        left_out: list[str] = []
        with mock.patch.object(target, "store", mock.AsyncMock(side_effect=forgotten)):
            copier = await copy_all(source, target, path, on_refusal=lambda _, __, why: left_out.append(why))
        [why] = copier.block_reasons.values()
        assert "Move it away" in why
        assert not left_out


async def test_target_queue_not_read_to_its_end_is_read_again(tmp_path: Path) -> None:
    """Without that a mirror with no state file copied again what it had not seen there."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 3)
        await copy_all(source, target, path)
        path.unlink()
        pull, asked = target.pull, 0

        async def nothing_yet(queue: MessageQueue, offset: int, **given: object) -> PullResult:
            nonlocal asked
            answer = await pull(queue, offset, **given)  # type: ignore[arg-type]
            asked += queue.topic == "Orders"
            if queue.topic == "Orders" and asked == 2:
                return PullResult([], offset, answer.begin, answer.end, moved=False)
            return answer

        with mock.patch.object(target, "pull", nothing_yet):
            await copy_all(source, target, path)
        assert await orders(target) == {0: [b"0", b"1", b"2"]}


async def test_topic_deleted_at_the_source_does_not_block_the_cut_over(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        for topic in ("Orders", "Old"):
            await source.create_topic(topic, 1)
            await producer.send(Message(topic, b"1"))
        await source.put_consumer_group(SubscriptionGroupConfig("billing"))
        [queue] = await producer.queues("Orders")
        await source.store_offset("billing", queue, 1)
        await copy_all(source, target, path)
        await source.delete_topic("Old")
        with trio.fail_after(30):
            report = await change_over(source, target, path)
        assert [(each.origin.topic, each.goal_offset) for each in report.moves] == [("Orders", 1)]


async def test_cut_over_reports_its_progress(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        await copy_all(source, target, path)
        await producer.send(Message("Orders", b"2"))
        said: list[str] = []
        with mock.patch.object(target, "store", mock.AsyncMock(side_effect=NoRoute("Orders", "no leader"))):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(functools.partial(change_over, source, target, path, say=said.append))
                await until(lambda: any("no leader" in text for text in said))
                nursery.cancel_scope.cancel()


async def test_mirror_waits_for_a_source_that_is_still_recovering(tmp_path: Path) -> None:
    """As a broker of RocketMQ that has just started: it blocked the queue until somebody started the mirror again."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        await copy_all(source, target, path)
        await producer.send(Message("Orders", b"2"))
        pull, looks = source.pull, 0

        async def shorter(queue: MessageQueue, offset: int, **given: object) -> PullResult:
            nonlocal looks
            if queue.topic == "Orders" and looks < 2:
                looks += 1
                return PullResult([], 0, 0, 0, moved=True)
            return await pull(queue, offset, **given)  # type: ignore[arg-type]

        with mock.patch.object(source, "pull", shorter):
            copier = await copy_all(source, target, path)
        assert (looks, copier.block_reasons) == (2, {})
        assert await orders(target) == {0: [b"1", b"2"]}


@contextlib.asynccontextmanager
async def created_again(directory: Path, message_count: int) -> AsyncIterator[ClusterAdmin]:
    """The source with a new topic of the old name, from offset 0 on, as RocketMQ has it; raftmq goes on counting."""
    async with cluster_and_broker(directory) as (namesrv, _), ClusterAdmin(namesrv) as source:
        await source.create_topic("Orders", 1)
        async with Producer(address(source)) as producer:
            for number in range(message_count):
                await producer.send(Message("Orders", b"new %d" % number))
        yield source


@pytest.mark.parametrize("message_count", [3, 5])
@pytest.mark.parametrize("is_state_lost", [False, True])
async def test_recreated_topic_that_outgrew_its_copies_blocks_its_queue(
    tmp_path: Path, message_count: int, is_state_lost: bool
) -> None:
    """Its first messages were skipped without a word."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 3)
        await copy_all(source, target, path)
        if is_state_lost:
            path.unlink()
        async with created_again(tmp_path / "again", message_count) as again:
            copier = await copy_all(again, target, path, looks_max=1)
        [why] = copier.block_reasons.values()
        assert "the source has another message at offset 2 than the one that was copied" in why
        assert "delete topic Orders at the target" in why
        assert await orders(target) == {0: [b"0", b"1", b"2"]}


async def test_recreated_raftmq_topic_is_copied_behind_its_old_messages(tmp_path: Path) -> None:
    """Its offsets go on, so nothing is in the place of another message."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        for body in (b"old", b"new"):
            await source.create_topic("Orders", 1)
            await producer.send(Message("Orders", body))
            copier = await copy_all(source, target, path)
            assert not copier.block_reasons
            await source.delete_topic("Orders")
        assert await orders(target) == {0: [b"old", b"new"]}


async def test_expired_original_of_the_last_copy_does_not_block_its_queue(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 3)
        await copy_all(source, target, path)
        await producer.send(Message("Orders", b"3"))
        pull, asked = source.pull, list[int]()

        async def without_the_first(queue: MessageQueue, offset: int, **given: object) -> PullResult:
            if queue.topic == "Orders" and offset < 3:
                asked.append(offset)
                return PullResult([], 3, 3, 4, moved=True)
            return await pull(queue, offset, **given)  # type: ignore[arg-type]

        with mock.patch.object(source, "pull", without_the_first):
            copier = await copy_all(source, target, path)
        assert (asked, copier.block_reasons) == ([2], {})
        assert await orders(target) == {0: [b"0", b"1", b"2", b"3"]}


async def test_cut_over_with_running_producers_detects_a_recreated_topic(tmp_path: Path) -> None:
    """The groups' offsets, of the new topic, were translated by the copies of the old one."""
    async with (
        orders_mirror(tmp_path) as (source, target, producer, path),
        created_again(tmp_path / "again", 3) as again,
    ):
        await send_orders(producer, 0, 3)
        await copy_all(source, target, path)
        [queue] = [MessageQueue("Orders", each.broker, 0) for each in saved(path).queues if each.topic == "Orders"]
        await again.put_consumer_group(SubscriptionGroupConfig("billing"))
        await again.store_offset("billing", queue, 1)
        with pytest.raises(CommandFailed, match="another message at offset 2"):
            await change_over(again, target, path, quiet_seconds=0.0, producers_run=True, looks_max=3)


async def test_topic_with_too_few_target_queues_blocks_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        for topic in ("Bills", "Orders", "Zones"):
            await source.create_topic(topic, 2)
            await producer.send(Message(topic, b"1"))
        await target.create_topic("Orders", 1)

        async def mirror(*unwanted: str) -> bool:
            return await _mirror(
                source, target, path, Choice((), unwanted), once=True, users=False, skip_refused=None, as_json=True
            )

        assert not await mirror()
        printed = capsys.readouterr()
        said = "topic Orders has 1 queues in broker-a at the target, and 2 are needed: raftmq topic update Orders"
        [trouble] = json.loads(printed.out.splitlines()[-1])["troubles"]
        assert said in trouble
        assert "--exclude Orders" in trouble
        assert f"raftmq mirror: does not go on: {said}" in printed.err
        for topic in ("Bills", "Zones"):
            assert sum(map(len, (await content(address(target), topic)).values())) == 1

        with pytest.raises(CommandFailed, match=said), trio.fail_after(30):
            await change_over(source, target, path)
        assert await mirror("Orders")
        with trio.fail_after(30):
            await change_over(source, target, path)
        await target.create_topic("Orders", 2)
        assert await mirror()
        assert sum(map(len, (await content(address(target), "Orders")).values())) == 1
        with trio.fail_after(30):
            await change_over(source, target, path)


async def test_unreadable_source_queues_do_not_block_the_cut_over(tmp_path: Path) -> None:
    """A topic with more queues to write than to read: brokers refuse to read the others."""
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", read_queues=1, write_queues=2)
        for queue_id in range(2):
            queue = MessageQueue("Orders", "broker-a", queue_id)
            await producer.send(Message("Orders", b"%d" % queue_id), queue=queue)
        with trio.fail_after(30):
            await copy_all(source, target, path)
            await change_over(source, target, path)
            found = await verify(source, target, saved(path).queues)
        assert {each.difference for each in found} == {None}
        assert await orders(target) == {0: [b"0"]}
        await source.create_topic("Orders", read_queues=2, write_queues=2)
        await copy_all(source, target, path)
        assert await orders(target) == {0: [b"0"], 1: [b"1"]}
