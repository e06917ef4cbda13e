"""Reading chosen queues as a loop: up to their present ends, or for ever; and broadcasting without a file."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from mq.client import (
    AlreadyOpen,
    ClientError,
    Message,
    OffsetsFileDamaged,
    Producer,
    PullConsumer,
    PushConsumer,
    RemotingSettings,
)
from mq.client.sync import SyncPullConsumer
from tests.support.waiting import until
from tests.unit.client.consuming import IMPATIENT, consumer_of, fill, filled, stored, take
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio


async def test_loop_ends_at_the_present_end() -> None:
    async with (
        FakeCluster.start(topics={"T": 3}) as cluster,
        PullConsumer(cluster.namesrv, "G", consume_from="first") as reader,
        Producer(cluster.namesrv) as producer,
    ):
        bodies = fill(cluster, 10, queues=2)  # the third queue is empty
        await reader.assign(await reader.queues("T"))
        read: list[bytes] = []
        with anyio.fail_after(60):
            messages = await reader.read_to_end()
            for number in range(6):
                await producer.send(Message("T", b"later %d" % number))
            async for message in messages:
                read.append(message.body)
            assert sorted(read) == bodies
            assert sorted(reader.positions.values()) == [0, 5, 5]
            # What came later is still there.
            later = [message.body async for message in await reader.read_to_end()]
        assert sorted(later) == [b"later %d" % number for number in range(6)]
        assert [message async for message in await reader.read_to_end()] == []


async def test_loop_ends_behind_messages_that_the_filter_rejects() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        PullConsumer(cluster.namesrv, "G", consume_from="first") as reader,
    ):
        for number in range(6):
            cluster.group.append("T", 0, stored(b"%d" % number, tags="a" if number < 2 else "b"))
        await reader.assign(await reader.queues("T"), tags="a")
        with anyio.fail_after(60):
            read = [message.body async for message in await reader.read_to_end()]
        assert read == [b"0", b"1"]
        assert list(reader.positions.values()) == [6]


async def test_leaving_the_loop_early_loses_no_message() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        PullConsumer(cluster.namesrv, "G", consume_from="first") as reader,
    ):
        bodies = fill(cluster, 5)
        await reader.assign(await reader.queues("T"))
        with anyio.fail_after(60):
            async for message in reader:
                assert message.body == bodies[0]
                break
            async for message in await reader.read_to_end():
                assert message.body == bodies[1]
                break
            assert list(reader.positions.values()) == [2]
            assert [message.body for message in await reader.poll()] == bodies[2:]
        await cluster.kill(cluster.leader)
        with pytest.raises(ClientError):
            await reader.read_to_end()


async def test_late_message_of_finished_queue_is_read_next() -> None:
    async with (
        FakeCluster.start(topics={"T": 2}) as cluster,
        PullConsumer(cluster.namesrv, "G", consume_from="first") as reader,
    ):
        first, other = await reader.queues("T")
        for number in range(3):
            cluster.group.append("T", other.queue_id, stored(b"%d" % number))
        await reader.assign([first, other])
        with anyio.fail_after(60):
            messages = await reader.read_to_end()
            read = [(await anext(messages)).body]
            cluster.group.append("T", first.queue_id, stored(b"late"))
            # The queues take turns: the late message is looked at before the last one of the other queue.
            await until(lambda: reader._pullers[first].process_queue.ready_count == 1)
            read += [message.body async for message in messages]
            assert read == [b"0", b"1", b"2"]
            assert [message.body for message in await reader.poll(timeout=30)] == [b"late"]


def test_threads_read_to_the_end(threads: FakeCluster) -> None:
    bodies = fill(threads, 5)
    with SyncPullConsumer(threads.namesrv, "G", consume_from="first") as reader:
        reader.assign(reader.queues("T"))
        assert next(iter(reader)).body == bodies[0]
        assert [message.body for message in reader.read_to_end()] == bodies[1:]
        assert list(reader.read_to_end()) == []


@pytest.mark.parametrize("is_in_file", [True, False])
async def test_broadcast_reads_added_queue_from_its_first_message(is_in_file: bool, tmp_path: Path) -> None:
    async with filled(3) as cluster:
        member = consumer_of(
            cluster,
            broadcast=tmp_path / "offsets" if is_in_file else True,
            consume_from="last",
            rebalance_seconds=0.02,
            remoting=RemotingSettings(route_refresh_seconds=0.02),
        )
        async with member:
            member.subscribe("T")
            await member.wait_assigned()
            cluster.group.append("T", 1, stored(b"new"))
            cluster.group.topics["T"] = 2
            assert [message.body for message in await take(member, 1)] == [b"new"]


async def test_broadcast_reads_missing_topic_from_its_first_message(cluster: FakeCluster) -> None:
    member = consumer_of(cluster, broadcast=True, consume_from="last", remoting=IMPATIENT)
    async with member:
        member.subscribe("U")
        await until(lambda: "does not exist" in str(member.health()))
        cluster.group.append("U", 0, stored(b"new"))
        cluster.group.topics["U"] = 1
        assert [message.body for message in await take(member, 1)] == [b"new"]


async def test_offsets_file_of_another_consumer_is_refused(tmp_path: Path) -> None:
    """Each stored its own offsets there, so that the other one skipped messages when it was opened again."""
    offsets = tmp_path / "a" / "offsets"
    async with filled(3) as cluster:
        first, second = (consumer_of(cluster, broadcast=offsets) for _ in range(2))
        async with first:
            with pytest.raises(AlreadyOpen, match=r"a consumer of this process keeps its offsets in .*a/offsets: give"):
                await second.open()
            code = "import sys; from mq.client.consume.offsets_lock import OffsetsLock; OffsetsLock(sys.argv[1])"
            other = await anyio.run_process([sys.executable, "-c", code, str(offsets)], check=False)
            assert b"AlreadyOpen: a consumer of another process keeps" in other.stderr
            first.subscribe("T")
            await take(first, 3)
        async with second:
            second.subscribe("T")
            assert [message.body for message in await take(second, 1)] == [b"002"]
        offsets.write_text("{")
        for _ in range(2):
            with pytest.raises(OffsetsFileDamaged):
                await first.open()
    with pytest.raises(ValueError, match="broadcast is the path of a file"):
        PushConsumer("127.0.0.1:9", "G", broadcast="")


async def test_broadcast_without_a_file_starts_from_the_beginning(cluster: FakeCluster) -> None:
    bodies = fill(cluster, 3)
    members = [consumer_of(cluster, broadcast=True) for _ in range(2)]
    async with members[0], members[1]:
        for member in members:
            member.subscribe("T")
            assert [message.body for message in await take(member, 3)] == bodies
    assert cluster.group.offsets == {}
    async with members[0]:
        assert [message.body for message in await take(members[0], 3)] == bodies
    not_broadcasting = consumer_of(cluster, broadcast=False)
    async with not_broadcasting:
        not_broadcasting.subscribe("T")
        await take(not_broadcasting, 3)
    assert cluster.group.offsets["cg", "T", 0] == 2
