"""A streaming query on the driver, with a clock that only sleeping moves."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mq.protocol.codes import RequestCode
from spark.client import BrokerResponse, Connection, TopicRoute, Unreachable
from spark.errors import DataLoss
from spark.micro_batches import ClusterChanged
from spark.offset_survey import Survey, Surveyor
from spark.option_table import QueueName
from spark.options import Subscription, parse_read_options
from spark.plan import ArchivedLog, PlanInvalid, QueueEnds, QueueRange
from spark.positions import Position
from spark.stream_progress import StreamProgress

A0, A1 = ("T", "a", 0), ("T", "a", 1)
ADDRESSES = {0: "leader:1", 1: "f1:1", 2: "f2:1"}


class Line(Connection):
    """A connection to the leader that takes the offsets of consumer groups."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self._sent: list[dict[str, str]] = []
        cluster.open_lines += 1

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        assert (self.address, code) == ("leader:1", RequestCode.UPDATE_CONSUMER_OFFSET)
        self._sent.append(ext)
        return len(self._sent) - 1

    def receive(self, opaque: int) -> BrokerResponse:
        if self._cluster.refuses_offsets:
            return BrokerResponse(16, "another client holds the queue", {}, memoryview(b""))
        ext = self._sent[opaque]
        self._cluster.group_offsets.append((ext["consumerGroup"], int(ext["queueId"]), int(ext["commitOffset"])))
        return BrokerResponse(0, "", {}, memoryview(b""))

    def close(self) -> None:
        self._cluster.open_lines -= 1


