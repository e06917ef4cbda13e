"""A broker that stops, crashes or loses its disk, and what the next one finds in its directory."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from mq.broker.server import serve
from mq.protocol.codes import RequestCode, ResponseCode
from raftlog import SegmentError
from tests.support.running_broker import (
    RunningBroker,
    broker_client,
    broker_settings,
    interpreter_as_before,
    properties,
    running,
    send_ext,
)


async def fill(broker: RunningBroker, round_number: int = 0) -> None:
    """Messages in two queues, a topic of its own, a consumer offset that was answered for."""
    client = await broker.connect()
    assert (await client.create_topic("Made", 3)).code == 0
    for number in range(10):
        body = b"%d.%d" % (round_number, number)
        assert (await client.send("Auto", body, e=number % 2, i=properties(TAGS=f"t{number}"))).code == 0
    ext = {"consumerGroup": "G", "topic": "Auto", "queueId": 1, "commitOffset": 3 + round_number}
    assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def check(broker: RunningBroker, rounds: int = 1) -> None:
    client = await broker.connect()
    for queue_id in (0, 1):
        bodies = [record.body for record in (await client.pull("Auto", queue_id)).records]
        assert bodies == [b"%d.%d" % (r, n) for r in range(rounds) for n in range(queue_id, 10, 2)]
    tagged = await client.pull("Auto", 1, subscription="t3")
    assert {record.properties["TAGS"] for record in tagged.records} == {"t3"}
    assert await client.committed(topic="Auto", queue_id=1) == 2 + rounds
    assert (await client.pull("Made", 2)).code == ResponseCode.PULL_NOT_FOUND
    assert (await client.pull("Made", 3)).code == ResponseCode.INVALID_PARAMETER
    answer = await client.send("Made", b"next", e=2)
    assert answer.ext["queueOffset"] == "0"


async def test_stopped_broker_continues_at_its_position(tmp_path: Path) -> None:
    for round_number in range(3):
        async with running(tmp_path) as broker:
            info = await (await broker.connect()).info()
            assert int(info["raftmq.term"]) == round_number + 1
            await fill(broker, round_number)
    async with running(tmp_path) as broker:
        await check(broker, rounds=3)


async def test_observed_oneway_offset_survives_a_stop(tmp_path: Path) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 7}
    async with broker_client(tmp_path, queues=1) as client:
        await client.fill(7)
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True)
        assert await client.committed() == 7
    async with running(tmp_path) as broker:
        assert await (await broker.connect()).committed() == 7


async def test_acknowledged_messages_survive_a_crash(tmp_path: Path) -> None:
    """A copy of the directory of a running broker is what a crash of the process leaves."""
    async with running(tmp_path / "before") as broker:
        await fill(broker)
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    async with running(tmp_path / "after") as broker:
        await check(broker)


async def test_messages_after_a_checkpoint_survive_a_crash(tmp_path: Path) -> None:
    async with running(tmp_path / "before") as broker:
        await fill(broker, 0)
    async with running(tmp_path / "before") as broker:
        await fill(broker, 1)
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    async with running(tmp_path / "after") as broker:
        await check(broker, rounds=2)


@pytest.mark.parametrize("lost", ["checkpoint", "queues"])
async def test_broker_rebuilds_everything_from_its_log(tmp_path: Path, lost: str) -> None:
    async with running(tmp_path) as broker:
        await fill(broker)
    remove(tmp_path / lost)
    async with running(tmp_path) as broker:
        await check(broker)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


async def test_broker_restarts_with_many_small_segments(tmp_path: Path) -> None:
    small = {"segment_bytes": 128 * 1024, "message_bytes_max": 32 * 1024}
    async with broker_client(tmp_path, **small) as client:
        frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(e=n % 2), b"%d" % n * 1000)[1] for n in range(300)]
        await client.stream.send_all(b"".join(frames))
        for opaque in range(1, 301):
            assert (await client.answer(opaque)).code == 0
    async with broker_client(tmp_path, **small) as client:
        for queue_id in (0, 1):
            bodies: list[bytes] = []
            while (pulled := await client.pull(queue_id=queue_id, offset=len(bodies))).code == 0:
                bodies += [record.body for record in pulled.records]
            assert bodies == [b"%d" % n * 1000 for n in range(queue_id, 300, 2)]


def refuse_writes(directory: Path) -> None:
    """From now on this process cannot write to the segments that it has open, by whatever code."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(FileNotFoundError):
            path = Path(f"/proc/self/fd/{number}").readlink()
            if path.parent == directory and path.name.isdigit():
                fd = os.open(path, os.O_RDONLY)
                os.dup2(fd, number, inheritable=False)
                os.close(fd)


async def test_disk_that_fails_ends_the_broker_without_an_answer(tmp_path: Path) -> None:
    """What was acknowledged before is there afterwards; of the rest nothing was promised."""
    broker = RunningBroker(broker_settings(tmp_path))
    ended: list[BaseException] = []

    async def run(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await serve(broker.settings, task_status=task_status)
        except BaseException as error:
            ended.append(error)

    with interpreter_as_before():
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            await broker.wait_leading()
            client = await broker.connect()
            assert (await client.send(body=b"kept")).code == 0
            refuse_writes(broker.settings.data_dir / "commitlog")
            opaque = await client.post(RequestCode.SEND_MESSAGE_V2, send_ext(), b"lost or not")
            assert await client.closed()
            assert opaque not in client.answers
        await broker.close_clients()
    assert len(ended) == 1
    assert isinstance(ended[0], SegmentError), ended
    assert str(tmp_path) in str(ended[0])
    async with running(tmp_path) as again:
        records = (await (await again.connect()).pull()).records
        assert records[0].body == b"kept"
