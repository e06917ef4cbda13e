"""A log whose beginning was dropped: reading, cutting and recovering right at its base, and crashes on the way."""

from __future__ import annotations

import random
import threading

import pytest

from chaos.disk import MemoryDisk, PowerCut
from chaos.writer_calls import DiskCalls
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, NORMAL, EntryGone, Preallocation, RealDisk, SegmentLog, Writer
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.meta import decode_slot
from raftlog.segment.open_files import DESCRIPTORS_MAX
from tests.unit.segment.log_home import CLUSTER_ID, LogHome, all_bodies

BODIES = [bytes([65 + number]) * 400 for number in range(10)]  # two to a file of 1 KiB


def filled() -> tuple[LogHome, SegmentLog]:
    """Entries 1 to 10 in five files: two of term 1, three of term 2, five of term 5; all committed but the last."""
    home = LogHome(segment_bytes=1024)
    log = home.open()
    for index, body in enumerate(BODIES, 1):
        log.append(NORMAL, LogIndex(index), Term(1 if index < 3 else 2 if index < 6 else 5), body)
    home.submit(log, term=5, commit_hint=9)
    return home, log


def test_dropped_prefix_is_gone_for_readers_and_on_disk() -> None:
    home, log = filled()
    whole = log.read_entries(LogIndex(5), 10_000)
    chain = log.chain_at(LogIndex(4))
    log.drop_prefix(2048, b"conf")
    home.submit(log)
    assert (log.base, log.base_pos, log.base_chain, log.first_index) == ((4, 2), 2048, chain, 5)
    assert log.chain_at(LogIndex(4)) == chain
    assert log.term_runs == [(5, 2), (6, 5)]
    assert log.read_entries(LogIndex(5), 10_000) == whole
    assert names(home) == [f"{start:020d}" for start in (2048, 3072, 4096)]
    with pytest.raises(EntryGone, match="index 4 is deleted, the log begins at index 5"):
        log.locate(LogIndex(4))
    with pytest.raises(EntryGone):
        log.read_entries(LogIndex(2), 1)
    with pytest.raises(EntryGone):
        log.chain_at(LogIndex(3))
    with pytest.raises(EntryGone, match="position 2047 is deleted, the log begins at position 2048"):
        log.pread(2047, 10)
    with pytest.raises(EntryGone):
        log.read_range(1024, 10)


@pytest.mark.parametrize("close", ["clean", "killed", "power"])
def test_log_with_a_base_reopens_unchanged(close: str) -> None:
    home, log = filled()
    log.drop_prefix(2048, b"conf")
    home.submit(log)
    kept = ("base", "base_pos", "base_chain", "first_index", "last_index", "end_pos", "chain", "term_runs")
    before = {name: getattr(log, name) for name in kept}
    if close == "clean":
        log.close()
    elif close == "killed":
        home.disk.kill()
    else:
        home.disk.crash(random.Random(7))
    log = home.open()
    assert {name: getattr(log, name) for name in kept} == before
    assert dict(log.notes) == {"conf": b"conf"}
    assert all_bodies(log) == BODIES[4:]
    log.check_invariants()
    home.put(log, b"goes on")
    assert all_bodies(home_again(home)) == [*BODIES[4:], b"goes on"]


def test_log_is_truncated_to_its_first_entry_and_grows_again() -> None:
    home = LogHome(segment_bytes=1024)
    log = home.open()
    home.put(log, *BODIES[:4])
    home.submit(log, commit_hint=3)
    log.drop_prefix(1024, b"")
    home.submit(log)
    log.truncate(LogIndex(4))
    home.submit(log)
    log.check_invariants()
    assert all_bodies(log) == [BODIES[2]]
    kept = ("first_index", "last_index", "last_term", "end_pos", "chain", "durable_pos", "durable_index")
    before = {name: getattr(log, name) for name in kept}
    log = home_again(home)
    assert {name: getattr(log, name) for name in kept} == before
    home.put(log, b"another", term=4)
    log = home_again(home)
    assert all_bodies(log) == [BODIES[2], b"another"]
    assert log.term_runs == [(3, 1), (4, 4)]
    with pytest.raises(AssertionError, match="cut at 3"):
        log.truncate(LogIndex(3))


def test_files_below_an_entry_that_may_be_cut_off_stay() -> None:
    """A smaller entry in its place would belong into the file before."""
    home = LogHome(segment_bytes=1024)
    log = home.open()
    home.put(log, *BODIES[:3])
    home.submit(log, commit_hint=2)
    with pytest.raises(AssertionError, match="first entry 3, committed is 2"):
        log.drop_prefix(1024, b"")
    log.truncate(LogIndex(3))
    home.put(log, b"small", term=2)
    assert log.locate(LogIndex(3)).pos == 2 * 448


def test_configs_below_the_base_are_dropped() -> None:
    home = LogHome(segment_bytes=1024)
    log = home.open()
    for index in range(1, 7):
        log.append(CONFIG, LogIndex(index), Term(1), b"%d" % index * 400)
    home.submit(log, commit_hint=5)
    log.drop_prefix(2048, b"4")
    home.submit(log)
    assert [index for index, _ in log.configs] == [5, 6]
    assert [index for index, _ in home_again(home).configs] == [5, 6]


