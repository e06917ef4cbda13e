"""After a failed sync the system has bytes in its cache only and takes them for written: the next opening does not."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable

import pytest

from chaos.disk import PowerCut
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import SegmentLog, StorageFailed
from raftlog.segment.limits import LogLimits
from raftlog.segment.meta import MetaFile, MetaState
from tests.unit.segment.log_home import DIRECTORY, LogHome, all_bodies

SEEDS = range(12)


def fail_sync(home: LogHome, step: Callable[[], object], after: int = 0) -> None:
    """Let the sync fail that comes after so many others within ``step``, which ends the process."""
    home.disk.fail("fdatasync", errno.EIO, after=after)
    with pytest.raises(StorageFailed):
        step()
    home.disk.kill()


def power_cut(home: LogHome, seed: int) -> None:
    home.disk.crash(random.Random(seed))


def assert_durable(home: LogHome, log: SegmentLog) -> None:
    """What the log counts as durable is on the disk."""
    for start in range(0, log.durable_pos, home.segment_bytes):
        end = min(home.segment_bytes, log.durable_pos - start)
        assert home.disk.first_undurable(home.segment(start), 0, end) is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clean", [True, False])
def test_entries_of_a_failed_sync_are_rewritten_before_counting(home: LogHome, seed: int, clean: bool) -> None:
    log = home.open()
    home.put(log, b"a" * 1000)
    fail_sync(home, lambda: home.put(log, b"b" * 1400))
    log = home.open()
    found = all_bodies(log)
    assert found == [b"a" * 1000, b"b" * 1400], "the cache has them"
    assert_durable(home, log)
    log.close(clean=clean)
    power_cut(home, seed)
    assert all_bodies(home.open()) == found


@pytest.mark.parametrize("seed", SEEDS)
def test_end_of_a_closed_file_is_rewritten_after_a_failed_sync(home: LogHome, seed: int) -> None:
    log = home.open()
    home.put(log, b"a" * 2000)
    # The second entry and the blank behind it are one write, the third one begins a file.
    fail_sync(home, lambda: home.put(log, b"b" * 1500, b"c" * 3000))
    log = home.open()
    found = all_bodies(log)
    home.put(log, b"d" * 2000)
    assert_durable(home, log)
    power_cut(home, seed)
    assert all_bodies(home.open()) == [*found, b"d" * 2000]


@pytest.mark.parametrize("seed", SEEDS)
def test_zeros_of_a_cut_are_rewritten_after_a_failed_sync(home: LogHome, seed: int) -> None:
    """Otherwise old entries come back behind new ones, further away than a torn write reaches."""
    home.limits = LogLimits(sync_bytes_max=512)
    log = home.open()
    for number in range(7):
        home.put(log, bytes([65 + number]) * 400)
    home.submit(log, commit_hint=1)

    def cut() -> None:
        log.truncate(LogIndex(3))
        home.submit(log)

    home.disk.fail("fdatasync", errno.EIO, after=1)  # behind the write of the vote file
    with pytest.raises(StorageFailed):
        cut()
    home.disk.kill()
    log = home.open()
    kept = all_bodies(log)
    assert 2 <= len(kept) < 7
    log.truncate(LogIndex(3))
    home.submit(log)
    home.put(log, b"new", term=2)
    power_cut(home, seed)
    assert all_bodies(home.open()) == [b"A" * 400, b"B" * 400, b"new"]


def test_slot_with_a_failed_sync_is_durable_before_overwriting_the_other() -> None:
    """A power cut in the write after it must not bring back a vote file older than both."""

    def state(term: int, voted_for: str) -> MetaState:
        # Longer than a sector, so that a write can be torn.
        return MetaState("c", "n1", 4096, term=Term(term), voted_for=voted_for, notes={"note": bytes([term]) * 1500})

    for step in range(4):
        for seed in range(30):
            home = LogHome()
            home.disk.mkdir(DIRECTORY)
            meta = MetaFile(home.disk, f"{DIRECTORY}/meta")
            home.disk.sync_directory(DIRECTORY)
            meta.write(state(3, "n2"))
            meta.write(state(4, "n2"))
            home.disk.fail("fdatasync", errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                meta.write(state(5, "n3"))
            home.disk.kill()
            meta = MetaFile(home.disk, f"{DIRECTORY}/meta")
            assert meta.state == state(5, "n3"), "the cache has it"
            home.disk.cut_power_after(step)
            with contextlib.suppress(PowerCut):
                meta.write(state(6, "n1"))
            home.disk.crash(random.Random(seed))
            found = MetaFile(home.disk, f"{DIRECTORY}/meta").state
            assert found in (state(4, "n2"), state(5, "n3"), state(6, "n1")), f"step {step}, seed {seed}"


def test_failed_sync_removes_the_sidecar_file() -> None:
    """What has a sidecar's name was synced, so a start after a power cut reads what was written or nothing."""
    for after in range(20):
        home = LogHome()
        log = home.open()
        home.put(log, b"a" * 3000)
        home.disk.fail("fdatasync", errno.EIO, after=after)
        try:
            home.put(log, b"b" * 3000)
        except StorageFailed:
            continue
        break
    assert f"{0:020d}.index" not in home.disk.names(DIRECTORY), "the last sync that can fail is the sidecar's"
    home.put(log, b"goes on")
    assert len(all_bodies(log)) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_files_are_dropped_only_below_a_base_that_is_durable(home: LogHome, seed: int) -> None:
    """The base whose sync failed is gone after a power cut, and what lies behind the older one is needed again."""
    log = home.open()
    home.put(log, *[b"a" * 1000] * 12)
    second = log.segments()[1]

    def drop() -> None:
        log.drop_prefix(second.start, b"", log.last_index)
        home.submit(log)

    fail_sync(home, drop)
    fail_sync(home, home.open)
    power_cut(home, seed)
    assert len(all_bodies(home.open())) in (12, 13 - second.first_index)
