"""One consume queue: appending, reading across files and memory, replays, recovery, expiry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.protocol.names import NameRefused
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue, topic_directory
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, QUEUE_OFFSET_MAX
from mq.store.errors import QueueFileDamaged, RunInvalid
from mq.store.queue_blocks import block_bytes
from mq.store.queue_files import QueueFiles

PER_FILE = 4
BLOCK_BYTES = block_bytes(2)
LOG_END = 10**9


def entry(number: int) -> bytes:
    """A distinct entry; physical offsets rise with the number."""
    return QUEUE_ENTRY.pack(1000 + number * 100, 90, number % 7)


def entries(first: int, end: int) -> bytes:
    return b"".join(entry(number) for number in range(first, end))


def make_queue(root: Path, *, min_offset: int = 0, max_offset: int = 0) -> ConsumeQueue:
    files = QueueFiles(str(root), open_files_max=2)
    return ConsumeQueue(
        files,
        "T",
        3,
        entries_per_file=PER_FILE,
        entries_per_block=2,
        min_offset=QueueOffset(min_offset),
        max_offset=QueueOffset(max_offset),
    )


def flushed_queue(root: Path, count: int) -> ConsumeQueue:
    queue = make_queue(root)
    queue.append(QueueOffset(0), entries(0, count))
    queue.flush()
    return queue


def file_sizes(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted((root / "T" / "3").glob("*"))}


def test_entries_are_readable_before_and_after_flush(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    assert queue.append(QueueOffset(0), entries(0, 10)) == 10
    assert queue.read(QueueOffset(2), 5) == entries(2, 7)
    queue.flush()
    assert queue.pending_bytes == 0
    assert queue.read(QueueOffset(2), 5) == entries(2, 7)
    queue.append(QueueOffset(10), entries(10, 13))
    assert queue.read(QueueOffset(8), 100) == entries(8, 13)
    assert queue.read(QueueOffset(11), 1) == entries(11, 12)


def test_files_are_reported_by_their_first_byte(tmp_path: Path) -> None:
    flushed_queue(tmp_path, 10)
    assert file_sizes(tmp_path) == {
        "00000000000000000000": 2 * BLOCK_BYTES,
        "00000000000000000080": 2 * BLOCK_BYTES,
        "00000000000000000160": BLOCK_BYTES,
    }
    content = b"".join(path.read_bytes() for path in sorted((tmp_path / "T" / "3").iterdir()))
    blocks = [content[at : at + 2 * QUEUE_ENTRY_BYTES] for at in range(0, len(content), BLOCK_BYTES)]
    assert b"".join(blocks) == entries(0, 10)


@pytest.mark.parametrize(("offset", "count"), [(-1, 5), (10, 1), (11, 1), (3, 0)])
def test_reading_outside_the_queue_returns_no_bytes(tmp_path: Path, offset: int, count: int) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(0), entries(0, 10))
    assert queue.read(QueueOffset(offset), count) == b""


def test_replay_of_known_entries_adds_nothing(tmp_path: Path) -> None:
    queue = flushed_queue(tmp_path, 6)
    assert queue.append(QueueOffset(2), entries(2, 6)) == 0
    assert queue.append(QueueOffset(4), entries(4, 9)) == 3
    assert queue.max_offset == 9
    assert queue.read(QueueOffset(0), 9) == entries(0, 9)


def test_contradictory_replay_is_refused(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(0), entries(0, 6))
    with pytest.raises(RunInvalid, match="are different"):
        queue.append(QueueOffset(2), entries(3, 5))
    assert queue.read(QueueOffset(0), 9) == entries(0, 6)


def test_gap_is_refused(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(0), entries(0, 6))
    with pytest.raises(RunInvalid, match="offset 7 leaves a gap after 6"):
        queue.append(QueueOffset(7), entries(7, 8))
    assert queue.append(QueueOffset(6), entries(6, 8)) == 2


@pytest.mark.parametrize("offset", [-1, -(2**63), QUEUE_OFFSET_MAX, 2**63 - 1])
def test_impossible_offset_is_refused(tmp_path: Path, offset: int) -> None:
    queue = make_queue(tmp_path)
    with pytest.raises(RunInvalid, match=f"offset {offset} is outside of 0 to"):
        queue.append(QueueOffset(offset), entries(0, 1))
    assert queue.max_offset == 0


def test_empty_queue_begins_at_the_offset_of_its_first_run(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(7), entries(7, 10))
    queue.flush()
    assert (queue.min_offset, queue.max_offset) == (7, 10)
    assert queue.read(QueueOffset(7), 3) == entries(7, 10)
    assert queue.read(QueueOffset(6), 3) == b""
    reopened = make_queue(tmp_path, min_offset=7, max_offset=10)
    reopened.check_files(PhysicalOffset(LOG_END))
    assert reopened.read(QueueOffset(7), 3) == entries(7, 10)


@pytest.mark.parametrize("topic", ["", "a/b", "..", "../x", "a.b", "a b", "é", "x" * 500])
def test_topic_names_cannot_escape_the_directory(topic: str) -> None:
    with pytest.raises(NameRefused):
        topic_directory(topic)


def test_topic_names_of_the_field_become_paths() -> None:
    assert topic_directory("%RETRY%group_1-x") == "%RETRY%group_1-x"


def test_opening_cuts_entries_after_the_checkpoint(tmp_path: Path) -> None:
    flushed_queue(tmp_path, 10)
    reopened = make_queue(tmp_path, max_offset=5)
    reopened.check_files(PhysicalOffset(LOG_END))
    assert file_sizes(tmp_path) == {"00000000000000000000": 112, "00000000000000000080": 56}
    assert reopened.append(QueueOffset(5), entries(5, 10)) == 5
    reopened.flush()
    assert reopened.read(QueueOffset(0), 10) == entries(0, 10)


@pytest.mark.parametrize("size", [0, 20, 59, 111])
def test_opening_refuses_a_file_that_is_too_short(tmp_path: Path, size: int) -> None:
    flushed_queue(tmp_path, 10)
    os.truncate(tmp_path / "T" / "3" / "00000000000000000080", size)
    with pytest.raises(QueueFileDamaged) as refused:
        make_queue(tmp_path, max_offset=10).check_files(PhysicalOffset(LOG_END))
    assert (refused.value.expected, refused.value.actual) == (112, size)


def test_opening_refuses_when_a_file_is_missing(tmp_path: Path) -> None:
    flushed_queue(tmp_path, 10)
    (tmp_path / "T" / "3" / "00000000000000000000").unlink()
    with pytest.raises(QueueFileDamaged):
        make_queue(tmp_path, max_offset=10).check_files(PhysicalOffset(LOG_END))


def test_opening_refuses_a_last_entry_behind_the_log(tmp_path: Path) -> None:
    flushed_queue(tmp_path, 4)
    end_of_last = 1000 + 3 * 100 + 90
    make_queue(tmp_path, max_offset=4).check_files(PhysicalOffset(end_of_last))
    with pytest.raises(QueueFileDamaged):
        make_queue(tmp_path, max_offset=4).check_files(PhysicalOffset(end_of_last - 1))


@pytest.mark.parametrize("flushed", [0, 3, 10])
@pytest.mark.parametrize("first_kept", [0, 1, 4, 6, 9, 10])
def test_expire_moves_the_start_to_the_log(tmp_path: Path, flushed: int, first_kept: int) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(0), entries(0, flushed))
    queue.flush()
    queue.append(QueueOffset(flushed), entries(flushed, 10))
    assert queue.expire(PhysicalOffset(1000 + first_kept * 100)) == first_kept
    assert queue.read(QueueOffset(0), 20) == (entries(0, 10) if first_kept == 0 else b"")
    assert queue.read(QueueOffset(first_kept), 20) == entries(first_kept, 10)
    queue.append(QueueOffset(10), entries(10, 14))
    queue.flush()
    assert queue.read(QueueOffset(first_kept), 20) == entries(first_kept, 14)
    reopened = make_queue(tmp_path, min_offset=first_kept, max_offset=14)
    reopened.check_files(PhysicalOffset(LOG_END))
    assert reopened.read(QueueOffset(first_kept), 20) == entries(first_kept, 14)
    kept_from = first_kept // PER_FILE * PER_FILE * QUEUE_ENTRY_BYTES
    assert all(int(name) >= kept_from for name in file_sizes(tmp_path))


def test_expired_files_stay_until_the_next_checkpoint(tmp_path: Path) -> None:
    files = QueueFiles(str(tmp_path))
    queue = ConsumeQueue(files, "T", 3, entries_per_file=PER_FILE, entries_per_block=2)
    queue.append(QueueOffset(0), entries(0, 10))
    queue.flush()
    queue.expire(PhysicalOffset(1000 + 9 * 100))
    assert len(file_sizes(tmp_path)) == 3
    assert files.take_changes().retired == {"T/3/00000000000000000000", "T/3/00000000000000000080"}


def test_read_past_the_end_of_a_file_raises_damage(tmp_path: Path) -> None:
    queue = flushed_queue(tmp_path, 4)
    os.truncate(tmp_path / "T" / "3" / "00000000000000000000", 30)
    with pytest.raises(QueueFileDamaged):
        queue.read(QueueOffset(0), 4)


@given(pieces=st.lists(st.integers(1, 9), max_size=12), flush_after=st.sets(st.integers(0, 11)))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_split_into_runs_gives_the_same_queue(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], flush_after: set[int]
) -> None:
    queue = make_queue(tmp_path_factory.mktemp("queue"))
    end = 0
    for number, size in enumerate(pieces):
        queue.append(QueueOffset(end), entries(end, end + size))
        end += size
        if number in flush_after:
            queue.flush()
    assert queue.read(QueueOffset(0), end + 1) == entries(0, end)


class QueueAgainstList(RuleBasedStateMachine):
    """A queue under appends, replays, flushes, expiry and crashes, against a list.

    A crash keeps the files as they are and goes back to a checkpoint taken earlier, after which the log is replayed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(_roots.make())
        self.queue = make_queue(self.root)
        self.end = 0
        self.start = 0
        self.checkpoint = (0, 0)

    @rule(count=st.integers(1, 9))
    def append(self, count: int) -> None:
        self.queue.append(QueueOffset(self.end), entries(self.end, self.end + count))
        self.end += count

    @precondition(lambda self: self.end > 0)
    @rule(back=st.integers(0, 12), more=st.integers(0, 3))
    def replay(self, back: int, more: int) -> None:
        first = max(self.end - back, 0)
        if more or first < self.end:
            assert self.queue.append(QueueOffset(first), entries(first, self.end + more)) == more
            self.end += more

    @rule()
    def flush(self) -> None:
        self.queue.flush()

    @rule(ahead=st.integers(0, 6))
    def expire(self, ahead: int) -> None:
        first_kept = min(self.start + ahead, self.end)
        assert self.queue.expire(PhysicalOffset(1000 + first_kept * 100)) == first_kept
        self.start = first_kept

    @rule()
    def take_checkpoint(self) -> None:
        self.queue.flush()
        self.checkpoint = (self.queue.min_offset, self.queue.max_offset)

    @rule()
    def crash(self) -> None:
        low, high = self.checkpoint
        self.queue = make_queue(self.root, min_offset=low, max_offset=high)
        self.queue.check_files(PhysicalOffset(LOG_END))
        if self.end > high:
            self.queue.append(QueueOffset(high), entries(high, self.end))
        self.start = low

    @invariant()
    def reads_equal_the_list(self) -> None:
        self.queue.check_invariants()
        assert (self.queue.min_offset, self.queue.max_offset) == (self.start, self.end)
        assert self.queue.read(QueueOffset(self.start), self.end + 1) == entries(self.start, self.end)
        middle = (self.start + self.end) // 2
        assert self.queue.read(QueueOffset(middle), 3) == entries(middle, min(middle + 3, self.end))


