"""A damaged log gets back what it lost from replicas that have it, byte for byte, or is cut and says so."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaos.disk import MemoryDisk, PowerCut
from raftlog.log_numbers import LogIndex
from raftlog.segment import LogDamaged, SegmentLog
from raftlog.segment.errors import DirectoryLocked, StorageFailed
from raftlog.segment.forced_repair import cut
from raftlog.segment.limits import DEFAULT
from raftlog.segment.note_names import ABSTAINING, DAMAGED
from raftlog.segment.repair import Repair
from raftlog.terms import TERM_JUMP_MAX, TERM_MAX
from tests.unit.segment.log_home import DIRECTORY, LogHome, all_bodies

Peer = Callable[[int, int], bytes | None]


def write(home: LogHome, *, segment_bytes: int = 4096, entries: int = 130, size: int = 52, seed: int = 1) -> SegmentLog:
    """A log whose content depends on the arguments only, so two of them are replicas."""
    home.segment_bytes = segment_bytes
    log = home.open()
    rng = random.Random(seed)
    for index in range(1, entries + 1):
        home.put(log, rng.randbytes(rng.randrange(size) if size > 100 else size), term=1 + index // 50)
    home.submit(log, commit_hint=entries)
    return log


def closed(home: LogHome, *, clean: bool = True, **how: int) -> dict[str, bytes]:
    """The same, closed; the content of its segments."""
    write(home, **how).close(clean=clean)
    return segments(home)


def segments(home: LogHome) -> dict[str, bytes]:
    return {name: home.disk.content(f"{DIRECTORY}/{name}") for name in home.disk.listdir(DIRECTORY) if name.isdigit()}


def damaged(home: LogHome) -> LogDamaged:
    home.distrust()
    with pytest.raises(LogDamaged) as caught:
        home.open()
    return caught.value


def served_by(log: SegmentLog) -> Peer:
    def serve(pos: int, nbytes: int) -> bytes | None:
        return log.pread(pos, min(nbytes, log.end_pos - pos)) if pos < log.end_pos else None

    return serve


def run(repair: Repair, **peers: Peer) -> None:
    """Ask one peer after the other, as a node would."""
    names = list(peers)
    for _ in range(10_000):
        if (wanted := repair.next_request()) is None:
            repair.finish()
            return
        assert 0 < wanted[1] <= DEFAULT.repair_bytes_max
        data = peers[names[0]](*wanted)
        if data is None:
            repair.on_refusal(wanted[0], names[0])
        if data is None or not repair.offer(wanted[0], data, names[0]):
            names.append(names.pop(0))
    raise AssertionError(f"still missing {repair.missing_ranges}")


def flip(home: LogHome, pos: int) -> None:
    home.disk.flip_bit(home.segment(pos - pos % home.segment_bytes), pos % home.segment_bytes)


@pytest.fixture
def peer() -> Iterator[LogHome]:
    other = LogHome()
    yield other
    other.close_all()


@pytest.mark.parametrize("places", [[60], [0], [310, 350, 4003, 9000], [4096, 8192], [100, 200, 300, 301, 12_300]])
def test_bit_flip_committed_is_repaired_from_peers(home: LogHome, peer: LogHome, places: list[int]) -> None:
    before = closed(home)
    healthy = write(peer)
    for pos in places:
        flip(home, pos)
    run(Repair(home.disk, damaged(home), peers=["n2", "n3"]), n2=served_by(healthy))
    assert segments(home) == before
    log = home.open()
    assert all_bodies(log) == all_bodies(healthy)
    assert not log.notes


@pytest.mark.parametrize("seed", range(30))
def test_any_damage_to_one_replica_is_repaired(home: LogHome, peer: LogHome, seed: int) -> None:
    """Flipped bits, lost and misplaced blocks, missing and shortened files, all at once."""
    rng = random.Random(seed)
    how: dict[str, Any] = {"segment_bytes": 16384, "entries": 150, "size": 1500, "seed": seed}
    clean = rng.random() < 0.7
    names = sorted(closed(home, clean=clean, **how))
    healthy = write(peer, **how)
    for _ in range(rng.randrange(1, 5)):
        path = f"{DIRECTORY}/{rng.choice(names)}"
        end = len(home.disk.content(path))
        match rng.randrange(5):
            case 0:
                home.disk.flip_bit(path, rng.randrange(end), rng.randrange(8))
            case 1:
                home.disk.overwrite(path, rng.randrange(0, end, 512), bytes(512))
            case 2:
                block = rng.randrange(0, end, 512)
                home.disk.overwrite(path, rng.randrange(0, end, 512), home.disk.content(path)[block : block + 512])
            case 3 if path.endswith(names[1]):
                home.disk.unlink(path)
                names.pop(1)
            case _:
                at = rng.randrange(end)
                home.disk.overwrite(path, at, rng.randbytes(min(3000, end - at)))
    home.distrust()
    try:
        log = home.open()
    except LogDamaged as found:
        run(Repair(home.disk, found, peers=["n2"]), n2=served_by(healthy))
        log = home.open()
    assert all_bodies(log) == all_bodies(healthy)[: log.last_index]
    # After a crash, what lies behind the markers may be torn and is cut without further ado.
    assert log.last_index == healthy.last_index or log.notes.get(ABSTAINING) or not clean, "cut, and would vote"


def test_damaged_blank_entry_is_repaired_without_a_peer(home: LogHome) -> None:
    before = closed(home)
    flip(home, 4003)
    repair = Repair(home.disk, damaged(home), peers=["n2"])
    assert repair.done
    repair.finish()
    assert segments(home) == before
    assert home.open().last_index == 130


@pytest.mark.parametrize("start", [0, 4096, 8192])
def test_missing_segment_is_refetched(home: LogHome, peer: LogHome, start: int) -> None:
    before = closed(home)
    home.disk.unlink(home.segment(start))
    run(Repair(home.disk, damaged(home), peers=["n2"]), n2=served_by(write(peer)))
    assert segments(home) == before


def test_large_entries_come_in_pieces(home: LogHome, peer: LogHome) -> None:
    how: dict[str, Any] = {"segment_bytes": 4 << 20, "entries": 12, "size": 1 << 20}
    before = closed(home, **how)
    for pos in (1000, 3 << 20, (4 << 20) + 100):
        flip(home, pos)
    run(Repair(home.disk, damaged(home), peers=["n2"]), n2=served_by(write(peer, **how)))
    assert segments(home) == before


@pytest.mark.parametrize("rest", ["intact", "damaged"])
@pytest.mark.parametrize("size", [25, 54], ids=["blank of 8 bytes", "blank of 16 bytes"])
@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_pieces_may_end_within_a_blank(home: LogHome, peer: LogHome, piece: int, size: int, rest: str) -> None:
    """What is left of a file holds no entry, and too little of it has come to tell that it is a blank."""
    before = closed(home, size=size)
    healthy = write(peer, size=size)
    for index in range(50, 51 if rest == "intact" else 131):
        flip(home, healthy.locate(LogIndex(index)).pos + 60)
    whole = served_by(healthy)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    while (wanted := repair.next_request()) is not None:
        assert repair.offer(wanted[0], whole(wanted[0], min(wanted[1], piece)) or b"", "n2")
    repair.finish()
    assert segments(home) == before


def test_bytes_that_do_not_belong_here_are_refused(home: LogHome, peer: LogHome) -> None:
    """A peer whose own disk lies, and one whose log is another: neither leaves a trace."""
    before = closed(home)
    other = LogHome()
    stranger = write(other, seed=2)
    healthy = write(peer)
    flip(home, 60)
    flip(home, 5000)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3", "n4"])

    def liar(pos: int, nbytes: int) -> bytes:
        return bytes([*healthy.pread(pos, nbytes)[:-1], 1])

    pos, nbytes = repair.next_request() or (0, 0)
    assert not repair.offer(pos, liar(pos, nbytes), "n3")
    assert not repair.offer(pos, served_by(stranger)(pos, nbytes) or b"", "n4")
    assert not repair.done
    assert repair.cut_at is None
    run(repair, n3=liar, n4=served_by(stranger), n2=served_by(healthy))
    assert segments(home) == before
    other.close_all()


@pytest.mark.parametrize("term", [TERM_JUMP_MAX + 10, TERM_MAX, 2**64 - 1])
def test_entries_of_a_term_without_an_election_are_refused(home: LogHome, peer: LogHome, term: int) -> None:
    """With one of them at its end, the log could never be opened again."""
    log = home.open()
    home.put(log, *[bytes([number]) * 50 for number in range(10)])
    log.close()
    flip(home, 98 * 9 + 60)
    stranger = peer.open()
    peer.put(stranger, *[bytes([number]) * 50 for number in range(9)])
    peer.put(stranger, b"other" * 10, term=term)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    pos, nbytes = repair.next_request() or (0, 0)
    assert not repair.offer(pos, stranger.pread(pos, min(nbytes, stranger.end_pos - pos)), "n2")
    assert not repair.replaced_ranges
    repair.close()


def test_entries_that_lead_elsewhere_are_never_written(home: LogHome, peer: LogHome) -> None:
    """A peer went on with other entries of the same sizes behind the third one; the intact one behind tells."""
    log = home.open()
    home.put(log, *[bytes([number]) * 50 for number in range(10)])
    log.close(clean=True)
    before = segments(home)
    flip(home, 98 * 3 + 60)
    flip(home, 98 * 4 + 60)
    stale = peer.open()
    peer.put(stale, *[bytes([number]) * 50 for number in range(3)])
    peer.put(stale, *[b"other"[:1] * 50 for number in range(7)])
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    pos, nbytes = repair.next_request() or (0, 0)
    assert not repair.offer(pos, stale.pread(pos, nbytes), "n2")
    assert not repair.replaced_ranges
    good = LogHome()
    right = good.open()
    good.put(right, *[bytes([number]) * 50 for number in range(10)])
    run(repair, n2=served_by(stale), n3=served_by(right))
    assert segments(home) == before
    good.close_all()


def test_entries_absent_everywhere_are_cut_and_the_replica_abstains(home: LogHome, peer: LogHome) -> None:
    closed(home)
    short = write(peer, entries=100)
    end = 3 * 4096 + 1000
    for pos in range(90 // 40 * 4096 + 60, end, 100):
        flip(home, pos)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    run(repair, n2=served_by(short), n3=lambda pos, nbytes: None)
    assert repair.cut_at == short.end_pos
    log = home.open()
    assert all_bodies(log) == all_bodies(short)
    assert log.notes[ABSTAINING] == b"1"
    assert log.meta.commit_hint == 0, "what was known to be committed may be gone"
    home.put(log, b"goes on", term=9)
    home.close_all()
    assert home.open().last_index == 101


def test_damaged_last_entry_is_refetched_from_a_peer(home: LogHome, peer: LogHome) -> None:
    """Nothing vouches for the far end, but it ends exactly where the durable bytes ended."""
    before = closed(home)
    healthy = write(peer, entries=140)
    flip(home, 3 * 4096 + 960)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    run(repair, n2=served_by(healthy))
    assert repair.cut_at is None
    assert segments(home) == before
    assert not home.open().notes


def test_damaged_log_is_cut_only_after_every_peer_refused(home: LogHome) -> None:
    closed(home)
    flip(home, 3 * 4096 + 960)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    pos, _ = repair.next_request() or (0, 0)
    for _ in range(5):
        repair.on_refusal(pos, "n2")
    done_early = repair.done
    assert not done_early
    repair.on_refusal(pos, "n3")
    assert repair.done
    alone = LogHome()
    closed(alone)
    flip(alone, 3 * 4096 + 960)
    repair = Repair(alone.disk, damaged(alone), peers=[])
    repair.on_refusal(pos, "somebody")
    assert not repair.done
    repair.close()


def test_intact_entries_stay_while_a_peer_has_the_same_damage(home: LogHome, peer: LogHome) -> None:
    before = closed(home)
    healthy = write(peer)
    flip(home, 5000)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    pos, nbytes = repair.next_request() or (0, 0)
    for _ in range(3):
        repair.on_refusal(pos, "n2", damaged=True)
        repair.on_refusal(pos, "n3")
    assert repair.next_request() == (pos, nbytes), "it waits"
    assert repair.cut_at is None
    run(repair, n2=served_by(healthy))  # a replica that has it came back
    assert segments(home) == before


def test_entries_no_peer_had_are_cut_with_their_successors(home: LogHome) -> None:
    """No majority has it, so it was never committed."""
    closed(home)
    flip(home, 5000)
    repair = Repair(home.disk, damaged(home), peers=["n2", "n3"])
    pos, _ = repair.next_request() or (0, 0)
    repair.on_refusal(pos, "n2", damaged=True)
    repair.on_refusal(pos, "n3")
    assert not repair.done
    repair.on_refusal(pos, "n2")  # it was cut there meanwhile
    assert repair.cut_at == pos


def test_operator_may_cut_in_front_of_intact_entries(home: LogHome) -> None:
    closed(home)
    flip(home, 5000)
    found = damaged(home)
    assert cut(home.disk, found) == found.ranges[0].pos
    log = home.open()
    assert log.end_pos == found.ranges[0].pos
    assert ABSTAINING in log.notes


def test_two_damaged_replicas_repair_each_other(home: LogHome, peer: LogHome) -> None:
    before = closed(home)
    closed(peer)
    flip(home, 60)
    flip(home, 12_300)
    flip(peer, 5000)
    one = Repair(home.disk, damaged(home), peers=["n2"])
    two = Repair(peer.disk, damaged(peer), peers=["n1"])
    assert one.serve(60, 10) is None
    assert one.serve(100_000, 10) is None
    assert len(one.serve(12_000, 1000) or b"") == 192, "up to the last good entry before the damage"
    run(one, n2=two.serve)
    run(two, n1=one.serve)
    assert segments(home) == segments(peer) == before


@pytest.mark.parametrize("cut", [False, True])
def test_power_cut_at_each_step_of_a_repair(cut: bool) -> None:
    """Whatever a crash leaves, the next attempt ends with the same bytes."""
    source = LogHome()
    healthy = served_by(write(source, entries=100 if cut else 130))
    good = closed(LogHome())
    places = (60, 4003, 5000) + ((3 * 4096 + 960, 3 * 4096 + 500, 8192 + 2060) if cut else ())
    for step in range(1000):
        home = LogHome()
        closed(home)
        for pos in places:
            flip(home, pos)
        found = damaged(home)
        home.disk.cut_power_after(step)
        try:
            run(Repair(home.disk, found, peers=["n2"]), n2=healthy)
            break
        except PowerCut:
            home.disk.crash(random.Random(step))
        try:
            home.open()
        except LogDamaged as again:
            run(Repair(home.disk, again, peers=["n2"]), n2=healthy)
            home.open()
        if not cut:
            assert segments(home) == good, f"step {step}"
        else:
            assert all_bodies(home.opened[-1]) == all_bodies(source.opened[0])[: home.opened[-1].last_index]
            assert home.opened[-1].notes.get(ABSTAINING)
        home.close_all()
    else:
        raise AssertionError("never got through")
    assert step > 10
    source.close_all()


def test_directory_is_repaired_by_one_process(home: LogHome) -> None:
    closed(home)
    flip(home, 60)
    found = damaged(home)
    repair = Repair(home.disk, found, peers=["n2"])
    with pytest.raises(DirectoryLocked):
        Repair(home.disk, found, peers=["n2"])
    repair.close()
    assert damaged(home).ranges == found.ranges


def test_failing_disk_ends_the_repair(home: LogHome, peer: LogHome) -> None:
    closed(home)
    flip(home, 60)
    repair = Repair(home.disk, damaged(home), peers=["n2"])
    assert isinstance(home.disk, MemoryDisk)
    home.disk.fail("fdatasync", 5)
    with pytest.raises(StorageFailed):
        run(repair, n2=served_by(write(peer)))
    repair.close()
    repair.close()


def test_repaired_bytes_are_on_the_disk_when_a_repair_is_finished(home: LogHome, peer: LogHome) -> None:
    """Also those of an attempt whose sync failed: they are read as repaired, and no sync writes them any more."""
    want = closed(home)
    good = write(peer)
    for attempt in (None, 0, 1, 2, 3):
        for at in (1000, 6000):
            flip(home, at)
        repair = Repair(home.disk, damaged(home), peers=["n2"])
        if attempt is not None:
            home.disk.fail("fdatasync", errno.EIO, after=attempt)
        try:
            run(repair, n2=served_by(good))
        except StorageFailed:
            repair.close()
        home.disk.clear_faults()
        try:
            log = home.open()
        except LogDamaged as error:
            run(Repair(home.disk, error, peers=["n2"]), n2=served_by(good))
            log = home.open()
        log.close()
        assert segments(home) == want
        for name, content in want.items():
            path = f"{DIRECTORY}/{name}"
            assert home.disk.first_undurable(path, 0, len(content)) is None, f"{name} after a failure of sync {attempt}"


def test_noted_damage_in_a_closed_file_is_located_and_repaired(home: LogHome, peer: LogHome) -> None:
    """Opening trusts closed files, unless a running node wrote down that it found something."""
    before = closed(home)
    flip(home, 5000)
    log = home.open()
    log.set_note(DAMAGED, b"5000")
    home.submit(log)
    log.close()
    run(Repair(home.disk, damaged(home), peers=["n2"]), n2=served_by(write(peer)))
    assert segments(home) == before
    assert not home.open().notes
