"""`raftmq mirror` between two brokers in this process: all arrives once and in order, wherever it was killed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

from mq.cli.errors import CommandFailed, lone_errors
from mq.cli.mirror.clusters import ClusterAdmin, PullResult, check_different
from mq.cli.mirror.commands import open_state
from mq.cli.mirror.copier import Copier, MirrorStopped
from mq.cli.mirror.cut_over import go_back, instructions, waiting_delays
from mq.cli.mirror.setup import create_users, extend_mirror
from mq.cli.mirror.state import MirrorState
from mq.cli.mirror.state_file import load, save
from mq.cli.mirror.verification import verify
from mq.client import BrokerError, Message, MessageQueue, NoRoute, Producer, RequestTimeout
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from tests.broker.mirror.mirroring import (
    NOTHING,
    address,
    bodies,
    change_over,
    content,
    copy_all,
    orders,
    orders_mirror,
    saved,
    send_orders,
    two_clusters,
)
from tests.support.guarded import ADMIN, guarded
from tests.support.waiting import until
from tests.support.waiting_messages import WallClock


async def test_mirrored_messages_keep_all_properties(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (source, target):
        await source.create_topic("Orders", 2, attributes={"owner": "shop"})
        async with Producer(address(source), compress_bytes_min=1000) as producer:
            full = Message("Orders", b"one", tags="t", keys=["a", "b"], properties={"ü": "ö"}, flag=7, sharding_key="s")
            sent = await producer.send(full)
            await producer.send(Message("Orders", b"large" * 1000))
            await producer.send(Message("Orders", b"delayed", delay=0.1))
            numbers = {"RAFTMQ_PRODUCER": "billing", "RAFTMQ_SEQUENCE": "4"}
            await producer.send(Message("Orders", b"numbered", properties=numbers))

            async def is_delivered() -> bool:
                return sum(map(len, (await content(address(source), "Orders")).values())) == 4

            await until(is_delivered)
        await copy_all(source, target, tmp_path / "state")

        assert await orders(source) == await orders(target)
        ours, theirs = await content(address(source), "Orders"), await content(address(target), "Orders")
        [original] = [each for mine in ours.values() for each in mine if each.flag]
        [copy] = [each for mine in theirs.values() for each in mine if each.flag]
        assert copy.message_id == sent.message_id
        assert (copy.tags, copy.keys, copy.sharding_key, copy.flag) == ("t", ("a", "b"), "s", 7)
        assert copy.properties["ü"] == "ö"
        assert copy.born_at == original.born_at
        topic, broker, queue, offset, stored_ms = copy.properties["RAFTMQ_SOURCE"].split("/")
        assert (topic, int(queue), int(offset)) == ("Orders", original.queue.queue_id, original.queue_offset)
        assert (broker, int(stored_ms)) == (original.queue.broker_name, original.record.store_timestamp_ms)
        [config] = (await target.topic_config("Orders")).values()
        assert (config.write_queue_nums, config.attributes) == (2, {"owner": "shop"})
        state = saved(tmp_path / "state")
        assert [each.difference for each in await verify(source, target, state.queues)] == [None] * len(state.queues)


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_mirror_copies_every_message_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """Also with an old state file, or with none."""
    rng = random.Random(seed)
    old: list[bytes] = []
    async with orders_mirror(tmp_path, queues=2) as (source, target, producer, path):
        queues = await producer.queues("Orders")
        number = 0
        for _ in range(8):
            for _ in range(rng.randrange(1, 40)):
                await producer.send(Message("Orders", b"%d" % number), queue=rng.choice(queues))
                number += 1
            await copy_all(source, target, path, stop_after=rng.randrange(1, 3))
            old.append(path.read_bytes())
            if rng.random() < 0.3:
                path.write_bytes(rng.choice(old))
            elif rng.random() < 0.2:
                path.unlink()
        await copy_all(source, target, path)
        ours, theirs = await content(address(source), "Orders"), await content(address(target), "Orders")
        assert sum(map(len, ours.values())) == number
        assert bodies(ours) == bodies(theirs)
        state = saved(path)
        found = await verify(source, target, state.queues)
        assert sum(each.compared for each in found) == number
        assert all(each.difference is None for each in found)


async def test_batch_in_flight_during_a_mirror_restart_is_stored_once(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 5)
        late: list[tuple[dict[str, str], bytes]] = []

        async def held(fields: dict[str, str], body: bytes) -> int | None:
            late.append((fields, body))
            await trio.sleep_forever()
            raise AssertionError

        state = await open_state(source, target, path)
        await extend_mirror(source, target, state, NOTHING, lambda _: None)
        save(path, state)
        with mock.patch.object(target, "store", held):
            async with trio.open_nursery() as nursery:
                for queue in state.queues:
                    nursery.start_soon(Copier(source, target, state, path).copy, queue)
                await until(lambda: bool(late))
                nursery.cancel_scope.cancel()
        await send_orders(producer, 5, 9)
        catch_up = Copier._catch_up_with_target

        async def then_it_arrives(self: Copier, queue: object) -> None:
            await catch_up(self, queue)  # type: ignore[arg-type]
            while late:
                await target.store(*late.pop())

        with mock.patch.object(Copier, "_catch_up_with_target", then_it_arrives):
            await copy_all(source, target, path)
        assert await orders(target) == {0: [b"%d" % number for number in range(9)]}


async def test_two_messages_with_one_unique_key_both_arrive(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        first = await producer.send(Message("Orders", b"1"))
        with mock.patch.object(producer._preparation, "_unique_keys", mock.Mock(next=lambda: first.message_id)):
            second = await producer.send(Message("Orders", b"2"))
        assert first.message_id == second.message_id
        await copy_all(source, target, path)
        [messages] = (await content(address(target), "Orders")).values()
        assert [(each.message_id, bytes(each.body)) for each in messages] == [
            (first.message_id, b"1"),
            (first.message_id, b"2"),
        ]


async def test_offsets_are_moved_and_moved_back(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await target.create_topic("Orders", 1)
        await source.put_consumer_group(SubscriptionGroupConfig("billing", retry_max_times=3))
        async with Producer(address(target)) as other:
            for _ in range(3):  # somebody else's
                await other.send(Message("Orders", b"here before"))
        await send_orders(producer, 0, 10)
        [queue] = await producer.queues("Orders")
        await source.store_offset("billing", queue, 4)
        await copy_all(source, target, path)
        tried = await change_over(source, target, path, dry_run=True)
        assert [(each.offset, each.goal_offset) for each in tried.moves] == [(4, 7)]
        goal = MessageQueue("Orders", queue.broker_name, 0)
        assert await target.group_offset("billing", goal) is None
        await change_over(source, target, path)
        assert await target.group_offset("billing", goal) == 7
        assert (await target.consumer_groups())["billing"][queue.broker_name].retry_max_times == 3

        await target.store_offset("billing", goal, 9)
        again = await change_over(source, target, path)
        assert [each.goal_offset for each in again.useless_moves] == [7]
        assert await target.group_offset("billing", goal) == 9
        await go_back(source, target, saved(path), groups=NOTHING, dry_run=False)
        assert await source.group_offset("billing", queue) == 6


async def test_cut_over_is_refused_while_producers_send(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        await copy_all(source, target, path)

        async def go_on() -> None:
            while True:
                await producer.send(Message("Orders", b"more"))
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            with pytest.raises(CommandFailed, match="producers still send to the source: Orders"):
                await change_over(source, target, path, quiet_seconds=5.0)
            nursery.cancel_scope.cancel()


async def test_refused_message_blocks_its_queue_or_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with (
        two_clusters(tmp_path, message_bytes_max=1500) as (source, target),
        Producer(address(source), compress=None) as producer,
    ):
        await source.create_topic("Orders", 1)
        for body in (b"1", bytes(2000), b"3"):
            await producer.send(Message("Orders", body))
        blocked = await copy_all(source, target, path)
        [why] = blocked.block_reasons.values()
        assert "refuses message 1" in why
        assert "message_bytes_max" in why
        assert "--skip-refused" in why
        left_out: list[int] = []
        await copy_all(source, target, path, on_refusal=lambda _, message, __: left_out.append(message.queue_offset))
        assert left_out == [1]
        assert await orders(target) == {0: [b"1", b"3"]}
        state = saved(path)
        [queue] = [each for each in state.queues if each.topic == "Orders"]
        assert (queue.stretches, queue.skipped) == ([(0, 0, 1), (2, 1, 1)], [1])
        [found] = await verify(source, target, [queue])
        assert (found.compared, found.difference) == (2, None)


async def test_verify_finds_a_difference_between_the_clusters(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 5)
        await copy_all(source, target, path)
        state = saved(path)
        [queue] = [each for each in state.queues if each.topic == "Orders"]
        queue.stretches = [(0, 1, 4)]
        [found] = await verify(source, target, [queue])
        assert found.difference == "source offset 0 and target offset 1 differ"


async def test_topic_recreated_at_the_source_blocks_its_queue(tmp_path: Path) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 5)
        await copy_all(source, target, path)
        state = saved(path)
        [queue] = [each for each in state.queues if each.topic == "Orders"]
        queue.stretches, queue.next_offset = [(0, 0, 5), (5, 5, 95)], 100
        save(path, state)
        copier = await copy_all(source, target, path, looks_max=1)
        [why] = copier.block_reasons.values()
        assert "the source ends at 5, and 100 messages were there before" in why


async def test_cluster_is_not_mirrored_into_itself(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (source, target):
        with pytest.raises(CommandFailed, match="source and target are one cluster"):
            await check_different(source, source)
        await check_different(source, target)


async def test_state_of_other_clusters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target):
        save(path, MirrorState(1, "x", ["elsewhere"], ["g1"]))
        with pytest.raises(CommandFailed, match="a mirror with the source elsewhere"):
            await open_state(source, target, path)


@contextlib.asynccontextmanager
async def copying(source: ClusterAdmin, target: ClusterAdmin, path: Path) -> AsyncIterator[Copier]:
    state = await open_state(source, target, path)
    await extend_mirror(source, target, state, NOTHING, lambda _: None)
    copier = Copier(source, target, state, path)
    async with lone_errors(), trio.open_nursery() as nursery:
        for queue in state.queues:
            copier.start(queue, nursery)
        yield copier
        nursery.cancel_scope.cancel()
    copier.save()


async def test_mirror_counts_messages_deleted_before_copying(tmp_path: Path) -> None:
    """Retention has passed the mirror: it goes on with the first message that is left."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await send_orders(producer, 0, 10)
        pull = source.pull

        async def without_the_first(queue: MessageQueue, offset: int, **options: Any) -> PullResult:
            if queue.topic == "Orders" and 3 <= offset < 6:
                return PullResult([], 6, 6, 10, moved=True)
            pulled = await pull(queue, offset, **options)
            kept = [each for each in pulled.messages if not 3 <= each.queue_offset < 6]
            return pulled._replace(messages=kept[:3] if offset < 3 else kept, next_offset=3 if offset < 3 else 10)

        with mock.patch.object(source, "pull", without_the_first):
            async with copying(source, target, path) as copier:
                await until(lambda: copier.behind == 0)
        state = saved(path)
        [queue] = [each for each in state.queues if each.topic == "Orders"]
        assert (queue.gone, queue.stretches) == ([(3, 6)], [(0, 0, 3), (6, 3, 4)])
        assert await orders(target) == {0: [b"0", b"1", b"2", b"6", b"7", b"8", b"9"]}
        [found] = await verify(source, target, [queue])
        assert (found.compared, found.difference) == (7, None)