class Cluster(Surveyor):
    """What there is, and the clock of the driver."""

    def __init__(self) -> None:
        self.ends: dict[QueueName, QueueEnds] = {A0: QueueEnds(0, 10), A1: QueueEnds(0, 20)}
        self.name = "C"
        self.is_down = False
        self.now = 0.0
        self.surveys = 0
        self.routes_asked = 0
        self.on_sleep: Callable[[], None] = lambda: None
        self.open_lines = 0
        self.group_offsets: list[tuple[str, int, int]] = []
        self.refuses_offsets = False
        self.tells_archives = 0

    def survey(self, subscription: Subscription, *, strict: bool = True, previous: Survey | None = None) -> Survey:
        self.surveys += 1
        self.routes_asked += previous is None
        if self.is_down:
            raise Unreachable("names:1", "cannot connect")
        if strict and not self.ends:
            raise PlanInvalid("the topic 'T' does not exist")
        route = TopicRoute({"a": 2}, {"a": ADDRESSES}, self.name, {"a": 2})
        return Survey({topic: route for topic, _, _ in self.ends}, dict(self.ends))

    def add_details(self, found: Survey) -> Survey:
        self.tells_archives -= 1
        archive = ArchivedLog("s3://bucket", None, "c", 4096, (0, 0, 0, 0))
        return found._replace(archives={} if self.tells_archives >= 0 else {(t, "a"): archive for t, _, _ in self.ends})

    def by_time(self, found: Survey, times: Mapping[QueueName, int]) -> dict[QueueName, int | None]:
        return dict.fromkeys(times, 3)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()

    def progress(self, **options: str) -> StreamProgress:
        wanted = {"namesrv": "names:1", "subscribe": "T", **options}
        if "startingTimestamp" not in options:
            wanted.setdefault("startingOffsets", "earliest")
        return StreamProgress(
            parse_read_options(wanted, "stream"),
            connect=lambda address, _: Line(self, address),
            make_surveyor=lambda *_: self,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def later(self, **ends: int) -> None:
        """So many messages by now, and what was seen before does not count any more."""
        self.now += 1
        for name, end in ends.items():
            queue = ("T", "a", int(name.removeprefix("a")))
            self.ends[queue] = QueueEnds(self.ends[queue].first if queue in self.ends else 0, end)


def at(**offsets: int) -> dict[str, Any]:
    return Position("C", {("T", "a"): ""}, {("T", "a", int(name[1:])): end for name, end in offsets.items()}).to_json()


def offsets_of(found: Mapping[str, Any]) -> dict[str, int]:
    offsets: dict[str, int] = found["topics"]["T"]["q"]
    return offsets


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_micro_batches_follow_the_queues(cluster: Cluster) -> None:
    progress = cluster.progress()

    begin = progress.beginning()
    end = progress.latest(begin, is_limited=False)
    parts = progress.partitions(begin, end)
    assert offsets_of(begin) == {"a:0": 0, "a:1": 0}
    assert offsets_of(end) == {"a:0": 10, "a:1": 20}
    assert [part.ranges for part in parts] == [(QueueRange(0, 0, 10), QueueRange(1, 0, 20))]
    assert all(part.replicas[-1] == "leader:1" for part in parts)
    cluster.later(a0=11)
    assert offsets_of(progress.latest(end, is_limited=False)) == {"a:0": 11, "a:1": 20}
    newest = progress.newest()
    assert newest is not None
    assert offsets_of(newest) == {"a:0": 11, "a:1": 20}


def test_followers_take_turns_from_micro_batch_to_micro_batch() -> None:
    progress = Cluster().progress()
    begin = progress.beginning()

    first, second = [progress.partitions(begin, progress.latest(begin, is_limited=False)) for _ in range(2)]

    assert {first[0].replicas[0], second[0].replicas[0]} == {"f1:1", "f2:1"}
    assert first[0].replicas[-1] == second[0].replicas[-1] == "leader:1"


def test_repeated_micro_batch_has_the_same_tasks() -> None:
    class Detailed(Cluster):
        def __init__(self) -> None:
            super().__init__()
            self.places = [{0: 1000, 1: 20}, {0: 2000, 1: 50_000}]

        def add_details(self, found: Survey) -> Survey:
            return found._replace(places={("T", "a"): self.places})

    cluster = Detailed()
    cluster.ends = {A0: QueueEnds(0, 300_000, 1 << 30), A1: QueueEnds(0, 100_000, 1 << 20)}
    progress = cluster.progress(maxBytesPerPartition="64m")
    begin = progress.beginning()
    end = progress.latest(begin, is_limited=False)
    before = [part.ranges for part in progress.partitions(begin, end)]
    cluster.now += 100
    cluster.ends = {A0: QueueEnds(0, 900_000, 1 << 36), A1: QueueEnds(0, 100_000, 1 << 30)}
    cluster.places = [{0: 70_000, 1: 20}]
    assert [part.ranges for part in cluster.progress(maxBytesPerPartition="64m").partitions(begin, end)] == before
    assert len(before) == 7
    assert max(sum(each.message_count for each in ranges) for ranges in before) <= 64 * 1024


def test_latest_offset_is_unchanged_without_new_messages() -> None:
    progress = Cluster().progress()
    start = at(a0=10, a1=20)

    assert progress.latest(start, is_limited=False) is start


def test_beginning_of_a_stream_stays_the_same(cluster: Cluster) -> None:
    progress = cluster.progress(startingOffsets="latest")

    begin = progress.beginning()
    cluster.later(a0=50)

    assert progress.beginning() == begin
    assert offsets_of(begin) == {"a:0": 10, "a:1": 20}


def test_query_may_begin_at_a_time() -> None:
    assert offsets_of(Cluster().progress(startingTimestamp="5").beginning()) == {"a:0": 3, "a:1": 3}


def test_brokers_are_not_asked_a_hundred_times_a_second(cluster: Cluster) -> None:
    progress = cluster.progress()
    start = at(a0=10, a1=20)

    for _ in range(100):
        progress.latest(start, is_limited=False)
        cluster.now += 0.01

    assert cluster.surveys <= 11


def test_limits_apply_unless_spark_requests_everything() -> None:
    progress = Cluster().progress(maxOffsetsPerTrigger="6")
    begin = progress.beginning()

    assert offsets_of(progress.latest(begin, is_limited=True)) == {"a:0": 2, "a:1": 4}
    assert offsets_of(progress.latest(begin, is_limited=False)) == {"a:0": 10, "a:1": 20}


def test_bytes_limit_a_micro_batch_as_well() -> None:
    progress = Cluster().progress(maxBytesPerTrigger="3k", maxOffsetsPerTrigger="20")

    assert offsets_of(progress.latest(at(a0=0, a1=0), is_limited=True)) == {"a:0": 1, "a:1": 2}


def test_micro_batch_waits_for_enough_messages_but_not_for_ever(cluster: Cluster) -> None:
    progress = cluster.progress(minOffsetsPerTrigger="5", maxTriggerDelay="1m")
    start = at(a0=10, a1=20)

    cluster.later(a0=13)
    assert progress.latest(start, is_limited=True) is start
    cluster.later(a0=15)
    assert offsets_of(progress.latest(start, is_limited=True)) == {"a:0": 15, "a:1": 20}
    start = at(a0=15, a1=20)
    cluster.later(a0=16)
    assert progress.latest(start, is_limited=True) is start
    cluster.now += 60
    assert offsets_of(progress.latest(start, is_limited=True)) == {"a:0": 16, "a:1": 20}


def test_available_now_reads_only_messages_present_at_start(cluster: Cluster) -> None:
    progress = cluster.progress(minOffsetsPerTrigger="1000", maxOffsetsPerTrigger="20")
    at_, counts = progress.beginning(), []
    progress.end_here()
    cluster.later(a0=1000, a1=1000, a2=1000)

    while (end := progress.latest(at_, is_limited=True)) != at_:
        counts.append(sum(offsets_of(end).values()))
        at_ = end

    assert offsets_of(at_) == {"a:0": 10, "a:1": 20}
    assert counts == [19, 30]


# -- trouble -------------------------------------------------------------------------------------------------------


def test_wrong_address_is_reported_within_seconds(cluster: Cluster) -> None:
    cluster.is_down = True

    with pytest.raises(Unreachable):
        cluster.progress().beginning()
    assert 5 < cluster.now <= 15


def test_missing_topic_is_reported_at_once(cluster: Cluster) -> None:
    cluster.ends = {}

    with pytest.raises(PlanInvalid, match="'T' does not exist"):
        cluster.progress().beginning()
    assert cluster.now == 0


def test_progress_waits_for_brokers_that_return(cluster: Cluster) -> None:
    progress = cluster.progress()
    cluster.is_down = True

    def come_back() -> None:
        cluster.is_down = cluster.now < 100

    cluster.on_sleep = come_back

    assert offsets_of(progress.latest(at(a0=0, a1=0), is_limited=False)) == {"a:0": 10, "a:1": 20}


def test_unreachable_brokers_end_the_query_after_a_while(cluster: Cluster) -> None:
    cluster.is_down = True

    with pytest.raises(Unreachable):
        cluster.progress(readDeadline="30s").latest(at(a0=0), is_limited=False)
    assert 28 < cluster.now <= 30


def test_stream_keeps_its_position_while_name_servers_have_no_routes(cluster: Cluster) -> None:
    progress = cluster.progress()
    start, there = at(a0=5, a1=20), cluster.ends
    cluster.ends = {}

    for _ in range(60):
        cluster.later()
        assert progress.latest(start, is_limited=False) is start
    cluster.ends = there
    cluster.later()

    assert offsets_of(progress.latest(start, is_limited=False)) == {"a:0": 10, "a:1": 20}


def test_queue_that_stays_away_with_unread_messages_ends_the_query(cluster: Cluster) -> None:
    progress = cluster.progress()
    start = at(a0=5, a1=20)
    progress.latest(start, is_limited=False)
    del cluster.ends[A0], cluster.ends[A1]
    cluster.later()
    assert progress.latest(start, is_limited=False) is start

    cluster.now += 120

    with pytest.raises(DataLoss, match=r"queue a:0 no longer exists; offsets 5 to 9 \(5 messages\)") as caught:
        progress.latest(start, is_limited=False)
    assert "a:1" not in str(caught.value)


def test_micro_batches_in_between_do_not_make_a_loss_younger(cluster: Cluster) -> None:
    progress = cluster.progress()
    cluster.later(a0=4)

    def go_on(start: dict[str, Any]) -> None:
        for _ in range(200):
            cluster.later(a1=cluster.ends[A1].end + 1)
            end = progress.latest(start, is_limited=False)
            progress.partitions(start, end)
            start = end

    lost = r"queue a:0: offsets 4 to 4 existed before and no longer exist \(1 messages\)"
    with pytest.raises(DataLoss, match=lost):
        go_on(at(a0=5, a1=0))
    assert 119 < cluster.now < 125


def test_query_with_fail_on_data_loss_off_warns_once_and_continues(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    progress = cluster.progress(failOnDataLoss="false")
    cluster.ends[A0] = QueueEnds(8, 10)
    start = at(a0=5, a1=20)

    with caplog.at_level(logging.WARNING):
        end = progress.latest(start, is_limited=False)
        parts = progress.partitions(start, end)
        cluster.later()
        progress.latest(start, is_limited=False)

    assert [part.ranges for part in parts] == [(QueueRange(0, 8, 10),)]
    assert [record.message.count("5 to 7 (3 messages) were deleted") for record in caplog.records] == [1]


def test_deleted_messages_end_the_query_at_once(cluster: Cluster) -> None:
    cluster.ends[A0] = QueueEnds(8, 10)

    with pytest.raises(DataLoss, match=r"5 to 7 \(3 messages\) were deleted.*failOnDataLoss=false"):
        cluster.progress().latest(at(a0=5, a1=20), is_limited=False)


def test_repeated_micro_batch_waits_for_a_queue_that_is_away(cluster: Cluster) -> None:
    progress = cluster.progress()
    there = cluster.ends.pop(A0)

    def come_back() -> None:
        if cluster.now > 30:
            cluster.ends[A0] = there

    cluster.on_sleep = come_back

    parts = progress.partitions(at(a0=0, a1=0), at(a0=10, a1=20))
    assert sorted(each for part in parts for each in part.ranges) == [QueueRange(0, 0, 10), QueueRange(1, 0, 20)]
    del cluster.ends[A0]
    cluster.on_sleep = lambda: None
    cluster.now += 1
    with pytest.raises(DataLoss, match=r"offsets 0 to 9 \(10 messages\) were not read"):
        progress.partitions(at(a0=0, a1=0), at(a0=10, a1=20))


def test_available_now_continues_while_a_queue_may_return(cluster: Cluster) -> None:
    progress = cluster.progress()
    progress.end_here()
    there = cluster.ends.pop(A0)
    cluster.now += 1

    def come_back() -> None:
        if cluster.now > 30:
            cluster.ends[A0] = there

    cluster.on_sleep = come_back

    assert offsets_of(progress.latest(at(a0=0, a1=20), is_limited=True)) == {"a:0": 10, "a:1": 20}


def test_checkpoint_of_another_cluster_is_reported_at_once(cluster: Cluster) -> None:
    cluster.name = "D"

    with pytest.raises(ClusterChanged):
        cluster.progress().latest(at(a0=5), is_limited=False)
    with pytest.raises(ClusterChanged):
        cluster.progress().partitions(at(a0=5), at(a0=6))


# -- consumer group ------------------------------------------------------------------------------------------------


def test_consumer_group_shows_the_progress_of_the_query(cluster: Cluster) -> None:
    progress = cluster.progress(commitToGroup="lag")

    begin = progress.beginning()
    end = progress.latest(begin, is_limited=False)
    assert cluster.group_offsets == [("lag", 0, 0), ("lag", 1, 0)]
    cluster.now += 1
    assert progress.latest(end, is_limited=False) is end
    assert cluster.group_offsets[2:] == [("lag", 0, 10), ("lag", 1, 20)]
    cluster.now += 5
    progress.latest(end, is_limited=False)
    assert len(cluster.group_offsets) == 4


def test_offsets_are_stored_once_a_second_and_when_the_query_stops(cluster: Cluster) -> None:
    progress = cluster.progress(commitToGroup="lag")
    start = at(a0=0, a1=20)
    progress.latest(start, is_limited=False)
    for end in range(1, 11):
        cluster.now += 0.05
        progress.latest(at(a0=end, a1=20), is_limited=False)
    assert ("lag", 0, 10) not in cluster.group_offsets

    progress.stop()

    assert cluster.group_offsets[-1] == ("lag", 0, 10)
    assert cluster.open_lines == 0


def test_missing_group_permission_is_logged_and_the_stream_continues(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuses_offsets = True
    progress = cluster.progress(commitToGroup="lag")

    with caplog.at_level(logging.WARNING):
        for end in range(5):
            cluster.later()
            progress.latest(at(a0=end, a1=20), is_limited=False)
            progress.on_finish(at(a0=end, a1=20))

    assert [record.message.count("consumer group lag could not be stored") for record in caplog.records] == [1]
    cluster.refuses_offsets = False
    cluster.later()
    progress.on_finish(at(a0=5, a1=20))
    assert ("lag", 0, 5) in cluster.group_offsets


def test_positions_are_written_as_json() -> None:
    begin = Cluster().progress().beginning()
    assert json.loads(json.dumps(begin)) == begin


def test_name_servers_are_asked_every_few_seconds_only(cluster: Cluster) -> None:
    progress = cluster.progress()
    start = progress.beginning()
    for _ in range(10):
        cluster.later()  # a second
        progress.latest(start, is_limited=False)
    assert (cluster.surveys, cluster.routes_asked) == (11, 3)


def test_name_servers_are_asked_at_once_about_missing_queues(cluster: Cluster) -> None:
    progress = cluster.progress(readDeadline="3s")
    start = progress.beginning()
    progress.latest(start, is_limited=False)
    cluster.later()
    kept = cluster.ends.pop(A1)
    progress.latest(start, is_limited=False)
    cluster.later()
    cluster.ends[A1] = kept
    routes_asked = cluster.routes_asked
    progress.latest(start, is_limited=False)
    assert cluster.routes_asked == routes_asked + 1


def test_archive_stream_asks_again_for_a_new_topic(cluster: Cluster) -> None:
    progress = cluster.progress(readMode="archive")
    begin = progress.beginning()
    end = progress.latest(begin, is_limited=False)
    assert len(progress.partitions(begin, end)) == 1
    cluster.ends["U", "a", 0] = QueueEnds(0, 5)
    cluster.later()
    newer = progress.latest(end, is_limited=False)
    assert [part.topic for part in progress.partitions(end, newer)] == ["U"]


def test_stream_of_the_archive_waits_for_a_replica_that_answers(cluster: Cluster) -> None:
    progress = cluster.progress(readMode="archive")
    begin = progress.beginning()
    end = progress.latest(begin, is_limited=False)
    cluster.tells_archives = 4
    assert len(progress.partitions(begin, end)) == 1
    assert 0 < cluster.now < 1
    again = cluster.progress(readMode="archive", readDeadline="5s")
    cluster.tells_archives = 1000
    with pytest.raises(Unreachable, match="no replica reported how much of topic 'T' is archived"):
        again.partitions(begin, end)
    assert 4 < cluster.now < 7
