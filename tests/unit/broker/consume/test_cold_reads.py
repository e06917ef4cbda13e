"""Old records are brought into memory by a thread before the event loop reads them."""

from __future__ import annotations

import pytest

from mq.broker.consume.cold_reads import CHUNK_BYTES, ColdReads
from mq.broker.limits import DEFAULT, ConsumeLimits
from mq.protocol.numbers import PhysicalOffset
from raftlog import Job
from raftlog.segment.errors import StorageFailed

PLACE = 4 * CHUNK_BYTES


class Log:
    def __init__(self, *, base_pos: int = 0, memory_pos: int = 64 * PLACE) -> None:
        self.base_pos = base_pos
        self.memory_pos = memory_pos
        self.trusted_pos = memory_pos
        self.read: list[tuple[int, int]] = []
        self.fails = False
        self.kept: set[tuple[int, int]] = set()

    def has(self, pos: int, length: int) -> bool:
        end = pos + length
        for begin, stop in sorted(self.kept):
            if begin <= pos < stop:
                pos = stop
        return pos >= end

    def load(self, pos: int, length: int) -> None:
        if self.fails:
            raise StorageFailed("segment", 5, "read")
        self.read.append((pos, pos + length))
        self.kept.add((pos, pos + length))


class Stage:
    """Cold reads of a log, whose jobs are carried out when the test says so."""

    def __init__(self, limits: ConsumeLimits = DEFAULT.consume, **log: int) -> None:
        self.log = Log(**log)
        self.jobs: list[Job] = []
        self.done: list[str] = []
        self.cold = ColdReads(log=self.log, in_background=self.jobs.append, limits=limits)

    def bring(self, name: str, *places: tuple[int, int]) -> bool:
        spans = [(PhysicalOffset(position), size) for position, size in places]
        return self.cold.load(spans, lambda: self.done.append(name))

    def work(self) -> list[tuple[int, int]]:
        """Carry out all jobs; returns what was read."""
        self.log.read = []
        while self.jobs:
            self.jobs.pop(0)()()
        return self.log.read

    def chunk(self, number: int) -> tuple[int, int]:
        return number * CHUNK_BYTES, (number + 1) * CHUNK_BYTES


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_random_access_reader_gets_only_its_records(stage: Stage) -> None:
    assert stage.bring("a", (PLACE, 500), (PLACE + 700, 100))
    assert stage.bring("b", (9 * PLACE, 500))
    assert stage.done == []
    assert stage.work() == [(PLACE, PLACE + 800), (9 * PLACE, 9 * PLACE + 500)]
    assert stage.done == ["a", "b"]
    assert stage.cold.waiting_count == 0


def test_sequential_reader_gets_whole_chunks_and_the_next_one_ahead(stage: Stage) -> None:
    stage.bring("first", (PLACE, 500))
    stage.work()
    assert stage.bring("second", (PLACE + 500, 500))
    assert stage.work() == [stage.chunk(4), stage.chunk(5)]
    assert stage.done == ["first", "second"]
    assert not stage.bring("within", (PLACE + 1000, 500)), "what is there needs no thread"
    assert stage.work() == []
    assert not stage.bring("in the next", (5 * CHUNK_BYTES, 500))
    assert stage.work() == [stage.chunk(6)]
    assert not stage.bring("across", (6 * CHUNK_BYTES - 100, 500))
    assert stage.work() == [stage.chunk(7)]


def test_all_readers_of_the_same_chunk_wait_for_one_read(stage: Stage) -> None:
    stage.bring("first", (PLACE, 500))
    stage.work()
    for name in "abc":
        assert stage.bring(name, (PLACE + 500, 500))
    assert stage.bring("both", (5 * CHUNK_BYTES - 100, 200))
    assert stage.cold.waiting_count == 4
    stage.jobs.pop(0)()()
    assert stage.done == ["first", *"abc"], "the one that wants another chunk as well waits on"
    assert stage.work() == [stage.chunk(4), stage.chunk(5), stage.chunk(6)][1:]
    assert stage.done == ["first", *"abc", "both"]


def test_record_in_many_chunks_is_prefetched_alone(stage: Stage) -> None:
    places = [(number * CHUNK_BYTES, 700) for number in range(40)]
    assert stage.bring("wide", *places)
    assert stage.work() == [(position, position + 700) for position, _ in places]
    stage.log.kept.clear()
    assert stage.bring("again", *places), "nobody remembers that they were brought"


