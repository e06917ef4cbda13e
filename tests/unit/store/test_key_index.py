"""The key index and the search without it, against a plain list of messages."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.protocol.messages.records import BORN_HOST_IPV6, FIXED, PREPARED, ROLLBACK, STORE_HOST_IPV6
from mq.store.key_index.builder import Pace
from mq.store.key_index.file import KeyFile, KeyFileDamaged
from mq.store.key_index.index import JOBS_MAX
from mq.store.key_index.job import IndexJob, IndexResult
from mq.store.key_index.key_file_build import build_key_file
from mq.store.key_index.key_table import PADDING, hashes, mix
from mq.store.key_index.limits import KeyIndexLimits
from mq.store.key_index.record_keys import EntriesDamaged, key_hash, records_in, text_hash
from mq.store.key_index.search import KeyQuery
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, HEADER_BYTES, NORMAL, FrameCorrupt, StorageCorrupt, frame
from tests.support.key_indexes import IPV4, IPV6, SEGMENT_BYTES, Home, Sent, fill, wanted

KEYS = st.sampled_from(["a", "b", "ab", "key", "é", "UNIQ_KEY"])
MESSAGES = st.builds(
    Sent,
    topic=st.sampled_from(["T", "U", "T" * 200]),
    unique=st.one_of(st.just(""), KEYS),
    keys=st.lists(KEYS, max_size=3).map(" ".join),
    body=st.one_of(st.sampled_from([b"", b"key a b", bytes(1000), bytes(6000)])),
    store_ms=st.integers(0, 5),
    sys_flag=st.sampled_from([0, 0, PREPARED, ROLLBACK]),
    born_host=st.sampled_from([IPV4, IPV6]),
)
QUERIES = st.builds(
    KeyQuery,
    topic=st.sampled_from([b"T", b"U", b"T" * 200, b"V"]),
    key=KEYS.map(str.encode),
    count_max=st.integers(1, 5),
    begin_ms=st.integers(0, 3),
    end_ms=st.integers(2, 5),
    unique=st.booleans(),
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=3), max_size=12), st.integers(0, 20), QUERIES, st.booleans())
def test_search_finds_the_newest_messages_of_a_key(
    entries: list[list[Sent]], files: int, query: KeyQuery, reopen: bool
) -> None:
    limits = KeyIndexLimits(part_bytes_max=3000, direct_parts_max=1000, chunk_bytes=500)
    with TemporaryDirectory() as directory:
        home = Home(directory, 3 * SEGMENT_BYTES, limits)
        for messages in entries:
            home.put(*messages)
        home.make(files)
        if reopen:
            home.index = home.reopened()
        result = home.search(query)
        assert result.records == home.expected(query)
        assert result.is_complete
        assert home.make() + files >= home.log.end_pos // SEGMENT_BYTES // 3
        assert home.search(query).records == home.expected(query)
        home.home.close_all()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "index"))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), min_size=1, max_size=20))
def test_index_and_query_use_the_same_key_hashes(texts: list[tuple[bytes, bytes]]) -> None:
    """The first and the last few bytes of a key count, and those of its topic."""
    data = b"".join(topic + key for topic, key in texts) + PADDING
    lengths = np.array([[len(topic), len(key)] for topic, key in texts])
    ends = np.cumsum(lengths).reshape(lengths.shape)
    found = [hashes(data, ends[:, column] - lengths[:, column], lengths[:, column]) for column in (0, 1)]
    assert [list(map(int, column)) for column in found] == [
        [text_hash(topic) for topic, _ in texts],
        [text_hash(key) for _, key in texts],
    ]
    assert [int(each) for each in mix(*found)] == [key_hash(*text) for text in texts]


def test_all_but_the_open_part_gets_a_file(home: Home) -> None:
    fill(home)
    parts = list(range(0, home.log.end_pos - SEGMENT_BYTES, SEGMENT_BYTES))
    assert home.make() == len(parts) > 3
    assert list(home.index.parts) == parts
    assert sorted(os.listdir(home.directory)) == [f"{part:020d}.hashes" for part in parts]
    assert home.make() == 0
    for number in (0, 20, 39):
        query = wanted(f"U{number}", unique=True)
        assert home.search(query).records == home.expected(query) != []


def test_search_omits_uncommitted_messages(home: Home) -> None:
    fill(home)
    home.make()
    home.put(Sent(unique="late"))
    home.applied -= 1
    assert home.search(wanted("late")).records == []
    assert home.search(wanted("U39")).records != []
    home.applied += 1
    assert len(home.search(wanted("late")).records) == 1


def test_configurations_hold_no_messages(home: Home) -> None:
    fill(home, 5)
    home.log.append(CONFIG, home.log.last_index + 1, Term(1), b"U3 is no record")
    home.home.submit(home.log)
    home.applied += 1
    assert len(home.search(wanted("U3")).records) == 1


def test_times_are_exact_and_included(home: Home) -> None:
    fill(home)
    home.make()
    for begin, end in ((10, 12), (0, 0), (39, 100), (50, 60), (12, 10)):
        query = wanted("all", ms=(begin, end))
        assert home.search(query).records == home.expected(query)


def test_search_ignores_equal_key_hashes_of_another_topic(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.store.key_index.key_table.mix", lambda topics, keys: np.zeros_like(keys))
    monkeypatch.setattr("mq.store.key_index.search.key_hash", lambda topic, key: 0)
    fill(home)
    home.make()
    query = wanted("K3")
    assert home.search(query).records == home.expected(query)
    assert home.search(wanted("K3", topic="U")).records == []


def test_thousands_of_messages_with_one_key_fill_several_blocks(tmp_path: Path) -> None:
    home = Home(str(tmp_path), 4 * 1024 * 1024)
    for number in range(100):
        home.put(*(Sent(unique=f"U{number}-{each}", keys="hot") for each in range(100)))
    home.put(Sent(body=bytes(4 * 1024 * 1024 - 1000)))
    assert home.make() == 1
    query = wanted("hot", count_max=7)
    assert home.search(query).records == home.expected(query)
    assert len(home.search(wanted("hot", count_max=9999)).records) == 9999
    query = wanted("U57-3")
    assert home.search(query).records == home.expected(query)


def test_search_reports_an_early_stop(home: Home) -> None:
    fill(home)
    assert not home.search(wanted("nobody"), lambda: True).is_complete
    home.limit(KeyIndexLimits(direct_parts_max=2))
    result = home.search(wanted("U0"))
    assert (result.records, result.is_complete) == ([], False)
    home.make()
    assert home.search(wanted("U0")).is_complete
    home.limit(KeyIndexLimits(direct_parts_max=2, candidates_max=5))
    result = home.search(wanted("all", ms=(0, 3)))
    assert not result.is_complete


def test_answer_has_bounded_bytes_and_at_least_one_message(home: Home) -> None:
    fill(home)
    for limit, count in ((1, 1), (3000, 2)):
        home.limit(KeyIndexLimits(answer_bytes_max=limit))
        for _ in range(2):
            result = home.search(wanted("all"))
            assert result.records == home.expected(wanted("all", count_max=count))
            home.make()


def test_damaged_key_file_is_detected_and_rebuilt(home: Home) -> None:
    fill(home)
    home.make()
    path = home.index.path_of(SEGMENT_BYTES)
    good = Path(path).read_bytes()
    query = wanted("all")
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        Path(path).write_bytes(damaged)
        result = home.search(query)
        assert result.damaged == [path], position
        assert not result.is_complete
    for cut in (0, 5, 70, len(good) - 1):
        Path(path).write_bytes(good[:cut])
        assert home.search(query).damaged == [path]
    os.unlink(path)
    assert home.search(query).damaged == [path]
    home.index.discard(path)
    assert home.search(query).records == home.expected(query)
    assert home.make() == 1
    assert Path(path).read_bytes() == good


def test_search_detects_key_files_of_another_log(tmp_path: Path) -> None:
    one, other = Home(str(tmp_path / "1")), Home(str(tmp_path / "2"))
    fill(one)
    other.put(Sent(unique="other"))
    fill(other)
    for each in (one, other):
        each.make()
    path = one.index.path_of(0)
    os.replace(other.index.path_of(0), path)
    assert one.search(wanted("U1")).damaged == [path]


def test_key_index_files_are_deleted_with_the_log(home: Home) -> None:
    fill(home)
    home.make()
    home.log.drop_prefix(2 * SEGMENT_BYTES, b"", home.log.last_index)
    home.home.submit(home.log)
    query = wanted("all")
    found = home.search(query)
    assert found.is_complete
    assert found.records == home.expected(query)[-len(found.records) :] != []
    assert min(home.index.parts) == 2 * SEGMENT_BYTES
    assert len(os.listdir(home.directory)) == len(home.index.parts)
    for stray in (
        "00000000000000000000.hashes",
        "00000000000000000001.hashes",
        "00000000000000016384.keys",
        "00000000000000032768.hashes.tmp",
    ):
        Path(home.directory, stray).write_bytes(b"")
    again = home.reopened()
    assert list(again.parts) == list(home.index.parts)
    assert len(os.listdir(home.directory)) == len(again.parts)


def test_record_without_room_for_its_hosts_is_refused() -> None:
    record = bytearray(FIXED)
    record[36:40] = (BORN_HOST_IPV6 | STORE_HOST_IPV6).to_bytes(4, "big")
    with pytest.raises(EntriesDamaged, match="not a record with such hosts"):
        list(records_in(bytes(record), 0, FIXED))


def test_failed_key_file_jobs_wait_for_a_retry(home: Home) -> None:
    fill(home)
    jobs = home.index.jobs()
    for job in jobs:
        home.index.on_failure(job.target)
    assert home.index.jobs() == []
    home.index.retry()
    assert home.index.jobs() == jobs


def test_indexing_takes_more_processor_the_more_parts_wait(home: Home) -> None:
    fill(home)
    shares = []
    while jobs := home.index.jobs():
        assert len({job.share for job in jobs}) == 1
        shares.append((len(jobs), jobs[0].share))
        home.index.on_build(jobs[0].target)
    assert shares[-1] == (1, 1 / JOBS_MAX)
    assert all(share == waiting / JOBS_MAX for waiting, share in shares)


def test_builder_uses_only_its_share_of_a_core() -> None:
    now = cpu = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = Pace(0.125, lambda: cpu, sleep)
    for work in (0.001, 0.002, 0.0, 0.05):
        now, cpu = now + work, cpu + work
        pace.rest()
        assert cpu == pytest.approx(0.125 * now)


def test_builder_with_a_whole_core_never_sleeps() -> None:
    pace = Pace(1.0, iter(range(100)).__next__, lambda seconds: pytest.fail(f"slept {seconds} s"))
    pace.rest()


def test_bytes_that_are_not_a_log_are_refused() -> None:
    for data in (bytes(100), b"\xff" * 100, bytes(10), (1).to_bytes(4, "big") + (60).to_bytes(4, "big") + bytes(200)):
        with pytest.raises(FrameCorrupt):
            build_key_file(lambda pos, nbytes, data=data: data[pos : pos + nbytes], 0, len(data))  # type: ignore[misc]


def test_intact_entry_without_records_is_refused() -> None:
    data = framed(b"no record")
    with pytest.raises(EntriesDamaged):
        build_key_file(lambda pos, nbytes: data[pos : pos + nbytes], 0, len(data))


def framed(body: bytes) -> bytes:
    """The bytes of the first entry of a log."""
    header, _ = frame(NORMAL, LogIndex(1), Term(1), 0, body, 0)
    return header + body


@pytest.mark.parametrize("window_bytes", [1, 60, 1000, 3000])
def test_entries_with_a_flipped_bit_are_not_indexed(
    home: Home, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    fill(home, 10)
    (job,) = home.index.jobs()
    good = build_key_file(home.log.read_range, job.begin, job.end)
    monkeypatch.setattr("mq.store.key_index.key_file_build._WINDOW_BYTES", window_bytes)
    assert build_key_file(home.log.files.pread, job.begin, job.end) == good
    entries = [home.log.locate(LogIndex(index)) for index in range(1, home.log.last_index + 1)]
    size = entries[0].size
    rng = random.Random(window_bytes)
    positions = [
        *range(size, size + HEADER_BYTES),
        *(rng.randrange(HEADER_BYTES, job.end) for _ in range(99)),
    ]
    for pos in positions:
        bit = rng.randrange(8)
        home.home.disk.flip_bit(home.home.segment(), pos, bit)
        with pytest.raises(FrameCorrupt) as caught:
            build_key_file(home.log.files.pread, job.begin, job.end)
        assert caught.value.physical_offset == max(entry.pos for entry in entries if entry.pos <= pos), pos
        home.home.disk.flip_bit(home.home.segment(), pos, bit)
    assert build_key_file(home.log.files.pread, job.begin, job.end) == good


def test_too_short_file_is_not_indexed(home: Home) -> None:
    fill(home, 10)
    (job,) = home.index.jobs()
    for nbytes in (0, 10, 100, job.end - 1):
        with pytest.raises(FrameCorrupt):
            build_key_file(
                lambda pos, wanted, nbytes=nbytes: home.log.files.pread(pos, wanted)[: max(0, nbytes - pos)],  # type: ignore[misc]
                job.begin,
                job.end,
            )


def test_log_is_notified_of_a_damaged_entry(home: Home) -> None:
    fill(home)
    told: list[int] = []
    home.log.set_damage_handler(lambda damage: told.append(damage.physical_offset))
    damaged = home.log.locate(LogIndex(3))
    home.index.report_damage(damaged.pos)
    assert told == []
    home.home.disk.flip_bit(home.home.segment(), damaged.pos + HEADER_BYTES + 20)
    with pytest.raises(StorageCorrupt):
        home.index.report_damage(damaged.pos)
    assert told == [damaged.pos]


def test_empty_part_has_a_file_that_names_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.hashes"
    path.write_bytes(build_key_file(lambda pos, nbytes: b"", 500, 500))
    file = KeyFile(str(path))
    file.check_log(lambda pos, nbytes: b"")
    assert list(file.places(key_hash(b"T", b"a"))) == []
    file.close()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(KeyFileDamaged):
        KeyFile(str(path))


def test_index_builder_exits_silently_when_its_parent_is_killed(home: Home) -> None:
    fill(home)
    job = home.index.jobs()[-1]
    segment = Path(home.directory) / "segment"
    segment.write_bytes(home.log.files.pread(job.segment_start, job.end - job.segment_start))
    command = [sys.executable, "-m", "mq.store.key_index.builder", "normal"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as builder:
        assert builder.stdin is not None
        assert builder.stdout is not None
        assert builder.stderr is not None
        builder.stdin.write(msgspec.json.encode(msgspec.structs.replace(job, segment=str(segment))) + b"\n")
        builder.stdin.flush()
        assert msgspec.json.decode(builder.stdout.readline(), type=IndexResult) == IndexResult(job.target)
        builder.stdout.close()
        builder.stdin.write(msgspec.json.encode(job) + b"\n")
        builder.stdin.close()
        assert builder.stderr.read() == b""
        assert builder.wait(60) == 0


def test_builder_writes_files_with_normal_priority(tmp_path: Path) -> None:
    """An idle thread may be stopped for long while it holds a lock of the file system, and the broker waits for it."""
    command = [sys.executable, "-m", "mq.store.key_index.builder", "idle"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder:
        assert builder.stdin is not None
        assert builder.stdout is not None
        segment = tmp_path / "segment"
        segment.write_bytes(b"")
        job = IndexJob(str(segment), 0, 0, 0, str(tmp_path / "target"), 1.0)
        builder.stdin.write(msgspec.json.encode(job) + b"\n")
        builder.stdin.flush()
        assert builder.stdout.readline(), "it computes in a thread, and has begun"
        policies = [os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{builder.pid}/task")]
        assert os.sched_getscheduler(builder.pid) == os.SCHED_OTHER
        assert os.SCHED_IDLE in policies
        builder.stdin.close()
        assert builder.wait() == 0
