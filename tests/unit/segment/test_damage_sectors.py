"""Disks that give back another sector, an older one, or lose what they were told last."""

from __future__ import annotations

import errno
import random

import msgspec
import pytest

from chaos.disk import SECTOR_BYTES, PowerCut
from raftlog.log_numbers import LogIndex
from raftlog.segment import LogDamaged, StorageCorrupt, StorageFailed
from raftlog.segment.meta import MetaFile
from raftlog.segment.repair import Repair
from raftlog.segment.verify import DAMAGED_STATE, StoppedLog
from tests.unit.segment.log_home import DIRECTORY, LogHome, all_bodies


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
    log.truncate(LogIndex(4))
    new = [bytes([2]) * size for size in sizes[3:]]
    home.put(log, *new, term=2)
    log.close(clean=True)
    bodies = [*(bytes([1]) * size for size in sizes[:3]), *new]
    fresh = {start: home.disk.content(home.segment(start)) for start in stale}
    caught = 0
    for start in stale:
        for at in range(0, 4096, SECTOR_BYTES):
            old, now = stale[start][at : at + SECTOR_BYTES], fresh[start][at : at + SECTOR_BYTES]
            if old == now:
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


def aged(size: int, old_size: int) -> tuple[LogHome, list[bytes]]:
    """A log that was closed in order; the sector of its last entry is as it was before a leader replaced that entry."""
    home = LogHome()
    log = home.open()
    home.put(log, b"first" * 100, b"second", b"\1" * old_size)
    stale = home.disk.content(home.segment())
    log.truncate(LogIndex(3))
    home.put(log, b"\2" * size, term=2)
    home.submit(log, term=2, commit_hint=3)
    log.close(clean=True)
    home.disk.overwrite(home.segment(), 512, stale[512:1024])
    return home, [b"first" * 100, b"second", b"\2" * size]


@pytest.mark.parametrize("old_size", [60, 0])
def test_stale_sector_read_of_a_shorter_last_entry_is_caught(old_size: int) -> None:
    home, _ = aged(100, old_size)
    with pytest.raises(LogDamaged, match="durable up to 750"):
        home.open()


@pytest.mark.parametrize("old_size", [100, 140])
def test_stale_sector_read_of_the_last_entry_is_repaired(old_size: int) -> None:
    home, bodies = aged(100, old_size)
    with pytest.raises(LogDamaged) as caught:
        home.open()
    stopped = StoppedLog(home.disk, DIRECTORY)
    assert stopped.report().verdict == DAMAGED_STATE
    stopped.close()
    repair = Repair(home.disk, caught.value, peers=["n2"])
    healthy = LogHome()
    log = healthy.open()
    healthy.put(log, *bodies[:2])
    healthy.put(log, bodies[2], term=2)
    while (wanted := repair.next_request()) is not None:
        pos, nbytes = wanted
        assert repair.offer(pos, log.pread(pos, min(nbytes, log.end_pos - pos)), "n2")
    repair.finish()
    assert repair.cut_at is None
    log = home.open()
    assert all_bodies(log) == bodies
    assert "abstaining" not in log.notes


def test_repair_rejects_replaced_entry_of_the_same_length() -> None:
    """Another damaged replica may offer what it had before the same entry was replaced: that is not all there was."""
    home, bodies = aged(100, 100)
    with pytest.raises(LogDamaged) as caught:
        home.open()
    repair = Repair(home.disk, caught.value, peers=["n2"])
    older = LogHome()
    log = older.open()
    older.put(log, *bodies[:2], b"\1" * 100)
    pos, _ = repair.next_request() or (0, 0)
    assert repair.offer(pos, log.pread(pos, log.end_pos - pos), "n2")
    assert not repair.done
    repair.on_refusal(log.end_pos, "n2")
    repair.finish()
    log = home.open()
    assert log.notes["abstaining"] == b"1"


def test_vote_file_without_the_chain_of_the_end_still_opens() -> None:
    home, bodies = history()
    meta = MetaFile(home.disk, f"{DIRECTORY}/meta")
    assert meta.state is not None
    assert meta.state.durable_chain is not None
    for _ in range(2):
        meta.write(msgspec.structs.replace(meta.state, durable_chain=None))
    meta.close()
    assert all_bodies(home.open()) == bodies
    home.close_all()


@pytest.mark.parametrize("seed", range(60))
def test_power_cut_keeps_every_synced_entry(seed: int) -> None:
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
                    log.truncate(LogIndex(keep + 1))
                bodies = [rng.randbytes(rng.randrange(400)) for _ in range(rng.randrange(1, 5))]
                home.put(log, *bodies, term=term)
                acked = [*acked, *bodies]
        except PowerCut:
            home.disk.crash(rng)
        home.opened.clear()


@pytest.mark.parametrize("operation", ["fdatasync", "pwritev"])
@pytest.mark.parametrize("after", range(4))
def test_fsync_error_prevents_acknowledgements_and_the_next_start_verifies(operation: str, after: int) -> None:
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
