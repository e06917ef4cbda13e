"""A task reads its whole part, each message once and in order, whatever single replicas do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spark.client import BrokerResponse
from spark.errors import DataLoss, ReadFailed
from spark.plan import QueueRange
from tests.support.spark_replicas import Cluster, expected, rows, stored

RANGES = (QueueRange(0, 3, 40), QueueRange(2, 0, 50))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_each_message_is_read_once_from_the_first_replica(cluster: Cluster) -> None:
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert cluster.replicas["leader:1"].pulls == cluster.replicas["f2:1"].pulls == 0
    assert cluster.open_lines == 0
    assert (reader.statistics.rows, reader.statistics.switches, list(reader.statistics.replicas)) == (87, 0, ["f1:1"])


def cut(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=answer.body[:-1])


def shifted(answer: BrokerResponse) -> BrokerResponse:
    """The records of another place: the first one is missing."""
    return answer._replace(body=answer.body[len(stored(0, 9)) :] or memoryview(stored(0, 999)))


def garbage(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(body=memoryview(b"\xff" * 200))


def headless(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(ext={})


def busy(answer: BrokerResponse) -> BrokerResponse:
    return answer._replace(code=2, remark="[TIMEOUT_CLEAN_QUEUE]broker busy")


def lost(answer: BrokerResponse) -> None:
    return None


@pytest.mark.parametrize("fault", [cut, shifted, garbage, headless, busy, lost])
def test_another_replica_continues_after_a_failure(
    cluster: Cluster, fault: Callable[[BrokerResponse], BrokerResponse | None]
) -> None:
    cluster.replicas["f1:1"].faults = [lambda answer: answer, fault]
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert reader.statistics.switches == 1
    assert set(reader.statistics.replicas) == {"f1:1", "f2:1"}


def test_reader_does_not_wait_for_a_lagging_follower(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].end = 20
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert cluster.replicas["leader:1"].pulls == 0


def test_leader_is_asked_last(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].is_down = cluster.replicas["f2:1"].is_down = True
    reader = cluster.reader(*RANGES)

    assert rows(reader) == expected(*RANGES)
    assert list(reader.statistics.replicas) == ["leader:1"]


def test_reader_returns_to_recovered_replicas(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.is_down = True

    def come_back() -> None:
        if cluster.now > 5:
            cluster.replicas["f2:1"].is_down = False

    cluster.on_sleep.append(come_back)

    assert rows(cluster.reader(*RANGES)) == expected(*RANGES)


def test_read_deadline_error_names_every_replica(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.is_down = True

    with pytest.raises(
        ReadFailed, match=r"no replica has sent messages for 30 s, option readDeadline \(f1:1: .*leader:1: "
    ):
        rows(cluster.reader(*RANGES))
    assert 30 <= cluster.now < 33


def test_deleted_messages_fail_the_query_or_are_counted(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.first = 10

    with pytest.raises(DataLoss, match=r"'T', queue a:0: offsets 3 to 9 \(7 messages\) were .*failOnDataLoss=false"):
        rows(cluster.reader(*RANGES))
    reader = cluster.reader(*RANGES, on_data_loss="skip")
    assert rows(reader) == expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skip_count == 17


def test_read_from_earliest_starts_at_the_first_kept_message(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.first = 10
    reader = cluster.reader(*RANGES, from_earliest=True)

    assert rows(reader) == expected(QueueRange(0, 10, 40), QueueRange(2, 10, 50))
    assert reader.statistics.skip_count == 0


def test_read_from_the_earliest_misses_messages_deleted_during_the_read(cluster: Cluster) -> None:
    batches = cluster.reader(QueueRange(0, 3, 40), from_earliest=True).read()
    next(batches)
    for replica in cluster.replicas.values():
        replica.first = 30

    with pytest.raises(DataLoss, match="were deleted before they were read"):
        list(batches)


def test_fully_deleted_range_ends(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.first = 45

    reader = cluster.reader(QueueRange(0, 3, 40), on_data_loss="skip")

    assert rows(reader) == []
    assert reader.statistics.skip_count == 37


@pytest.mark.parametrize("tag", ["even", "odd"])
def test_task_reads_only_messages_with_a_selected_tag(tag: str) -> None:
    reader = Cluster().reader(*RANGES, tags=(tag,))

    assert rows(reader) == [row for row in expected(*RANGES) if (row[1] % 2 == 0) == (tag == "even")]


def test_abandoned_reader_closes_its_connections(cluster: Cluster) -> None:
    batches = cluster.reader(*RANGES).read()

    next(batches)
    assert cluster.open_lines == 1
    batches.close()  # type: ignore[attr-defined]

    assert cluster.open_lines == 0


@pytest.mark.parametrize("seed", range(40))
def test_each_message_is_read_once_under_replica_faults(cluster: Cluster, seed: int) -> None:
    rng = cluster.rng = random.Random(seed)
    kinds = [cut, shifted, garbage, headless, busy, lost]
    for replica in cluster.replicas.values():
        replica.faults = [rng.choice([*kinds, lambda answer: answer]) for _ in range(30)]
        replica.end = rng.choice([20, 50, 50])
    cluster.replicas["leader:1"].end = 50

    assert rows(cluster.reader(*RANGES)) == expected(*RANGES)
