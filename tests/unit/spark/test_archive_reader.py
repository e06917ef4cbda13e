"""A task reads what is archived from object storage, and goes on at brokers exactly where that ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.object_store import BucketStore
from mq.store.archive.topic_blocks import ArchivePlace, ArchiveUnreadable, TopicBlocks
from raftlog.log_numbers import LogIndex
from raftlog.segment.backup_store import StoreFailed
from spark.archive_plan import ArchivePlan
from spark.archive_reader import ArchiveTaskReader
from spark.client import TopicRoute, Unreachable
from spark.errors import ReadFailed
from spark.offset_survey import Survey
from spark.options import parse_read_options
from spark.plan import ArchiveClaim, ArchivedLog, LogRange, PlanInvalid, QueueEnds, QueueRange
from spark.task_reader import task_options
from tests.support.archived_logs import SEGMENT_BYTES, ReadArchive

Row = tuple[int, int, bytes]


class Reader(ArchiveTaskReader):
    """A task whose replicas are asked for what it has not found in the archive."""

    left_to_brokers: dict[int, QueueRange]

    def _read_left(self, left: dict[int, QueueRange]) -> Iterator[Any]:
        self.left_to_brokers = left
        yield from ()


class Group:
    """A broker group with an archive, whose log goes on behind it."""

    def __init__(self, directory: Path) -> None:
        self.home = ReadArchive(directory)
        self.now = 0.0
        self.opened = 0
        end = self.home.end
        self.archive = ArchivedLog("s3://bucket", None, "c", SEGMENT_BYTES, (end.index, end.term, end.pos, end.chain))
        sent = [(queue, offset, body) for topic, queue, offset, body in self.home.messages.sent if topic == "T"]
        positions = self._positions()
        self.rows = [(queue, offset, body, positions[queue, offset]) for queue, offset, body in sent]
        self.places = [
            {
                queue: min(
                    (offset for its, offset, _, at in self.rows if its == queue and at >= start),
                    default=self.home.messages.offsets["T", queue],
                )
                for queue in (0, 1)
            }
            for start in range(SEGMENT_BYTES, end.pos + 1, SEGMENT_BYTES)
        ]

    def _positions(self) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        log = self.home.messages.log
        for number, (topic, queue, offset, _) in enumerate(self.home.messages.sent):
            if topic == "T":
                entry = log.entry(LogIndex(number + 1))
                assert entry is not None
                found[queue, offset] = entry.pos
        return found

    def open(self, archive: ArchivedLog, answer_seconds: float) -> TopicBlocks:
        self.opened += 1
        return TopicBlocks(
            ArchivePlace(*archive),
            answer_seconds=answer_seconds,
            clock=lambda: self.now,
            open_store=lambda: BucketStore(self.home.bucket),
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def survey(self) -> Survey:
        key = "T", "a"
        return Survey(
            {"T": TopicRoute({"a": 2}, {"a": {0: "leader:1"}}, "c", {"a": 2})},
            {("T", "a", queue): QueueEnds(0, self.home.messages.offsets["T", queue]) for queue in (0, 1)},
            places={key: self.places},
            positions={key: [0, *range(SEGMENT_BYTES, self.home.end.pos + 1, SEGMENT_BYTES)]},
            archives={key: self.archive},
        )

    def with_archives(self, *ranges: QueueRange, found: Survey | None = None, **given: str) -> LogRange:
        part = LogRange("T", "", "a", ranges, ("leader:1",))
        options = parse_read_options({"namesrv": "n:1", "subscribe": "T", "readMode": "archive"} | given, "batch")
        with ArchivePlan(options, self.open, clock=lambda: self.now, sleep=self.sleep) as plan:
            [planned] = plan.with_archives([part], found or self.survey)
        return planned

    def reader(self, part: LogRange, columns: tuple[str, ...] = ("body",), **given: str) -> Reader:
        options = parse_read_options({"namesrv": "n:1", "subscribe": "T", "readMode": "archive"} | given, "batch")
        reader = Reader(
            part,
            task_options(options, ("queue_id", "queue_offset", *columns)),
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        reader.open_archive = self.open
        reader.left_to_brokers = {}
        return reader

    def archived(self, *ranges: QueueRange) -> list[Row]:
        wanted = {(each.queue_id, offset) for each in ranges for offset in range(each.start, each.end)}
        return [
            (queue, offset, body)
            for queue, offset, body, at in self.rows
            if (queue, offset) in wanted and at < self.home.end.pos
        ]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def rows(reader: Reader) -> list[Row]:
    return [(row["queue_id"], row["queue_offset"], row["body"]) for batch in reader.read() for row in batch.to_pylist()]


WHOLE = QueueRange(0, 0, 40), QueueRange(1, 0, 40)


def test_task_continues_at_brokers_after_the_archive(group: Group) -> None:
    part = group.with_archives(*WHOLE)
    assert part.archived_part is not None
    reader = group.reader(part)
    found = rows(reader)
    assert found == group.archived(*WHOLE)
    ends = {queue: max(offset for its, offset, _ in found if its == queue) + 1 for queue in (0, 1)}
    assert reader.left_to_brokers == {queue: QueueRange(queue, end, 40) for queue, end in ends.items() if end < 40}
    assert reader.left_to_brokers, "the newest file is not archived"
    assert reader.statistics.replicas == {"s3://bucket": reader.statistics.nbytes}


@pytest.mark.parametrize("start", range(0, 30, 3))
def test_any_part_is_read_from_its_own_files(group: Group, start: int) -> None:
    ranges = QueueRange(0, start, start + 5), QueueRange(1, start + 2, start + 4)
    part = group.with_archives(*ranges)
    expected = group.archived(*ranges)
    if part.archived_part is None:
        assert not expected
        return
    reader = group.reader(part)
    assert rows(reader) == expected
    archive_end = part.archived_part.archive.end[2]
    assert part.archived_part.begin_pos + 4 * SEGMENT_BYTES >= archive_end, "no more than it needs"


def test_messages_behind_the_archive_are_read_from_brokers(group: Group) -> None:
    end = group.home.messages.offsets["T", 0]
    assert group.with_archives(QueueRange(0, end - 1, end)).archived_part is None


def test_brokers_answer_queries_that_need_only_offsets(group: Group) -> None:
    reader = group.reader(group.with_archives(*WHOLE), columns=())
    assert rows_of_nothing(reader) == 0
    assert reader.left_to_brokers == {each.queue_id: each for each in WHOLE}


def rows_of_nothing(reader: Reader) -> int:
    return sum(batch.num_rows for batch in reader.read())


def test_damaged_object_fails_the_task_or_brokers_continue(group: Group) -> None:
    part = group.with_archives(*WHOLE)
    name = group.home.object_of(2 * SEGMENT_BYTES)
    content = bytearray(group.home.bucket.objects[name])
    content[500] ^= 4
    group.home.bucket.objects[name] = bytes(content)
    with pytest.raises(ReadFailed, match=rf"queue a:\d, from offset \d+ on: .*{name}: damaged"):
        rows(group.reader(part))
    reader = group.reader(part, onArchiveFailure="brokers")
    found = rows(reader)
    assert found == group.archived(*WHOLE)[: len(found)]
    for queue_id, each in reader.left_to_brokers.items():
        assert each.start == sum(row[0] == queue_id for row in found), "not a message twice, and none left out"


def test_archive_reader_waits_for_a_failing_store(group: Group) -> None:
    part = group.with_archives(*WHOLE)
    reader = group.reader(part)
    sent = group.archived(*WHOLE)

    def slow_down(operation: str, name: str) -> None:
        if group.now < 20:
            raise StoreFailed(name, operation, "503 SlowDown")

    group.home.bucket.before = slow_down
    assert rows(reader) == sent
    group.now = -100.0
    with pytest.raises(ReadFailed, match="onArchiveFailure"):
        rows(group.reader(part, readDeadline="1m"))
    assert -40 <= group.now < -30, "after a minute"


def test_store_failing_at_planning_is_reported_or_replaced(group: Group) -> None:
    group.home.bucket.fails = 1.0
    with pytest.raises(ReadFailed, match=r"topic 'T', broker group a: the archive cannot be read: .*onArchiveFailure"):
        group.with_archives(*WHOLE)
    assert group.with_archives(*WHOLE, onArchiveFailure="brokers").archived_part is None


def test_group_without_an_archive_is_refused_with_the_remedy(group: Group) -> None:
    with pytest.raises(PlanInvalid, match=r"archive_url.*readMode=bulk"):
        group.with_archives(*WHOLE, found=group.survey._replace(archives={("T", "a"): None}))


def test_group_that_does_not_answer_is_reported(group: Group) -> None:
    with pytest.raises(Unreachable, match="no replica reported how much of topic 'T' is archived"):
        group.with_archives(*WHOLE, found=group.survey._replace(archives={}))


def test_planning_waits_until_the_store_is_available_again(group: Group) -> None:
    expected = group.with_archives(*WHOLE)
    requests = 0

    def in_trouble(operation: str, name: str) -> None:
        nonlocal requests
        requests += 1
        if requests in (1, 3):
            raise StoreFailed(name, operation, "503 SlowDown")

    group.home.bucket.before = in_trouble
    assert group.with_archives(*WHOLE) == expected
    assert 0 < group.now < 1
    group.home.bucket.before = lambda operation, name: in_trouble_for_good(name, operation)
    with pytest.raises(ReadFailed, match="503 SlowDown"):
        group.with_archives(*WHOLE, readDeadline="5s")
    assert 4 < group.now < 6


def in_trouble_for_good(name: str, operation: str) -> None:
    raise StoreFailed(name, operation, "503 SlowDown")


def test_endpoint_of_the_query_overrides_the_broker_endpoint(group: Group) -> None:
    part = group.with_archives(*WHOLE, archiveEndpointUrl="https://store.example:9000")
    assert part.archived_part is not None
    assert part.archived_part.archive.endpoint_url == "https://store.example:9000"


def test_reader_asks_brokers_about_deleted_archive_files(group: Group) -> None:
    part = group.with_archives(*WHOLE)
    reader = group.reader(part)

    def gone(operation: str, name: str) -> None:
        if name.startswith("log/"):
            raise ArchiveUnreadable("s3://bucket begins at 8192 by now", is_deleted=True)

    group.home.bucket.before = gone
    assert rows(reader) == []
    assert reader.left_to_brokers == {each.queue_id: each for each in WHOLE}


def test_archive_of_a_recreated_group_is_refused(group: Group) -> None:
    options = parse_read_options({"namesrv": "n:1", "subscribe": "T", "readMode": "archive"}, "batch")
    part = LogRange("T", "", "a", WHOLE, ("leader:1",))
    former = group.survey._replace(archives={("T", "a"): group.archive._replace(log_identity="former")})
    with ArchivePlan(options, group.open, clock=lambda: group.now, sleep=group.sleep) as plan:
        with pytest.raises(ReadFailed, match=r"it belongs to log c .* expected log former"):
            plan.with_archives([part], former)
        [planned] = plan.with_archives([part], group.survey)
    assert planned.archived_part is not None


def claimed(group: Group, *claims: ArchivedLog) -> Survey:
    """What replicas said without a leader, the newest one being believed."""
    told = [ArchiveClaim(f"f{number}:1", each) for number, each in enumerate(claims)]
    newest = max(claims, key=lambda each: each.end[0])
    return group.survey._replace(archives={("T", "a"): newest}, claims={("T", "a"): told})


def place_at(group: Group, pos: int) -> ArchivedLog:
    """What a replica says that does not know of the newest archived files."""
    return group.archive._replace(end=group.open(group.archive, 1.0).places_from(0, group.archive.end)[pos])


def test_replica_that_is_behind_does_not_change_the_plan(group: Group) -> None:
    knows_nothing = group.archive._replace(end=(0, 0, 0, 0))
    found = claimed(group, place_at(group, SEGMENT_BYTES), group.archive, knows_nothing)
    assert group.with_archives(*WHOLE, found=found) == group.with_archives(*WHOLE)


def test_rolled_back_replica_cannot_make_a_scan_lose_rows(group: Group) -> None:
    behind = place_at(group, 2 * SEGMENT_BYTES)
    index, term, pos, chain = behind.end
    rolled_back = [
        behind._replace(end=(index, term, pos, chain ^ 1)),  # it has other entries there
        group.archive._replace(log_identity="former"),
        group.archive._replace(url="s3://elsewhere"),
    ]
    for each in rolled_back:
        found = claimed(group, group.archive, each)
        with pytest.raises(ReadFailed, match=r"no leader confirms it, and f1:1 .*onArchiveFailure=brokers"):
            group.with_archives(*WHOLE, found=found)
        assert group.with_archives(*WHOLE, found=found, onArchiveFailure="brokers").archived_part is None
    # One that says more than the archive has is found out by the archive.
    ahead = group.archive._replace(end=(index + 1000, term + 1, group.archive.end[2] + SEGMENT_BYTES, chain))
    with pytest.raises(ReadFailed, match="the archive cannot be read"):
        group.with_archives(*WHOLE, found=claimed(group, group.archive, ahead))
    part = group.with_archives(*WHOLE, found=claimed(group, group.archive, ahead), onArchiveFailure="brokers")
    assert part.archived_part is None
    assert group.with_archives(*WHOLE).archived_part is not None
