"""Brokers' disks that lose power: what was synced stays, what was not is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen.deployments.disks import open_disks, unavailable


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(unavailable() is not None, reason=f"no disks here: {unavailable()}")
async def test_unsynced_data_are_gone_and_files_are_handed_back(tmp_path: Path) -> None:
    async with open_disks(tmp_path, ("n0",)) as disks:
        data = disks["n0"].point / "data"
        data.mkdir()
        (data / "kept").write_bytes(b"kept")
        await disks["n0"].unmount()  # writes everything
        await disks["n0"].mount()
        (data / "lost").write_bytes(bytes(1000))
        lost = await disks["n0"].lose_power()
        assert (lost.unsynced_gone, lost.synced_kept) == (True, True)
        assert not (data / "lost").exists() or (data / "lost").stat().st_size == 0
    assert (tmp_path / "n0" / "kept").read_bytes() == b"kept"
    assert not disks["n0"].image.exists(), "images of a gigabyte must not stay"
