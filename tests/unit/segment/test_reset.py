"""A log is replaced by another one's beginning: gathered in pieces, verified, and installed whatever happens."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from chaos.disk import PowerCut
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, NORMAL, SegmentLog, StorageFailed
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall, decode_manifest, discard, encode_manifest
from tests.support.log_fetches import LIMITS, PIECE_BYTES, SNAPSHOT, fill, manifest_of, pull
from tests.unit.segment.log_home import DIRECTORY, LogHome, all_bodies


@pytest.fixture
def leader() -> Iterator[LogHome]:
    """Ten entries to a file of 4 KiB, 95 of them, all committed; the first two files are gone."""
    home = LogHome()
    fill(home, 95)
    yield home
    home.close_all()


def stage(home: LogHome, manifest: Manifest, source: SegmentLog) -> None:
    """Gather what the manifest names, up to its installation by the next opening."""
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
    pull(staging, source)
    staging.finish()


def assert_replaced(home: LogHome, leader: SegmentLog, manifest: Manifest) -> SegmentLog:
    log = home.open()
    assert log.opening_state.startswith(f"intact: entries are good up to index {manifest.end_index}")
    assert (log.base, log.base_pos, log.base_chain) == (leader.base, leader.base_pos, leader.base_chain)
    assert (log.last_index, log.end_pos) == (manifest.end_index, manifest.end_pos)
    assert all_bodies(log) == all_bodies(leader)[: log.last_index - log.base[0]]
    assert log.configs == [config for config in leader.configs if config[0] <= log.last_index]
    assert log.notes["conf"] == b"conf at the base"
    assert home.disk.content(f"{DIRECTORY}/snapshot") == SNAPSHOT
    assert set(home.disk.listdir(f"{DIRECTORY}/reset")) <= {"manifest"}  # of a crash behind everything that counts
    assert log.segments()[-1].end == log.end_pos
    log.check_invariants()
    return log


def test_manifest_survives_the_wire(leader: LogHome) -> None:
    manifest = manifest_of(leader.opened[0])
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert (manifest.end_index % 10, manifest.base.pos) == (0, 8192)
    for bad in (b"", b"\xff", encode_manifest(manifest)[:-3], b"\x01"):
        with pytest.raises(ValueError, match="not a manifest"):
            decode_manifest(bad)


@pytest.mark.parametrize("old_entries", [0, 5, 25])
def test_lagging_log_is_replaced_and_continues(home: LogHome, leader: LogHome, old_entries: int) -> None:
    source = leader.opened[0]
    old = fill(home, old_entries)
    old.set_note("stores", b"kept")
    home.submit(old, term=11, voted_for="n2")
    manifest = manifest_of(source)
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
    pull(staging, source)
    assert (staging.complete, staging.missing_bytes) == (True, 0)
    staging.finish()
    # The log in use is untouched until it is opened again.
    assert all_bodies(old) == all_bodies(fill(LogHome(), old_entries))
    home.close_all()
    log = assert_replaced(home, source, manifest)
    assert (log.meta.term, log.meta.voted_for, log.notes["stores"]) == (11, "n2", b"kept")
    for index in range(log.last_index + 1, source.last_index + 1):
        entry = source.entry(LogIndex(index))
        assert entry is not None
        log.append_framed(source.locate(LogIndex(index)), entry.header, entry.body)
    home.submit(log)
    assert (log.chain, log.end_pos) == (source.chain, source.end_pos)
    home.close_all()
    assert home.open().chain == source.chain


def test_base_without_closed_files(home: LogHome) -> None:
    other = LogHome()
    source = fill(other, 29)
    source.drop_prefix(8192, b"conf at the base")
    other.submit(source)
    manifest = manifest_of(source)
    assert (manifest.end_pos, manifest.end_index, list(manifest.starts)) == (8192, source.base[0], [])
    stage(home, manifest, source)
    log = assert_replaced(home, source, manifest)
    home.put(log, b"first", term=9)
    home.close_all()
    assert all_bodies(home.open()) == [b"first"]


def test_only_committed_and_closed_files_are_offered(leader: LogHome) -> None:
    log = leader.opened[0]
    segments = log.segments()
    assert manifest_of(log).end_index == segments[-2].last_index
    assert manifest_of(log, committed=segments[2].last_index + 1).end_index == segments[2].last_index
    assert manifest_of(log, committed=segments[0].last_index - 1).end_index == log.base[0]


def test_reset_interrupted_while_gathering(home: LogHome, leader: LogHome) -> None:
    """Whole files, and the beginning of the one that was under way, are not asked for again."""
    source = leader.opened[0]
    manifest = manifest_of(source)
    total = -(-4096 // PIECE_BYTES) * len(manifest.starts) + -(-len(SNAPSHOT) // PIECE_BYTES)
    for seed in range(12):
        rng = random.Random(seed)
        home.disk.mkdir(DIRECTORY)
        answered, attempts = 0, 0
        while True:
            staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
            answered += pull(staging, source, pieces=rng.randrange(1, 20), rng=rng)
            if staging.complete:
                break
            attempts += 1
            if seed % 2:
                home.disk.crash(rng)
            else:
                staging.close()
                home.disk.kill()
        assert attempts > 2
        if seed % 2 == 0:
            assert answered <= total + attempts * 10
        staging.finish()
        assert_replaced(home, source, manifest).close()
        home = LogHome()


def test_completed_reset_is_durable_despite_a_failed_sync_of_an_attempt(home: LogHome, leader: LogHome) -> None:
    """It is read, verified and not asked for again, though no sync writes it any more."""
    source = leader.opened[-1]
    manifest = manifest_of(source)
    home.open()
    snapshot_failed = False
    for after in range(40):
        staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
        home.disk.fail("fdatasync", errno.EIO, after=after)
        what = ""
        try:
            while (wanted := staging.next_request()) is not None:
                what, pos, nbytes = wanted
                data = source.read_range(pos, nbytes) if what == "log" else SNAPSHOT[pos : pos + nbytes]
                assert staging.accept(wanted[0], pos, data)
        except StorageFailed:
            snapshot_failed |= what == "snapshot"
            staging.close()
        home.disk.clear_faults()
        staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
        pull(staging, source, rng=random.Random(after))
        staging.finish()
        root = f"{DIRECTORY}/reset"
        for name in home.disk.names(root):
            path = f"{root}/{name}"
            assert home.disk.first_undurable(path, 0, len(home.disk.content(path))) is None, f"{name}, failure {after}"
        discard(home.disk, DIRECTORY)
    assert snapshot_failed


def test_wrong_pieces_are_refused_and_requested_again(home: LogHome, leader: LogHome) -> None:
    source = leader.opened[0]
    manifest = manifest_of(source)
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
    rng = random.Random(3)
    refused = 0
    while (wanted := staging.next_request()) is not None:
        what, pos, nbytes = wanted
        data = bytearray(source.read_range(pos, nbytes) if what == "log" else SNAPSHOT[pos : pos + nbytes])
        if rng.random() < 0.3:
            data[rng.randrange(nbytes)] ^= 1 << rng.randrange(8)
        elif rng.random() < 0.1:
            del data[-1]
        refused += not staging.accept(what, pos, bytes(data))
    assert refused > 10
    staging.finish()
    assert_replaced(home, source, manifest)


def test_new_offer_keeps_matching_files(home: LogHome, leader: LogHome) -> None:
    """The next leader dropped more and has more; files are equal everywhere."""
    source = leader.opened[0]
    earlier = manifest_of(source, committed=source.segments()[5].first_index)
    stage(home, earlier, source)
    source.drop_prefix(source.segments()[2].start, b"conf at the base")
    leader.submit(source)
    later = manifest_of(source)
    staging = SnapshotInstall(home.disk, DIRECTORY, later, limits=LIMITS)
    assert staging.next_request() == ("log", 7 * 4096, PIECE_BYTES)
    pull(staging, source)
    staging.finish()
    assert_replaced(home, source, later)


def test_files_of_another_log_do_not_fit(home: LogHome, leader: LogHome) -> None:
    source = leader.opened[0]
    other = LogHome()
    log = other.open()
    for index in range(1, 96):
        log.append(NORMAL, LogIndex(index), Term(1), bytes(330 + index % 7))
        other.submit(log, commit_hint=index)
    stage(home, log.manifest(LogIndex(95), conf=b""), log)
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest_of(source), limits=LIMITS)
    assert staging.next_request() == ("log", 8192, PIECE_BYTES)
    log.close()
    # What was marked ready before is not any more.
    assert home.open().base == (0, 0)


def test_log_that_caught_up_meanwhile_is_kept(home: LogHome, leader: LogHome) -> None:
    source = leader.opened[0]
    manifest = manifest_of(source, committed=60)
    old = fill(LogHome(), 0)
    old.close()
    log = home.open()
    rng = random.Random(5)
    for index in range(1, 81):
        log.append(
            CONFIG if index % 20 == 0 else NORMAL,
            LogIndex(index),
            Term(1 + index // 33),
            rng.randbytes(330 + index % 7),
        )
    home.submit(log, term=9)
    bodies = all_bodies(log)
    stage(home, manifest, source)
    home.close_all()
    log = home.open()
    assert (log.base, log.last_index) == ((0, 0), 80), "acknowledged entries were replaced by fewer"
    assert all_bodies(log) == bodies
    assert home.disk.listdir(f"{DIRECTORY}/reset") == []


@pytest.mark.parametrize("committed", [1000, 40])
def test_replaced_damaged_log_abstains_if_it_acknowledged_more(home: LogHome, leader: LogHome, committed: int) -> None:
    """What it acknowledged last counts, whatever it had heard of commits: nobody may be elected without it."""
    source = leader.opened[0]
    log = fill(home, 95, committed=committed)
    log.set_note("damaged", b"")
    home.submit(log)
    home.close_all()
    manifest = manifest_of(source, committed=60)
    stage(home, manifest, source)
    log = assert_replaced(home, source, manifest)
    assert log.notes.get("abstaining") == b"1"


@pytest.mark.parametrize("orderly", [True, False])
def test_reset_log_abstains_only_after_a_disorderly_stop(home: LogHome, leader: LogHome, orderly: bool) -> None:
    """Who acknowledges before it syncs may lack some of that if it was killed, and nothing if it stopped in order."""
    source = leader.opened[0]
    log = home.open(acknowledges_unsynced=True)
    stage(home, manifest_of(source), source)
    log.close(clean=orderly)
    log = home.open(acknowledges_unsynced=True)
    assert (log.base, log.last_index) == (source.base, manifest_of(source).end_index)
    assert log.notes.get("abstaining") == (None if orderly else b"1")
    log.check_invariants()
    assert all_bodies(log) == all_bodies(source)[: log.last_index - log.base[0]]


@pytest.mark.parametrize("orderly", [True, False])
def test_crash_during_installation_keeps_the_abstention(home: LogHome, leader: LogHome, orderly: bool) -> None:
    source = leader.opened[0]
    abstained = []
    for step in range(60):
        home = LogHome()
        home.open(acknowledges_unsynced=True).close(clean=orderly)
        stage(home, manifest_of(source), source)
        home.disk.cut_power_after(step)
        try:
            home.open(acknowledges_unsynced=True).close(clean=True)
            home.disk.cancel_power_cut()
        except PowerCut:
            home.disk.crash(random.Random(step))
        log = home.open(acknowledges_unsynced=True)
        assert log.base == source.base
        abstained.append("abstaining" in log.notes)
        home.close_all()
    # Once the log is open, the process that was killed may have acknowledged something.
    assert (abstained[0], abstained[-1]) == (not orderly, not orderly)
    assert all(abstained) or orderly


def prepared(leader: SegmentLog, manifest: Manifest, name: str) -> LogHome:
    home = LogHome()
    fill(home, 25)
    home.close_all()
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS)
    pull(staging, leader)
    if name == "finish":
        staging.close()
    else:
        staging.finish()
    return home


@pytest.mark.parametrize("name", ["finish", "install"])
def test_interrupted_reset_leaves_old_or_new_log(leader: LogHome, name: str) -> None:
    """A power cut at each operation: the old log whole, or the new one whole, never a mixture; and then it goes on."""
    source = leader.opened[0]
    manifest = manifest_of(source, committed=60)
    old = all_bodies(fill(LogHome(), 25))
    seen = set()
    step = 0
    while True:
        finished = False
        for seed in range(2):
            home = prepared(source, manifest, name)
            home.disk.cut_power_after(step)
            try:
                if name == "finish":
                    SnapshotInstall(home.disk, DIRECTORY, manifest, limits=LIMITS).finish()
                else:
                    home.open()
                finished = True
            except PowerCut:
                pass
            home.close_all()
            home.disk.crash(random.Random(step * 10 + seed))
            log = home.open()
            log.check_invariants()
            if log.base == (0, 0):
                assert all_bodies(log) == old, f"step {step}, seed {seed}"
                seen.add("old")
                home.close_all()
                stage(home, manifest, source)
            else:
                seen.add("new")
                home.close_all()
            log = assert_replaced(home, source, manifest)
            home.put(log, b"goes on", term=9)
            home.close_all()
            assert all_bodies(home.open())[-1] == b"goes on"
            home.close_all()
        if finished:
            break
        step += 1
    assert step > (5 if name == "finish" else 20)
    assert seen == ({"old", "new"} if name == "finish" else {"new"})


def test_discard_removes_everything_staged(home: LogHome, leader: LogHome) -> None:
    source = leader.opened[0]
    stage(home, manifest_of(source), source)
    discard(home.disk, DIRECTORY)
    assert home.disk.listdir(f"{DIRECTORY}/reset") == []
    assert home.open().base == (0, 0)