def test_segments_report_the_entries_they_hold() -> None:
    _, log = filled()
    log.drop_prefix(2048, b"")
    found = log.segments()
    assert [(s.start, s.end, s.first_index, s.last_index, s.closed) for s in found] == [
        (2048, 3072, 5, 6, True),
        (3072, 4096, 7, 8, True),
        (4096, log.end_pos, 9, 10, False),
    ]
    [empty] = LogHome().open().segments()
    assert (empty.start, empty.end, empty.first_index, empty.last_index, empty.closed) == (0, 0, 1, 0, False)


@pytest.mark.parametrize(
    ("base_pos", "message"),
    [
        (1000, "no file with entries"),
        (0, "it is at 0 already"),
        (5120, "no file with"),
        (3072, "committed is 5"),
    ],
)
def test_wrong_bases_are_bugs(base_pos: int, message: str) -> None:
    home = LogHome(segment_bytes=1024)
    log = home.open()
    home.put(log, *BODIES)
    home.submit(log, commit_hint=5)
    with pytest.raises(AssertionError, match=message):
        log.drop_prefix(base_pos, b"")


def test_drop_prefix_crash_each_step() -> None:
    """The log opens with the old base or the new one, whole in both cases, and no file below its base is left."""
    home, log = filled()
    before = home.disk.operations
    log.drop_prefix(3072, b"new")
    home.submit(log)
    steps = home.disk.operations - before
    seen = set()
    for step in range(steps):
        for seed in range(8):
            home, log = filled()
            log.drop_prefix(3072, b"new")
            home.disk.cut_power_after(step)
            with pytest.raises(PowerCut):
                home.submit(log)
            home.disk.crash(random.Random(seed))
            log = home.open()
            seen.add(log.base_pos)
            assert all_bodies(log) == BODIES[log.base[0] :], f"step {step}, seed {seed}"
            assert (log.base_pos, log.notes.get("conf")) in ((0, None), (3072, b"new"))
            assert names(home)[0] == f"{log.base_pos:020d}"
            log.check_invariants()
    assert seen == {0, 3072}


def test_damaged_vote_slot_never_restores_an_older_base() -> None:
    home, log = filled()
    log.drop_prefix(3072, b"new")
    home.submit(log)
    for at in (0, 4096):
        decoded = decode_slot(home.disk.content("/data/log/meta")[at : at + 4096])
        assert decoded is not None
        assert decoded[1].starts_at.pos == 3072


def test_log_keeps_only_a_few_dozen_files_open(tmp_path: str) -> None:
    """Also while several threads read, none of which ever gets bytes of another file."""
    log = SegmentLog.open(
        f"{tmp_path}/log",
        cluster_id=CLUSTER_ID,
        node_id="n1",
        segment_bytes=1024,
        disk=RealDisk(),
        preallocation=Preallocation.NONE,
        tail_bytes_max=1024,
    )
    for index in range(1, 301):
        log.append(NORMAL, LogIndex(index), Term(1), b"%03d" % index * 300)
        log.submit(index)
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(1500):
            number = rng.randrange(300)
            if log.read_range(number * 1024 + 48, 3) != b"%03d" % (number + 1):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(log._files._open) <= DESCRIPTORS_MAX
    log.close()


def test_dropped_file_stays_open_for_a_reader_on_another_thread() -> None:
    class SlowDisk(MemoryDisk):
        def __init__(self) -> None:
            super().__init__()
            self.reading, self.go_on = threading.Event(), threading.Event()
            self.go_on.set()

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            self.reading.set()
            assert self.go_on.wait(10)
            return super().pread(fd, length, offset)

    disk = SlowDisk()
    home = LogHome(disk=disk, segment_bytes=1024)
    dropped = threading.Event()
    calls = DiskCalls(disk, lambda ticket: dropped.set() if ticket == 2 else None)
    log = home.open(writer=Writer(PythonAppendQueue(-1, SYNC_BYTES_MAX, calls), wrong_failure))
    home.put(log, *BODIES)
    while log.durable_index < 10:
        pass
    log._commit_hint = LogIndex(9)
    found: list[bytes] = []
    disk.reading.clear()
    disk.go_on.clear()
    thread = threading.Thread(target=lambda: found.append(log.read_range(100, 5)))
    thread.start()
    assert disk.reading.wait(10)
    log.drop_prefix(2048, b"")
    home.submit(log)
    assert dropped.wait(10)
    assert names(home)[0] == f"{2048:020d}"
    disk.go_on.set()
    thread.join()
    assert found == [b"AAAAA"]


def wrong_failure(error: Exception) -> None:
    raise AssertionError("the writer failed") from error


def home_again(home: LogHome) -> SegmentLog:
    home.close_all()
    return home.open()


def names(home: LogHome) -> list[str]:
    return sorted(name for name in home.disk.listdir("/data/log") if len(name) == 20)
