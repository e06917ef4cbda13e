"""Disks that give back another sector, an older one, or lose what they were told last."""

from __future__ import annotations

import errno
import random

import pytest

from chaos.disk import SECTOR_BYTES, PowerCut
from raftlog.segment import LogDamaged, StorageCorrupt, StorageFailed
from tests.unit.segment.log_home import LogHome, all_bodies


def history(seed: int = 1) -> tuple[LogHome, list[bytes]]:
    home = LogHome()
    rng = random.Random(seed)
    log = home.open()
    bodies = [rng.randbytes(rng.randrange(700)) for _ in range(30)]
    home.put(log, *bodies)
    log.close(clean=True)
    return home, bodies


def test_misdirected_write_or_read_is_caught() -> None:
    """Each sector of the log in the place of each other one."""
    home, bodies = history()
    paths = [f"/data/log/{name}" for name in sorted(home.disk.listdir("/data/log")) if name.isdigit()]
    sectors = [(path, at) for path in paths for at in range(0, home.segment_bytes, SECTOR_BYTES)]
    contents = {path: home.disk.content(path) for path in paths}
    caught = 0
    for path, at in sectors:
        for other, its_at in sectors:
            data = contents[other][its_at : its_at + SECTOR_BYTES]
            if data == contents[path][at : at + SECTOR_BYTES]:
                continue
            home.disk.overwrite(path, at, data)
            try:
                # Only behind the end of the log, or of a blank, another sector does no harm.
                assert all_bodies(home.open()) == bodies
            except (LogDamaged, StorageCorrupt):
                caught += 1
            finally:
                home.close_all()
                home.disk.overwrite(path, 0, contents[path])
                for opened in paths:
                    home.disk.overwrite(opened, 0, contents[opened])
    assert caught > 100


def test_misdirected_read_of_an_open_log_is_never_returned() -> None:
    home, _ = history()
    log = home.open()
    content = home.disk.content(home.segment())
    home.disk.overwrite(home.segment(), 1024, content[2048 : 2048 + SECTOR_BYTES])
    with pytest.raises(StorageCorrupt):
        all_bodies(log)
    home.close_all()


@pytest.mark.parametrize("seed", range(10))
def test_stale_sector_read_is_caught(seed: int) -> None:
    """A sector as it was before a leader replaced the entries in it: its entries never come back."""
    rng = random.Random(seed)
    home = LogHome()
    log = home.open()
    sizes = [rng.randrange(300) for _ in range(40)]
    home.put(log, *[bytes([1]) * size for size in sizes])
    stale = {start: home.disk.content(home.segment(start)) for start in (0, 4096)}
    log.truncate(4)
    new = [bytes([2]) * size for size in sizes[3:]]
    home.put(log, *new, term=2)
    log.close(clean=True)
    bodies = [*(bytes([1]) * size for size in sizes[:3]), *new]
    end = log.end_pos
    fresh = {start: home.disk.content(home.segment(start)) for start in stale}
    caught = 0
    for start in stale:
        for at in range(0, 4096, SECTOR_BYTES):
            old, now = stale[start][at : at + SECTOR_BYTES], fresh[start][at : at + SECTOR_BYTES]
            if old == now or start + at + SECTOR_BYTES > end:
                continue
            home.disk.overwrite(home.segment(start), at, old)
            # Opening looks at the last file only, unless there is reason to look further; reading looks everywhere.
            with pytest.raises((LogDamaged, StorageCorrupt)):
                all_bodies(home.open())
            home.close_all()
            home.distrust()
            with pytest.raises(LogDamaged):
                home.open()
            caught += 1
            home.disk.overwrite(home.segment(start), at, now)
    assert caught >= 3
    assert all_bodies(home.open()) == bodies
    home.close_all()


@pytest.mark.parametrize("seed", range(60))
def test_lost_fsync_power_cut(seed: int) -> None:
    """Of what no sync covered any sectors survive, in any order; of what was acknowledged nothing is ever lost."""
    rng = random.Random(seed)
    home = LogHome(segment_bytes=2048)
    acked: list[bytes] = []
    term = 1
    for _ in range(8):
        log = home.open()
        found = all_bodies(log)
        assert found[: len(acked)] == acked, f"{len(found)} entries found, {len(acked)} were acknowledged"
        acked = found
        home.disk.cut_power_after(rng.randrange(1, 60))
        try:
            while True:
                if rng.random() < 0.15 and len(acked) > 2:
                    keep = rng.randrange(max(1, len(acked) - 5), len(acked))
                    acked = acked[:keep]
                    term += 1
                    log.truncate(keep + 1)
                bodies = [rng.randbytes(rng.randrange(400)) for _ in range(rng.randrange(1, 5))]
                home.put(log, *bodies, term=term)
                acked = [*acked, *bodies]
        except PowerCut:
            home.disk.crash(rng)
        home.opened.clear()


@pytest.mark.parametrize("operation", ["fdatasync", "pwritev"])
@pytest.mark.parametrize("after", range(4))
def test_fsync_error_acknowledges_nothing_and_the_next_start_verifies(operation: str, after: int) -> None:
    home = LogHome(segment_bytes=2048)
    log = home.open()
    bodies = [bytes([number]) * 300 for number in range(10)]
    home.disk.fail(operation, errno.EIO, after=after)
    acked = 0
    try:
        for body in bodies:
            home.put(log, body)
            acked += 1
    except StorageFailed:
        assert log.durable_index == acked < len(bodies)
    else:
        raise AssertionError("the failure was kept quiet")
    operations = home.disk.operations
    home.close_all()
    assert home.disk.operations == operations, "something was written after the failure"
    home.disk.crash(random.Random(after))
    log = home.open()
    assert log.last_index >= acked
    assert all_bodies(log) == bodies[: log.last_index]
