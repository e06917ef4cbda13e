"""What one message, topic or answer does to `raftmq mirror`, and to a cut-over."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import pytest
import trio

from mq.cli.mirror.clusters import Pulled
from mq.cli.mirror.cut_over import cut_over
from mq.cli.mirror.state_file import load
from mq.client import BrokerError, Message, MessageQueue, NoRoute, Producer
from mq.protocol.codes import ResponseCode
from mq.protocol.operator_bodies import SubscriptionGroupConfig
from tests.broker.mirror.mirroring import NOTHING, address, bodies, content, copy_all, two_clusters
from tests.support.waiting import until

pytestmark = pytest.mark.trio


async def test_a_message_whose_copy_would_have_too_long_properties_blocks_its_queue_or_is_listed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", 1)
        await producer.send(Message("Orders", b"1"))
        pull = source.pull

        async def longer(*args: object, **given: object) -> Pulled:
            """As of an original that a broker of RocketMQ has stored."""
            answer = await pull(*args, **given)  # type: ignore[arg-type]
            for each in answer.messages:
                each.properties["own"] = "x" * 32_650
            return answer

        with mock.patch.object(source, "pull", longer):
            blocked = await copy_all(source, target, path)
            [why] = blocked.blocked.values()
            assert "refuses message 0: properties of 32" in why
            left_out: list[str] = []
            await copy_all(source, target, path, on_refused=lambda _, __, why: left_out.append(why))
        assert len(left_out) == 1


async def test_a_forgotten_sequence_number_is_no_refusal_of_a_message(tmp_path: Path) -> None:
    """Or --skip-refused would leave out all that follows."""
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", 1)
        await producer.send(Message("Orders", b"1"))
        forgotten = BrokerError(ResponseCode.MESSAGE_ILLEGAL, "SEQUENCE_FORGOTTEN: the broker does not know", "b")
        left_out: list[str] = []
        with mock.patch.object(target, "store", mock.AsyncMock(side_effect=forgotten)):
            copier = await copy_all(source, target, path, on_refused=lambda _, __, why: left_out.append(why))
        [why] = copier.blocked.values()
        assert "Move it away" in why
        assert not left_out


async def test_a_target_queue_that_cannot_be_read_to_its_end_is_read_again(tmp_path: Path) -> None:
    """Without that a mirror with no state file copied again what it had not seen there."""
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", 1)
        for number in range(3):
            await producer.send(Message("Orders", b"%d" % number))
        await copy_all(source, target, path)
        path.unlink()
        pull, asked = target.pull, 0

        async def nothing_yet(queue: MessageQueue, offset: int, **given: object) -> Pulled:
            nonlocal asked
            answer = await pull(queue, offset, **given)  # type: ignore[arg-type]
            asked += queue.topic == "Orders"
            if queue.topic == "Orders" and asked == 2:
                return Pulled([], offset, answer.begin, answer.end, moved=False)
            return answer

        with mock.patch.object(target, "pull", nothing_yet):
            await copy_all(source, target, path)
        assert bodies(await content(address(target), "Orders")) == {0: [b"0", b"1", b"2"]}


async def test_a_topic_that_was_deleted_at_the_source_does_not_hold_up_the_cut_over(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        for topic in ("Orders", "Old"):
            await source.create_topic(topic, 1)
            await producer.send(Message(topic, b"1"))
        await source.put_consumer_group(SubscriptionGroupConfig("billing"))
        [queue] = await producer.queues("Orders")
        await source.store_offset("billing", queue, 1)
        await copy_all(source, target, path)
        await source.delete_topic("Old")
        state = load(path)
        assert state is not None
        with trio.fail_after(30):
            report = await cut_over(
                source, target, state, path, groups=NOTHING, quiet_seconds=0.1, producers_run=False, dry_run=False
            )
        assert [(each.origin.topic, each.goal_offset) for each in report.moved] == [("Orders", 1)]


async def test_a_cut_over_says_what_it_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", 1)
        await producer.send(Message("Orders", b"1"))
        await copy_all(source, target, path)
        await producer.send(Message("Orders", b"2"))
        state = load(path)
        assert state is not None
        said: list[str] = []
        with mock.patch.object(target, "store", mock.AsyncMock(side_effect=NoRoute("Orders", "no leader"))):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    functools.partial(
                        cut_over,
                        source,
                        target,
                        state,
                        path,
                        groups=NOTHING,
                        quiet_seconds=0.1,
                        producers_run=False,
                        dry_run=False,
                        say=said.append,
                    )
                )
                await until(lambda: any("no leader" in text for text in said))
                nursery.cancel_scope.cancel()


async def test_a_source_that_does_not_have_all_again_yet_is_waited_for(tmp_path: Path) -> None:
    """As a broker of RocketMQ that has just started: it blocked the queue until somebody started the mirror again."""
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target), Producer(address(source)) as producer:
        await source.create_topic("Orders", 1)
        await producer.send(Message("Orders", b"1"))
        await copy_all(source, target, path)
        await producer.send(Message("Orders", b"2"))
        pull, looks = source.pull, 0

        async def shorter(queue: MessageQueue, offset: int, **given: object) -> Pulled:
            nonlocal looks
            if queue.topic == "Orders" and looks < 2:
                looks += 1
                return Pulled([], 0, 0, 0, moved=True)
            return await pull(queue, offset, **given)  # type: ignore[arg-type]

        with mock.patch.object(source, "pull", shorter):
            copier = await copy_all(source, target, path)
        assert (looks, copier.blocked) == (2, {})
        assert bodies(await content(address(target), "Orders")) == {0: [b"1", b"2"]}