async def test_mirror_waits_for_a_full_or_unreachable_target(tmp_path: Path) -> None:
    failures = [
        BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "DISK_FULL: service not available now", "broker-a"),
        NoRoute("Orders", "broker group broker-a has no leader"),
        RequestTimeout("127.0.0.1:1", 320, 3.0),
    ]
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        store, said = target.store, list[str]()

        async def at_first_not(fields: dict[str, str], body: bytes) -> int | None:
            if failures:
                raise failures.pop(0)
            said.extend(copier.troubles.values())
            return await store(fields, body)

        with mock.patch.object(target, "store", at_first_not):
            async with copying(source, target, path) as copier:
                await until(lambda: copier.behind == 0)
        assert not failures
        assert await orders(target) == {0: [b"1"]}
        assert not copier.troubles


async def test_missing_permission_ends_the_mirror_and_is_reported(tmp_path: Path) -> None:
    refusal = BrokerError(ResponseCode.NO_PERMISSION, "user mirror may not send to Orders", "broker-a")
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"1"))
        with (
            mock.patch.object(target, "store", mock.AsyncMock(side_effect=refusal)),
            pytest.raises(MirrorStopped, match=r"Orders broker-a/0.*may not send to Orders.*permission"),
        ):
            async with copying(source, target, path):
                await trio.sleep_forever()


