"""A broker whose log is shortened: what is gone is said so, what is left is all there, also after a restart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mq.broker import server
from mq.broker.broker import Broker
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import Client, broker_client
from tests.support.short_logs import COUNT, MIB, SMALL, body, fill, shortened
from tests.support.waiting import until


async def check(client: Client, low: int, high: int) -> None:
    assert 0 < low < high
    assert await client.offset(RequestCode.GET_MIN_OFFSET) == low
    assert await client.offset(RequestCode.GET_MAX_OFFSET) == high
    gone = await client.pull(offset=0)
    assert (gone.code, gone.ext["nextBeginOffset"], gone.ext["minOffset"]) == (
        ResponseCode.PULL_OFFSET_MOVED,
        str(low),
        str(low),
    )
    found: list[bytes] = []
    while (pulled := await client.pull(offset=low + len(found))).code == ResponseCode.SUCCESS:
        found += [record.body for record in pulled.records]
    assert found == [body(n) for n in range(low, high)]


async def test_oldest_files_are_deleted_and_the_rest_is_served(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, **SMALL) as client:
        assert (await client.send("Early", b"first of all")).code == 0
        await fill(client)
        await client.request(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 3},
        )
        await shortened(client, tmp_path / "commitlog")
        assert int((await client.info())["raftmq.baseIndex"]) > 0
        assert (await client.pull(offset=0)).code == ResponseCode.PULL_OFFSET_MOVED
    # Compared only while no further file can go.
    low = 0
    for lost in (None, "checkpoint", "queues"):
        if lost == "checkpoint":
            (tmp_path / lost).write_bytes(b"rubbish")
        elif lost is not None:
            for path in (tmp_path / lost / "T").rglob("*0"):
                if path.is_file():
                    path.write_bytes(b"")
        async with broker_client(tmp_path, **SMALL | {"retention_check_seconds": 1000}) as client:
            low = low or await client.offset(RequestCode.GET_MIN_OFFSET)
            await check(client, low, COUNT)
            assert await client.committed() == 3
            # A queue whose messages are all gone goes on counting where it was.
            assert await client.offset(RequestCode.GET_MAX_OFFSET, "Early") >= 1
            assert await client.offset(RequestCode.GET_MIN_OFFSET, "Early") >= 1


async def test_files_stay_for_their_time(tmp_path: Path) -> None:
    async with broker_client(tmp_path, **SMALL | {"retention_bytes": 64 * MIB, "delete_when": -1}) as client:
        await fill(client, 100)
        await client.wait_for(lambda info: int(info["raftmq.appliedIndex"]) > 5)
        assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
    # A tenth of a second is over for all of them.
    young = SMALL | {"retention_bytes": 64 * MIB, "delete_when": -1, "retention_hours": 0.1 / 3600}
    async with broker_client(tmp_path, **young) as client:
        await fill(client, 40, 100)

        async def is_shorter() -> bool:
            return await client.offset(RequestCode.GET_MIN_OFFSET) > 0

        await until(is_shorter)
        low, high = [await client.offset(code) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)]
        assert high == 140
        assert [record.body for record in (await client.pull(offset=low)).records][:1] in ([], [body(low)])


async def test_app_snapshot_and_log_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot and a log without its beginning give the same topics, offsets and queues as the whole."""
    brokers: list[Broker] = []

    class Caught(Broker):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            brokers.append(self)

    monkeypatch.setattr(server, "Broker", Caught)

    async def state(client: Client) -> list[object]:
        found: list[object] = [await client.committed(topic=topic) for topic in ("T", "Early", "Late")]
        for topic in ("T", "Early", "Late"):
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
                found.append(await client.offset(code, topic))
        return found

    def commit(offset: int) -> dict[str, object]:
        return {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}

    async with broker_client(tmp_path / "one", queues=1, **SMALL) as client:
        assert (await client.send("Early", b"first of all")).code == 0
        await fill(client)
        await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit(3))
        snapshot_now = brokers[0].snapshot()
        assert snapshot_now is not None
        index, encode = snapshot_now
        snapshot = encode()
        await shortened(client, tmp_path / "one" / "commitlog")
        await fill(client, 40, COUNT)
        await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit(5))
        assert (await client.send("Late", b"last of all")).code == 0
        await shortened(client, tmp_path / "one" / "commitlog")
    still = SMALL | {"retention_check_seconds": 1000}
    async with broker_client(tmp_path / "one", **still) as client:
        expected = await state(client)
        low = await client.offset(RequestCode.GET_MIN_OFFSET)
        assert int((await client.info())["raftmq.baseIndex"]) < index, "the snapshot is ahead of the base"
    shutil.copytree(tmp_path / "one" / "commitlog", tmp_path / "two" / "commitlog")
    (tmp_path / "two" / "commitlog" / "snapshot").write_bytes(snapshot)
    async with broker_client(tmp_path / "two", **still) as client:
        assert await state(client) == expected
        await check(client, low, COUNT + 40)
