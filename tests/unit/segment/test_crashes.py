"""Power cuts at every step of every operation, and random histories against a plain list."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count, takewhile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chaos.disk import PowerCut
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, SegmentLog
from tests.unit.segment.log_home import LogHome, all_bodies

Operation = Callable[[LogHome, SegmentLog], None]


def vote(home: LogHome, log: SegmentLog) -> None:
    home.submit(log, term=9, voted_for="n3")


def append(home: LogHome, log: SegmentLog) -> None:
    home.put(log, b"x" * 300, b"y" * 10)


def roll(home: LogHome, log: SegmentLog) -> None:
    home.put(log, b"x" * 700, b"y" * 900, b"z" * 900)


def truncate_in_one_file(home: LogHome, log: SegmentLog) -> None:
    log.truncate(log.last_index - 1)
    home.submit(log)


def truncate_files(home: LogHome, log: SegmentLog) -> None:
    log.truncate(LogIndex(3))
    home.submit(log)


def truncate_and_append(home: LogHome, log: SegmentLog) -> None:
    log.truncate(LogIndex(3))
    for number in range(4):
        log.append(NORMAL, log.last_index + 1, Term(9), b"new-%d" % number * 40)
    home.submit(log, term=9)


def close_clean(home: LogHome, log: SegmentLog) -> None:
    log.close(clean=True)


def prepared(operation: Operation) -> tuple[LogHome, SegmentLog, list[bytes]]:
    home = LogHome(segment_bytes=1024)
    log = home.open()
    home.submit(log, term=4, voted_for="n2")
    home.put(log, *(bytes([65 + number]) * 90 * number for number in range(8)), term=4)
    home.submit(log, commit_hint=2)
    if operation is close_clean:
        home.put(log, b"last")
    return home, log, all_bodies(log)


@pytest.mark.parametrize("operation", [append, close_clean])
def test_power_cut_at_each_step(operation: Operation) -> None:
    check_each_step(operation)


@pytest.mark.slow
def test_segment_roll_crash_each_step() -> None:
    check_each_step(roll)


@pytest.mark.parametrize("operation", [truncate_in_one_file, truncate_files, truncate_and_append])
def test_truncate_crash_each_step(operation: Operation) -> None:
    check_each_step(operation)


def test_meta_write_crash_each_step() -> None:
    """Of vote and notes, both are there or neither; a torn slot leaves what the other one says."""

    def prepared() -> tuple[LogHome, SegmentLog]:
        home = LogHome()
        log = home.open()
        log.set_note("conf", b"old")
        home.submit(log, term=4, voted_for="n2")
        return home, log

    def write(home: LogHome, log: SegmentLog) -> None:
        log.set_note("conf", b"new" * 500)
        home.submit(log, term=9, voted_for="n3")

    check_each_step(vote)
    home, log = prepared()
    before = home.disk.operations
    write(home, log)
    seen = set()
    for step in range(home.disk.operations - before):
        for seed in range(30):
            home, log = prepared()
            home.disk.cut_power_after(step)
            with pytest.raises(PowerCut):
                write(home, log)
            home.disk.crash(random.Random(seed))
            log = home.open()
            found = (log.meta.term, log.meta.voted_for, log.notes["conf"])
            seen.add(found)
            assert found in ((4, "n2", b"old"), (9, "n3", b"new" * 500)), f"step {step}, seed {seed}"
    assert len(seen) == 2


def check_each_step(operation: Operation) -> None:
    """What was acknowledged before survives; what was cut off happened up to some point, or not at all."""
    home, log, _ = prepared(operation)
    before = home.disk.operations
    operation(home, log)
    steps = home.disk.operations - before
    after = all_bodies(log) if operation is not close_clean else []
    assert steps > 1
    for step in range(steps):
        for seed in range(8):
            home, log, old = prepared(operation)
            new = after or old
            common = common_length(old, new)
            home.disk.cut_power_after(step)
            with pytest.raises(PowerCut):
                operation(home, log)
            home.disk.crash(random.Random(seed))
            log = home.open()
            found = all_bodies(log)
            log.check_invariants()
            assert len(found) >= common, f"step {step}, seed {seed}: lost {old[len(found) :]}"
            assert found in (old[: len(found)], new[: len(found)]), f"step {step}, seed {seed}: a log nobody wrote"
            assert (log.meta.term, log.meta.voted_for) in ((4, "n2"), (9, "n3"), (9, None))
            home.put(log, b"goes on", term=9)
            home.close_all()
            assert all_bodies(home.open()) == [*found, b"goes on"]


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_at_each_step_of_the_first_opening(seed: int) -> None:
    """Half a new directory is still nobody's; in particular no segment is ever there before the vote file."""
    step = 0
    while True:
        home = LogHome(segment_bytes=1024)
        home.disk.cut_power_after(step)
        try:
            home.open()
            break
        except PowerCut:
            home.disk.crash(random.Random(seed * 1000 + step))
        home.put(home.open(), b"body")
        step += 1
    assert step > 5