async def test_mirrored_retries_and_dead_letters_keep_their_attempts(tmp_path: Path) -> None:
    """Also when they fail again at the target: those redeliveries are not taken for copies."""
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        for name in ("%RETRY%billing", "%DLQ%billing"):
            await source.create_topic(name, 1)
        await source.put_consumer_group(SubscriptionGroupConfig("billing"))
        await target.put_consumer_group(SubscriptionGroupConfig("billing"))
        await producer.send(Message("Orders", b"1"))
        await copy_all(source, target, path)
        [state_queue] = [each for each in (load(path) or MirrorState(1, "", [], [])).queues if each.topic == "Orders"]
        fields = {"a": "g", "b": "%RETRY%billing", "c": "", "d": "0", "e": "0", "f": "0", "g": "5", "h": "0", "j": "3"}
        numbers = props.encode({"RAFTMQ_PRODUCER": "p", "RAFTMQ_SEQUENCE": "0", "RAFTMQ_COPIED": "true"})
        fields |= {"i": numbers, "k": "false", "m": "true", "n": state_queue.broker}
        retried = BatchedMessage(b"1", props.encode({"RETRY_TOPIC": "Orders", "DELAY": "4", "UNIQ_KEY": "K"}))
        await source.store(fields, encode_batch([retried]))
        await copy_all(source, target, path)
        [copy] = (await content(address(target), "%RETRY%billing"))[0]
        assert (copy.reconsume_times, copy.record.topic, copy.topic) == (3, "%RETRY%billing", "Orders")

        # It fails again at the target, as does the message itself; and the state is lost.
        original = await content(address(target), "Orders")
        for number, failed in enumerate((copy, original[0][0]), 7):
            again = props.encode({name: value for name, value in failed.properties.items() if name != "CLUSTER"})
            numbered = fields | {"i": numbers.replace("SEQUENCE\x010", f"SEQUENCE\x01{number}")}
            again = props.without(props.without(again, "RAFTMQ_SEQUENCE"), "RAFTMQ_PRODUCER")
            await target.store(numbered, encode_batch([BatchedMessage(b"again", again)]))
        path.unlink()
        await copy_all(source, target, path)
        assert len((await content(address(target), "%RETRY%billing"))[0]) == 3
        assert [bytes(each.body) for each in (await content(address(target), "Orders"))[0]] == [b"1"]


