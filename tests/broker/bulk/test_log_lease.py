"""Leases: what a reader holds stays, for a bounded time, for a bounded number of readers, and not on a full disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.bulk.log_lease import NOTHING, LogLeases
from mq.broker.net.call import Call
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.bulk import HoldLog, HoldLogExt, LeaseList
from tests.support.bulk_reading import bulk, read_all
from tests.support.running_broker import Answer, Client, broker_client, broker_settings
from tests.support.short_logs import DISK_EXPIRES, SMALL, fill, shortened


class Leases:
    """Leases and a clock that only tests move."""

    def __init__(self, directory: Path, **given: Any) -> None:
        self.now = 0.0
        self.base_pos = 0
        self.leases = LogLeases(
            settings=broker_settings(directory, **given),
            base_pos=lambda: PhysicalOffset(self.base_pos),
            clock=lambda: self.now,
        )

    def hold(self, lease_id: str, position: int, seconds: int) -> bytes:
        request = HoldLog(ext=HoldLogExt(lease_id=lease_id, position=PhysicalOffset(position), seconds=seconds))
        nobody: Any = None
        return self.leases.handle(Call(nobody, request, b"", 0))


def test_lowest_lease_position_applies_until_its_lease_expires(tmp_path: Path) -> None:
    held = Leases(tmp_path)
    assert held.leases.first_pos() == NOTHING
    held.hold("a", 100, 10)
    held.hold("b", 50, 20)
    assert held.leases.first_pos() == 50
    held.hold("b", 70, 5)
    assert held.leases.first_pos() == 70
    held.now = 5.0
    assert held.leases.first_pos() == 100
    held.hold("a", 100, 10)
    held.now = 14.9
    assert held.leases.first_pos() == 100
    held.hold("a", 100, 0)
    assert held.leases.first_pos() == NOTHING
    held.base_pos = 1000
    held.hold("c", 10, 10)
    assert held.leases.first_pos() == 1000


def test_lease_duration_is_capped_by_the_setting(tmp_path: Path) -> None:
    held = Leases(tmp_path, log_lease_seconds_max=60)
    assert b'"seconds":"60"' in held.hold("a", 0, 2**31 - 1)
    held.now = 60.0
    assert held.leases.counters() == {"log_leases": 0}


async def test_replica_lists_its_readers_and_the_time_left(tmp_path: Path) -> None:
    async with broker_client(tmp_path, **SMALL) as client:
        assert LeaseList.decode((await client.request(RequestCode.LIST_LEASES)).body).leases == []
        await hold(client, "spark-2", 0, 600)
        await hold(client, "spark-1", 0, 60)
        await hold(client, "gone", 0, 60)
        await hold(client, "gone", 0, 0)
        found = LeaseList.decode((await client.request(RequestCode.LIST_LEASES)).body).leases
        assert [(each.lease_id, each.position) for each in found] == [("spark-1", 0), ("spark-2", 0)]
        assert 50 <= found[0].seconds <= 60
        assert 590 <= found[1].seconds <= 600


async def hold(client: Client, lease_id: object, position: object, seconds: object) -> Answer:
    ext = {"leaseId": lease_id, "position": position, "seconds": seconds}
    return await client.request(RequestCode.HOLD_LOG, ext)


async def test_retention_keeps_files_until_the_reader_releases_its_lease(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=4, **SMALL) as client:
        granted = await hold(client, "scan", 0, 600)
        assert (granted.code, granted.ext["seconds"], granted.ext["basePosition"]) == (0, "600", "0")
        await fill(client)
        for _ in range(50):  # long enough for checkpoints, of which retention waits for two
            assert (await client.request(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        found = await read_all(client, (0, 0, 400))
        assert [record.queue_offset for record in found] == list(range(400))
        assert (await client.info())["raftmq.logLeases"] == "1"
        await hold(client, "scan", 0, 0)
        await shortened(client, tmp_path / "commitlog")
        assert (await bulk(client, (0, 0, 400))).offsets[0] > 0


async def test_almost_full_disk_overrides_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_client(tmp_path, queues=4, **SMALL | DISK_EXPIRES) as client:
        await hold(client, "scan", 0, 600)
        await fill(client)
        monkeypatch.setattr("mq.broker.base.disk.RealDisk.usage", lambda disk, directory: (5, 100))
        await client.wait_for(lambda info: int(info["raftmq.basePosition"]) > 0)


async def test_leases_are_bounded_and_bad_ones_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, log_leases_max=2) as client:
        for lease_id in ("a", "b", "a"):
            assert (await hold(client, lease_id, 0, 60)).code == 0
        assert (await hold(client, "c", 0, 60)).code == ResponseCode.SYSTEM_BUSY
        for lease_id, position, seconds in (("", 0, 1), ("x" * 129, 0, 1), ("a", -1, 1), ("a", 0, -1)):
            answer = await hold(client, lease_id, position, seconds)
            assert answer.code == ResponseCode.INVALID_PARAMETER, answer
        unreadable: list[tuple[Any, Any, Any]] = [("a", "near", 1), ("a", 2**63, 1), ("a", 0, None), (None, 0, 1)]
        for fields in unreadable:
            answer = await hold(client, *fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer
        assert (await hold(client, "a", 0, 0)).code == 0
        assert (await hold(client, "c", 0, 60)).code == 0