def open_through_power_cuts(home: LogHome, rng: random.Random) -> tuple[SegmentLog, int]:
    """Open the log; the power is cut after one more operation each time. Returns the number of cuts as well."""
    for cuts in count():
        home.disk.cut_power_after(cuts)
        try:
            return home.open(), cuts
        except PowerCut:
            home.disk.crash(rng)
    raise AssertionError


@pytest.mark.parametrize("seed", range(5))
def test_power_cut_at_each_step_of_opening(seed: int) -> None:
    """Making a log and recovering one, cut off again and again."""
    home = LogHome(segment_bytes=1024)
    rng = random.Random(seed)
    _, cuts = open_through_power_cuts(home, rng)
    assert cuts > 5
    home.disk.crash(rng)
    log = home.open()
    home.put(log, *[b"x" * 400] * 5)
    bodies = all_bodies(log)
    log.append(NORMAL, LogIndex(6), Term(1), b"torn" * 100)
    home.disk.cut_power_after(1)
    with pytest.raises(PowerCut):
        home.submit(log)
    home.disk.crash(rng)
    log, _ = open_through_power_cuts(home, rng)
    assert all_bodies(log)[:5] == bodies


def test_interrupted_large_truncation_is_not_damage() -> None:
    """Zeroing several MiB must never leave a hole with intact entries far behind it."""
    large, small = bytes([7]) * 1_500_000, bytes([8]) * 70_000

    def ready() -> tuple[LogHome, SegmentLog]:
        home = LogHome(segment_bytes=8 * 1024 * 1024)
        log = home.open()
        home.put(log, b"kept", large, *[small] * 8, large, *[small] * 20)
        log.truncate(LogIndex(2))
        return home, log

    home, log = ready()
    before = home.disk.operations
    home.submit(log)
    for step in range(home.disk.operations - before):
        home, log = ready()
        home.disk.cut_power_after(step)
        with pytest.raises(PowerCut):
            home.submit(log)
        home.disk.crash(random.Random(step))
        log = home.open()
        assert log.last_index >= 1
        log.check_invariants()