class _Roots:
    """Directories for machines, which get no fixtures."""

    def __init__(self) -> None:
        self.factory: pytest.TempPathFactory | None = None

    def make(self) -> str:
        assert self.factory is not None, "the fixture sets the factory"
        return str(self.factory.mktemp("machine"))


_roots = _Roots()


@pytest.fixture(autouse=True)
def roots(tmp_path_factory: pytest.TempPathFactory) -> None:
    _roots.factory = tmp_path_factory


QueueAgainstList.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestQueueAgainstList = QueueAgainstList.TestCase


@pytest.mark.parametrize("low", range(3, 12))
@pytest.mark.parametrize("pieces", [(1,), (3,), (1, 2), (50,)])
def test_older_entries_are_put_in_front_wherever_files_end(tmp_path: Path, low: int, pieces: tuple[int, ...]) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(low), entries(low, 13))
    if low % 2:
        queue.flush()
    queue.append(QueueOffset(13), entries(13, 14))
    for number in range(100):
        count = min(pieces[number % len(pieces)], queue.min_offset)
        if not count:
            break
        before = queue.min_offset
        queue.prepend(entries(before - count, before))
        assert queue.read(queue.min_offset, 20) == entries(before - count, 14)
    assert queue.min_offset == 0
    queue.flush()
    queue.append(QueueOffset(14), entries(14, 15))
    queue.flush()
    queue.check_invariants()
    reopened = make_queue(tmp_path, min_offset=0, max_offset=15)
    reopened.check_files(PhysicalOffset(LOG_END))
    assert reopened.read(QueueOffset(0), 20) == entries(0, 15)


def test_restart_without_checkpoint_begins_where_prepending_began(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.append(QueueOffset(7), entries(7, 12))
    queue.flush()
    queue.prepend(entries(0, 7))
    reopened = make_queue(tmp_path, min_offset=7, max_offset=12)
    reopened.check_files(PhysicalOffset(LOG_END))
    assert reopened.read(QueueOffset(7), 20) == entries(7, 12)
    assert reopened.read(QueueOffset(6), 20) == b""
    reopened.prepend(entries(2, 7))
    assert reopened.read(QueueOffset(2), 20) == entries(2, 12)
