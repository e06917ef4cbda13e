"""What waits in the broker's own queues outlives the retention of the log, and goes with a full disk only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.base.clock_corrections import FILE_TIMES
from mq.broker.base.retention import Retention
from mq.broker.broker import Broker
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.half_messages import COMMIT, ROLLBACK, end, send_half
from tests.support.popping import Popped, ack, popped
from tests.support.replies import three_replicas
from tests.support.running_broker import Client, RunningBroker, broker_client, properties, running
from tests.support.short_logs import DISK_EXPIRES, MIB, SMALL, SMALL_SEGMENT_BYTES, fill, log_bytes, shortened
from tests.support.waiting import until
from tests.support.waiting_messages import WallClock

MINUTE = 60_000
BY_AGE = SMALL | {"retention_bytes": 64 * MIB, "retention_hours": 1 / 60, "delete_when": -1}

Ending = Callable[[], Awaitable[None]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()
    monkeypatch.setattr("raftlog.Machine.wall_clock_ms", clock)
    monkeypatch.setattr("raftlog.net.machine.boot_time", clock.seconds)

    def retention(**given: Any) -> Retention:
        return Retention(**given | {"clock": clock.seconds})

    monkeypatch.setattr("mq.broker.services.Retention", retention)
    return clock


async def wait_with(client: Client, clock: WallClock, kind: str) -> Ending:
    """Send messages to topic "Late" one of which waits for long; what is returned ends that."""
    if kind == "half":
        ended, waiting = [await send_half(client, body, "Late") for body in (b"ended", b"waits")]
        assert (await end(client, ended, ROLLBACK)).code == 0

        async def commit() -> None:
            assert (await end(client, waiting, COMMIT)).code == 0

        return commit
    due_ms = clock.now_ms + 10 * MINUTE
    text = {"timer": {"TIMER_DELIVER_MS": str(due_ms)}, "level": {"DELAY": "14"}}[kind]  # 10 minutes as well
    assert (await client.send("Late", b"waits", i=properties(**text))).code == 0

    async def pass_time() -> None:
        clock.now_ms = due_ms

    return pass_time


async def would_go(broker: Broker, client: Client) -> None:
    """Wait until two checkpoints do without most of the log, and retention had its turn after that."""
    await until(lambda: broker._checkpointer.floor_pos >= 2 * MIB)
    await retention_looked(broker)


async def retention_looked(broker: Broker) -> None:
    """Wait until retention has had two turns from now on."""
    retention = broker.services.retention

    def turns() -> int:
        return retention._tight_checks + retention._calm_checks

    before = turns()
    await until(lambda: turns() >= before + 2)


async def base(client: Client) -> int:
    return int((await client.info())["commitLogMinOffset"])


@asynccontextmanager
async def overfull(directory: Path, given: dict[str, Any], clock: WallClock) -> AsyncIterator[RunningBroker]:
    """A broker; its data directory has the topic "Late"."""
    async with running(directory, **given) as broker:
        client = await broker.connect()
        for topic in ("T", "Late"):
            await client.create_topic(topic, 1)
        yield broker


def checkpointed(broker: Broker) -> bool:
    """Write a checkpoint now, if there is reason for one."""
    pending = broker.prepare_checkpoint()
    if pending is None:
        return False
    while pending.gather():
        pass
    pending.commit()
    return True


async def test_idle_broker_drops_files(tmp_path: Path, clock: WallClock, brokers: list[Broker]) -> None:
    """A file goes when two checkpoints do without it: the last one is written once more, although nothing came."""
    async with overfull(tmp_path, SMALL | {"checkpoint_seconds": 3600}, clock) as broker:
        client = await broker.connect()
        assert checkpointed(brokers[0])
        await fill(client)
        assert checkpointed(brokers[0])
        assert brokers[0]._checkpointer.floor_pos < SMALL_SEGMENT_BYTES, "the first one needs all of the log"
        assert checkpointed(brokers[0])

        async def is_shorter() -> bool:
            return await base(client) > 0

        await until(is_shorter)
        assert not checkpointed(brokers[0]), "and not for ever"


@pytest.mark.parametrize("kind", ["timer", "level", "half"])
@pytest.mark.parametrize("given", [SMALL, BY_AGE], ids=["by size", "by age"])
async def test_retention_keeps_waiting_messages_until_due(
    tmp_path: Path, clock: WallClock, brokers: list[Broker], given: dict[str, Any], kind: str
) -> None:
    async with overfull(tmp_path, given, clock) as broker:
        client = await broker.connect()
        end_waiting = await wait_with(client, clock, kind)
        await fill(client)
        clock.now_ms += 2 * MINUTE
        await would_go(brokers[0], client)
        assert await base(client) == 0
        counter = {"timer": "timersPending", "level": "delayedPending", "half": "transactionsOpen"}[kind]
        assert (await client.info())[f"raftmq.{counter}"] == "1"
        await end_waiting()

        async def came() -> bool:
            return (await client.pull("Late")).code == ResponseCode.SUCCESS

        await until(came)
        assert [record.body for record in (await client.pull("Late")).records] == [b"waits"]
        assert (await client.info())[f"raftmq.{counter}"] == "0"
        clock.now_ms += 2 * MINUTE
        await fill(client, 20, 400)  # so that what was delivered is not in the first files
        await shortened(client, tmp_path / "commitlog")


@pytest.mark.parametrize("given", [SMALL, BY_AGE], ids=["by size", "by age"])
async def test_popped_messages_are_kept_until_redelivery_or_acknowledgement(
    tmp_path: Path, clock: WallClock, brokers: list[Broker], given: dict[str, Any]
) -> None:
    async with overfull(tmp_path, given, clock) as broker:
        client = await broker.connect()
        for body in (b"comes again", b"acknowledged"):
            assert (await client.send("Late", body)).code == 0
        _, acknowledged = await pop_late(client, clock)
        other, *_ = await pop_late(client, clock, consumerGroup="H", maxMsgNums=1)
        await fill(client)
        clock.now_ms += 2 * MINUTE
        await would_go(brokers[0], client)
        assert await base(client) == 0
        assert await ack(client, acknowledged, "Late") == 0
        assert await ack(client, other, "Late", "H") == 0
        clock.now_ms += 8 * MINUTE
        again: list[Popped] = []

        async def came() -> bool:
            again.extend(await pop_late(client, clock))
            return bool(again)

        await until(came)
        assert [message.body for message in again] == [b"comes again"]
        assert await ack(client, again[0], "Late") == 0
        await fill(client, 20, 400)
        clock.now_ms += 2 * MINUTE
        await shortened(client, tmp_path / "commitlog")
        assert (await client.info())["raftmq.popLost"] == "0"


async def test_retention_keeps_ordered_pops_for_their_invisible_time_only(
    tmp_path: Path, clock: WallClock, brokers: list[Broker]
) -> None:
    """Then it is a message like others that the group has not got."""
    async with overfull(tmp_path, SMALL, clock) as broker:
        client = await broker.connect()
        assert (await client.send("Late", b"waits")).code == 0
        assert len(await pop_late(client, clock, order=True)) == 1
        await fill(client)
        await would_go(brokers[0], client)
        assert await base(client) == 0
        clock.now_ms += 10 * MINUTE
        await shortened(client, tmp_path / "commitlog")


async def pop_late(client: Client, clock: WallClock, **given: Any) -> list[Popped]:
    """What a group gets of topic "Late", for ten minutes."""
    return await popped(client, "Late", bornTime=clock.now_ms, invisibleTime=10 * MINUTE, **given)


async def test_first_waiting_message_limits_retention(tmp_path: Path, clock: WallClock, brokers: list[Broker]) -> None:
    async with overfull(tmp_path, SMALL, clock) as broker:
        client = await broker.connect()
        endings = []
        for kind in ("half", "timer", "level"):
            await fill(client, 100)
            endings.append(await wait_with(client, clock, kind))
        await fill(client, 300)
        await would_go(brokers[0], client)
        reached = [await base(client)]
        assert reached[0] > 0
        for ending in endings[:2]:
            await ending()
            await until(lambda: _grows(client, reached))
        await shortened(client, tmp_path / "commitlog")


async def _grows(client: Client, reached: list[int]) -> bool:
    now = await base(client)
    if now == reached[-1]:
        return False
    reached.append(now)
    return True


async def test_full_disk_deletes_and_counts_waiting_messages(
    tmp_path: Path, clock: WallClock, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 50
    monkeypatch.setattr("mq.broker.services.disk_usage", lambda directory: (free << 30, 100 << 30))
    async with overfull(tmp_path, SMALL | DISK_EXPIRES, clock) as broker:
        client = await broker.connect()
        endings = [await wait_with(client, clock, kind) for kind in ("half", "timer", "level")]
        await fill(client)
        free = 19  # beyond disk_expire_ratio, and what waits stays
        await would_go(brokers[0], client)
        assert await base(client) == 0
        free = 9
        await shortened(client, tmp_path / "commitlog")
        await endings[1]()
        counters = ("transactionsExpired", "timersExpired", "delayedExpired")
        await client.wait_for(lambda info: [info[f"raftmq.{name}"] for name in counters] == ["1", "1", "1"])
        assert (await client.pull("Late")).code != ResponseCode.SUCCESS


@pytest.mark.slow
async def test_every_replica_keeps_waiting_messages(tmp_path: Path, clock: WallClock) -> None:
    async with three_replicas(tmp_path, **SMALL) as group:
        clients = [await broker.connect() for broker in group]
        logs = [broker.settings.data_dir / "commitlog" for broker in group]
        await clients[0].create_topic("Late", 1)
        end_waiting = await wait_with(clients[0], clock, "timer")
        await fill(clients[0])

        async def all_have_it() -> bool:
            applied = [int((await client.info())["raftmq.appliedIndex"]) for client in clients]
            return len(set(applied)) == 1

        await until(all_have_it)
        await trio.sleep(1)  # retention has turns, and must delete nothing
        assert [await base(client) for client in clients] == [0, 0, 0]
        assert all(log_bytes(log) > MIB + 3 * SMALL_SEGMENT_BYTES for log in logs)
        await end_waiting()
        for client, log in zip(clients, logs, strict=True):
            await shortened(client, log)


async def test_retention_does_not_wait_for_the_key_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that builds its files never answers."""
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\nexec sleep 3600\n")
    stuck.chmod(0o755)
    monkeypatch.setattr("mq.broker.query.by_key.sys", SimpleNamespace(executable=str(stuck)))
    async with broker_client(tmp_path / "broker", queues=1, **SMALL, key_index_poll_seconds=0.01) as client:
        await fill(client)
        await until(lambda: client.offset(RequestCode.GET_MIN_OFFSET))


