"""The beginning of a log, fetched from a peer, is put back in front of it, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from chaos.disk import PowerCut
from raftlog.log_numbers import LogIndex
from raftlog.segment import REFILLED, SegmentLog
from raftlog.segment.prefix_install import REFILL_NAME
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall
from tests.support.log_fetches import LIMITS, fill, pull
from tests.unit.segment.log_home import DIRECTORY, LogHome, all_bodies

SEGMENT_BYTES = 4096
SHORT_BASE = 6 * SEGMENT_BYTES
"""Where the log begins that was deleted early; that of the peer begins two files after 0."""
ALL = 1_000_000


@pytest.fixture
def peer() -> Iterator[SegmentLog]:
    """A log of 95 entries, ten to a file, that begins with the 21st."""
    home = LogHome()
    yield fill(home, 95)
    home.close_all()


def short_home() -> LogHome:
    """A directory with the same log, which has lost four more files."""
    home = LogHome()
    log = fill(home, 95)
    home.submit(log, term=11, voted_for="n2")
    log.drop_prefix(SHORT_BASE, b"conf at the later base")
    home.submit(log)
    home.close_all()
    return home


def offered(peer: SegmentLog, nbytes: int = ALL) -> Manifest:
    manifest = peer.prefix_before(SHORT_BASE, nbytes, lambda index: b"conf after %d" % index)
    assert manifest is not None
    return manifest


def fetched(home: LogHome, peer: SegmentLog, manifest: Manifest) -> SnapshotInstall:
    """Everything is staged, and not marked as ready yet."""
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest, name=REFILL_NAME, limits=LIMITS)
    pull(staging, peer)
    return staging


def assert_put_back(home: LogHome, peer: SegmentLog, manifest: Manifest) -> None:
    log = home.open()
    assert log.beginning == manifest.base
    assert all_bodies(log) == all_bodies(peer)[manifest.base.index - peer.base[0] :]
    assert (log.last_index, log.end_pos, log.chain) == (peer.last_index, peer.end_pos, peer.chain)
    assert (log.meta.term, log.meta.voted_for) == (11, "n2")
    assert log.notes["conf"] == b"conf after %d" % manifest.base.index
    assert log.notes[REFILLED] == b"1"
    log.check_invariants()
    home.put(log, b"goes on", term=11)
    home.close_all()
    home.distrust()
    assert all_bodies(home.open())[-1] == b"goes on"
    assert not set(home.disk.listdir(f"{DIRECTORY}/{REFILL_NAME}")) - {"manifest"}
    home.close_all()


@pytest.mark.parametrize("files", [1, 3, 4])
def test_fetched_files_are_put_in_front(peer: SegmentLog, files: int) -> None:
    home, manifest = short_home(), offered(peer, files * SEGMENT_BYTES)
    assert len(manifest.starts) == files
    fetched(home, peer, manifest).finish()
    assert_put_back(home, peer, manifest)


@pytest.mark.slow
@pytest.mark.parametrize("step_of", ["finish", "install"])
def test_power_cut_at_each_step_loses_nothing(peer: SegmentLog, step_of: str) -> None:
    manifest = offered(peer)
    short = all_bodies(peer)[-(peer.last_index - 60) :]
    seen: set[str] = set()
    step, finished = 0, False
    while not finished:
        for seed in range(3):
            home = short_home()
            staging = fetched(home, peer, manifest)
            if step_of == "install":
                staging.finish()
            home.disk.cut_power_after(step)
            try:
                if step_of == "finish":
                    staging.finish()
                else:
                    home.open()
                finished = True
            except PowerCut:
                pass
            home.close_all()
            home.disk.crash(random.Random(step * 10 + seed))
            log = home.open()
            log.check_invariants()
            if log.beginning == manifest.base:
                seen.add("whole")
            else:
                assert (log.base_pos, all_bodies(log)) == (SHORT_BASE, short), f"step {step}, seed {seed}"
                seen.add("short")
                home.close_all()
                fetched(home, peer, manifest).finish()
            home.close_all()
            assert_put_back(home, peer, manifest)
        step += 1
    assert step > (3 if step_of == "finish" else 20)
    assert seen == ({"short", "whole"} if step_of == "finish" else {"whole"})


def test_power_cuts_during_each_attempt_lose_nothing(peer: SegmentLog) -> None:
    """An installation is interrupted again and again, each time a little later."""
    manifest = offered(peer)
    for seed in range(10):
        rng = random.Random(seed)
        home = short_home()
        fetched(home, peer, manifest).finish()
        step = 0
        while True:
            home.disk.cut_power_after(step)
            try:
                home.open()
                break
            except PowerCut:
                home.close_all()
                home.disk.crash(rng)
            step += rng.randrange(1, 4)
        home.disk.cancel_power_cut()
        home.close_all()
        assert_put_back(home, peer, manifest)


def test_files_that_end_elsewhere_by_now_are_removed(peer: SegmentLog) -> None:
    """The log was shortened further after they were fetched."""
    home = short_home()
    fetched(home, peer, offered(peer)).finish()
    staged = f"{DIRECTORY}/{REFILL_NAME}"
    # The opening would put them back; the deletion is made on a copy of the log without them.
    names = {name: home.disk.content(f"{staged}/{name}") for name in home.disk.listdir(staged)}
    for name in names:
        home.disk.unlink(f"{staged}/{name}")
    log = home.open()
    log.drop_prefix(SHORT_BASE + SEGMENT_BYTES, b"conf at a still later base")
    home.submit(log)
    home.close_all()
    for name, content in names.items():
        fd = home.disk.open(f"{staged}/{name}", create=True)
        home.disk.pwritev(fd, [content], 0)
        home.disk.close(fd)
    log = home.open()
    assert (log.base_pos, REFILLED in log.notes) == (SHORT_BASE + SEGMENT_BYTES, False)
    assert home.disk.listdir(staged) == []


def test_peer_offers_only_its_own_prefix(peer: SegmentLog) -> None:
    assert peer.prefix_before(peer.base_pos, ALL, lambda index: b"") is None
    assert peer.prefix_before(SHORT_BASE, SEGMENT_BYTES - 1, lambda index: b"") is None
    assert offered(peer).base.index == peer.base[0] == LogIndex(20)