def test_prefetch_includes_gaps_between_near_records(stage: Stage) -> None:
    near, far = 30_000, 40_000
    assert stage.bring("near", (PLACE, 100), (PLACE + 100 + near, 100))
    assert stage.work() == [(PLACE, PLACE + 200 + near)]
    assert stage.bring("far", (9 * PLACE, 100), (9 * PLACE + 100 + far, 100))
    assert len(stage.work()) == 2


def test_prefetch_skips_records_in_memory(stage: Stage) -> None:
    stage.log.kept.add((PLACE, 2 * PLACE))
    for position in range(PLACE, 7 * CHUNK_BYTES, 50_000):
        assert not stage.bring("", (position, 500)), position
    assert stage.jobs == []
    assert not stage.bring("the last one", (2 * PLACE - 500, 500))
    assert stage.bring("across", (2 * PLACE - 100, 200)), "half of it is there"
    assert stage.work() == [stage.chunk(8), stage.chunk(9)]
    assert stage.done == ["across"]


def test_loaded_chunks_of_a_sequential_reader_are_recognized_at_once(stage: Stage) -> None:
    stage.bring("first", (PLACE, 500))
    stage.bring("second", (PLACE + 500, 500))
    assert not stage.cold.are_loaded(PhysicalOffset(PLACE), PhysicalOffset(PLACE + 1000))
    stage.work()
    assert stage.cold.are_loaded(PhysicalOffset(PLACE), PhysicalOffset(PLACE + 1000))
    assert not stage.cold.are_loaded(PhysicalOffset(5 * CHUNK_BYTES), PhysicalOffset(5 * CHUNK_BYTES + 1000)), (
        "the next one is to be brought ahead"
    )
    assert not stage.cold.are_loaded(PhysicalOffset(PLACE), PhysicalOffset(60 * PLACE))
    stage.log.kept.clear()
    assert not stage.cold.are_loaded(PhysicalOffset(PLACE), PhysicalOffset(PLACE + 1000))


def test_evicted_chunk_is_loaded_again(stage: Stage) -> None:
    stage.bring("first", (PLACE, 500))
    stage.bring("second", (PLACE, 500))
    stage.work()
    stage.log.kept.clear()
    assert stage.bring("late", (PLACE, 500))
    assert stage.work() == [stage.chunk(4), stage.chunk(5)]


def test_remembered_chunks_are_bounded() -> None:
    stage = Stage(ConsumeLimits(cold_chunks_seen_max=3))
    for number in (10, 10, 20, 20, 30, 30):
        stage.bring("", (number * CHUNK_BYTES, 500))
        stage.work()
    stage.log.kept.clear()
    assert stage.bring("in order", (31 * CHUNK_BYTES, 500))
    assert stage.work() == [stage.chunk(31), stage.chunk(32)]
    assert stage.bring("elsewhere", (11 * CHUNK_BYTES, 500))
    assert stage.work() == [(11 * CHUNK_BYTES, 11 * CHUNK_BYTES + 500)]


def test_prefetch_skips_deleted_records_and_records_in_memory() -> None:
    stage = Stage(base_pos=PLACE + 100, memory_pos=PLACE + 1000)
    assert not stage.bring("in memory", (PLACE + 1000, 500))
    assert stage.bring("partly", (PLACE, 500), (PLACE + 900, 500))
    assert stage.work() == [(PLACE + 100, PLACE + 1000)]
    assert not stage.bring("gone", (PLACE - 500, 500)), "its reader is told at once"
    assert stage.work() == []
    assert stage.done == ["partly"]


def test_failing_disk_is_noticed_by_the_reader(stage: Stage) -> None:
    stage.log.fails = True
    assert stage.bring("a", (PLACE, 500))
    stage.work()
    assert stage.done == ["a"]


def test_waiting_cold_reads_are_bounded() -> None:
    stage = Stage(ConsumeLimits(cold_reads_waiting_max=20))
    for number in range(20):
        assert stage.bring(str(number), (number * 1000, 500))
    assert not stage.bring("one too many", (60 * PLACE, 500))
    stage.work()
    assert len(stage.done) == 20
    assert stage.bring("now", (60 * PLACE, 500))


def test_job_may_be_carried_out_at_once() -> None:
    done: list[str] = []
    cold = ColdReads(log=Log(), in_background=lambda job: job()())
    for name in ("a", "b"):
        assert cold.load([(PhysicalOffset(5 * CHUNK_BYTES - 100), 200)], lambda name=name: done.append(name))  # type: ignore[misc]
    assert not cold.load([(PhysicalOffset(5 * CHUNK_BYTES - 100), 200)], lambda: done.append("c"))
    assert done == ["a", "b"]
    assert cold.waiting_count == 0