async def test_correcting_the_clock_between_two_starts_deletes_nothing_early(
    tmp_path: Path, clock: WallClock, brokers: list[Broker]
) -> None:
    """It was nine hours behind, and messages are kept for ten."""
    given = SMALL | {"retention_bytes": 64 * MIB, "retention_hours": 10, "delete_when": -1}
    clock.behind_ms = 9 * 60 * MINUTE
    async with overfull(tmp_path, given, clock) as broker:
        client = await broker.connect()
        await fill(client)
        await would_go(brokers[0], client)
    clock.behind_ms = 0
    async with broker_client(tmp_path, **given) as client:
        await retention_looked(brokers[1])
        clock.now_ms += 120 * MINUTE  # longer than a jump is doubted
        await retention_looked(brokers[1])
        assert await base(client) == 0
        clock.now_ms += 10 * 60 * MINUTE

        async def is_shorter() -> bool:
            return await base(client) > 0

        await until(is_shorter)


async def test_unreadable_note_of_file_times_does_not_stop_a_start(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path):
        brokers[0].context.replica.remember(FILE_TIMES, b"of a later release")
    with capture_logs() as logs:
        async with broker_client(tmp_path, queues=1, retention_check_seconds=0.05):

            def is_replaced() -> bool:
                return brokers[1].context.replica.log.notes[FILE_TIMES] != b"of a later release"

            await until(is_replaced)
    assert [line["log_level"] for line in logs if line["event"] == "file_times_unreadable"] == ["warning"]