async def test_users_of_rocketmq_5_are_created_with_their_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("ACCESS_KEY", "SECRET_KEY"), ADMIN, strict=True):
        monkeypatch.setenv(f"RAFTMQ_{name}", value)
    entry = PolicyEntryInfo("Topic:T*", ["Pub"], None, "Allow")
    users = [UserInfo("orders", "secret12", "Normal", "enable"), UserInfo("short", "x", "Normal", "enable")]
    users += [UserInfo("hidden", None, "Normal", "enable"), UserInfo("there", "secret13", "Normal", "enable")]
    source = mock.Mock(
        users=mock.AsyncMock(return_value={"broker-a": users}),
        policies=mock.AsyncMock(return_value={"broker-a": [AclInfo("User:orders", [PolicyInfo("Custom", [entry])])]}),
    )
    settings = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, settings)
        async with guarded(tmp_path, namesrv=f"{host}:{port}"), ClusterAdmin(f"{host}:{port}") as target:
            await until(lambda: registered(target))
            await target.create_user(UserInfo("there", "another1", "Normal"))
            said: list[str] = []
            await create_users(source, target, said.append)
            assert said[0].startswith("user hidden is left out: the source does not tell passwords")
            assert said[1] == "created user orders"
            assert said[2].startswith("user short is not complete")
            assert [each.subject for rows in (await target.policies()).values() for each in rows] == ["User:orders"]
        nursery.cancel_scope.cancel()


async def registered(admin: ClusterAdmin) -> bool:
    try:
        return bool(await admin.leaders())
    except NoRoute:
        return False


async def test_delayed_messages_pending_at_the_cut_over_arrive_later(tmp_path: Path, clock: WallClock) -> None:
    async with orders_mirror(tmp_path) as (source, target, producer, path):
        await producer.send(Message("Orders", b"now"))
        await producer.send(Message("Orders", b"later", delay=600.0))
        await copy_all(source, target, path)
        report = await change_over(source, target, path)
        assert report.waiting_count == 1
        assert "1 delayed messages and retries wait at the source" in " ".join(
            instructions(report, "old:9876", "new:9876", dry_run=False)
        )
        async with Producer(address(target)) as other:
            await other.send(Message("Orders", b"sent to the target"))

        async def is_delivered() -> bool:
            return len((await content(address(source), "Orders"))[0]) == 2

        clock.now_ms += 600_000
        await until(is_delivered)
        await copy_all(source, target, path)
        assert await orders(target) == {0: [b"now", b"sent to the target", b"later"]}
        assert await waiting_delays(source) == 0