class LogAgainstList(RuleBasedStateMachine):
    """A log and the list it must equal; a crash may take what was not submitted, and nothing else."""

    @initialize(segment_bytes=st.sampled_from([256, 512, 4096]), tail_bytes_max=st.sampled_from([0, 500, 1 << 20]))
    def begin(self, segment_bytes: int, tail_bytes_max: int) -> None:
        self.home = LogHome(segment_bytes=segment_bytes)
        self.tail_bytes_max = tail_bytes_max
        self.entries: list[tuple[int, bytes]] = []
        self.submitted: list[tuple[int, bytes]] = []
        self.term = 1
        self.vote: str | None = None
        self.commit_index = 0
        self.log = self.open()
        self.set_term()

    def open(self) -> SegmentLog:
        return self.home.open(tail_bytes_max=self.tail_bytes_max)

    def set_term(self) -> None:
        self.home.submit(self.log, term=self.term, voted_for=self.vote)
        self.submitted = list(self.entries)

    @rule(size=st.one_of(st.integers(0, 200), st.integers(0, 30)), seed=st.integers(0, 255))
    def append(self, size: int, seed: int) -> None:
        body = bytes([seed]) * min(size, self.home.segment_bytes - 56)
        pos = self.log.position_for(48 + len(body))
        entry = self.log.append(NORMAL, LogIndex(len(self.entries) + 1), Term(self.term), body)
        assert (entry.pos, entry.index) == (pos, len(self.entries) + 1)
        self.entries.append((self.term, body))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        if len(self.entries) > self.commit_index:
            from_index = data.draw(st.integers(self.commit_index + 1, len(self.entries)))
            self.log.truncate(LogIndex(from_index))
            del self.entries[from_index - 1 :]
            self.term += 1

    @rule()
    def submit(self) -> None:
        self.home.submit(self.log, term=self.term, voted_for=self.vote)
        self.submitted = list(self.entries)

    @rule(voted_for=st.sampled_from([None, "n1", "n2"]))
    def new_term(self, voted_for: str | None) -> None:
        self.term += 1
        self.vote = voted_for
        self.set_term()

    @precondition(lambda self: self.entries == self.submitted)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.commit_index = data.draw(st.integers(self.commit_index, len(self.entries)))
        self.home.submit(self.log, commit_hint=self.commit_index)

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        self.home.disk.crash(random.Random(seed))
        self.recover(self.submitted)

    @rule()
    def kill(self) -> None:
        self.home.disk.kill()
        self.recover(self.submitted)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log.close(clean=clean)
        self.recover(self.submitted)

    @rule(seed=st.integers(0, 2**32), operations=st.integers(0, 12), killed=st.booleans())
    def end_while_submitting(self, seed: int, operations: int, killed: bool) -> None:
        self.home.disk.cut_power_after(operations)
        try:
            self.submit()
        except PowerCut:
            if killed:
                self.home.disk.kill()
            else:
                self.home.disk.crash(random.Random(seed))
            self.recover_one_of(self.submitted, self.entries)
        else:
            self.power_cut(seed)

    @rule(seed=st.integers(0, 2**32), operations=st.integers(0, 12))
    def power_cut_while_opening(self, seed: int, operations: int) -> None:
        rng = random.Random(seed)
        self.home.disk.crash(rng)
        self.home.disk.cut_power_after(operations)
        try:
            self.open()
        except PowerCut:
            pass
        self.home.disk.crash(rng)
        self.recover(self.submitted)

    def recover(self, expected: list[tuple[int, bytes]]) -> None:
        self.log = self.open()
        self.entries = list(expected)
        self.submitted = list(expected)
        self.term = self.log.meta.term
        self.vote = self.log.meta.voted_for

    def recover_one_of(self, old: list[tuple[int, bytes]], new: list[tuple[int, bytes]]) -> None:
        log = self.open()
        found = list(zip(terms(log), all_bodies(log), strict=True))
        assert len(found) >= common_length(old, new)
        assert found in (old[: len(found)], new[: len(found)])
        log.close(clean=False)
        self.recover(found)

    @invariant()
    def equals_the_list(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.check_invariants()
        assert list(zip(terms(self.log), all_bodies(self.log), strict=True)) == self.entries
        assert self.log.durable_index <= len(self.submitted)
        end_pos = self.log.end_pos
        assert len(self.log.pread(0, end_pos)) == end_pos
        for index in range(1, len(self.entries) + 1):
            ref = self.log.locate(LogIndex(index))
            assert self.log.chain_at(LogIndex(index)) == ref.chain
            assert self.log.pread(ref.pos + 48, ref.size - 48) == self.entries[index - 1][1]

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.home.close_all()


def common_length(old: Sequence[object], new: Sequence[object]) -> int:
    """How many elements both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def terms(log: SegmentLog) -> list[int]:
    return [log.locate(LogIndex(index)).term for index in range(1, log.last_index + 1)]


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
