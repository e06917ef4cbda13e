"""What brokers say in answer to planning requests, put together for a query."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mq.protocol.bulk import PlannedPlace, PlannedQueue, encode_plan
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.topic_ends import TopicEnds, decode_topics, encode_ends
from spark.bulk_offset_survey import BulkSurveyor
from spark.client import BrokerResponse, Connection, Unreachable
from spark.offset_survey import Survey
from spark.options import Topics
from spark.plan import ArchiveClaim, ArchivedLog, PlanInvalid, QueueEnds

ADDRESSES = {"0": "leader:1", "1": "f1:1", "2": "f2:1"}
PAGE = 2


class PlanningReplica:
    """A broker with topics of 5 queues, each of which ends at ``end``; it tells ends of 2 topics at once, or none."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.first = 0
        self.identity = "1-1000"
        self.is_down = False
        self.knows_ends = False
        self.code = 0
        self.has_leader = True
        self.archived = 0
        self.asked: list[dict[str, str]] = []
        self.asked_ends: list[tuple[bool, list[str]]] = []

    def answer(self, ext: dict[str, str]) -> BrokerResponse:
        self.asked.append(ext)
        if self.code or (ext["current"] == "true" and not self.has_leader):
            return BrokerResponse(self.code or 14, "no leader", {}, memoryview(b""))
        first = int(ext["firstQueue"])
        queues = [
            PlannedQueue(queue, QueueOffset(self.first), QueueOffset(self.end + queue), 100)
            for queue in range(first, min(first + PAGE, 5))
        ]
        places = [
            PlannedPlace(PhysicalOffset(position), (QueueOffset(position // 100),) * len(queues))
            for position in (100, 200)
        ]
        following = first + PAGE if first + PAGE < 5 else -1
        fields = {"nextQueue": str(following), "topicIdentity": self.identity, "basePosition": "40"}
        if self.archived and ext["detail"] == "true":
            place = {"Index": self.archived, "Term": 1, "Position": 10 * self.archived, "Chain": 7}
            fields |= {f"archive{name}": str(number) for name, number in place.items()}
            fields |= {"archiveUrl": "s3://bucket", "logIdentity": "c", "segmentBytes": "10"}
        return BrokerResponse(0, "", fields, memoryview(encode_plan(queues, places if ext["detail"] == "true" else [])))

    def answer_ends(self, ext: dict[str, str], topics: list[str]) -> BrokerResponse:
        if self.code or not self.knows_ends:
            return BrokerResponse(self.code or ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "", {}, memoryview(b""))
        self.asked_ends.append((ext["current"] == "true", topics))
        found = [
            TopicEnds(
                self.identity, [QueueOffset(self.first)] * 5, [QueueOffset(self.end + queue) for queue in range(5)]
            )
        ] * 2
        return BrokerResponse(0, "", {}, memoryview(encode_ends(found[: len(topics)])))


class Line(Connection):
    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self._cluster = cluster
        self._sent: dict[int, tuple[int, dict[str, str], bytes]] = {}
        cluster.open_lines += 1

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        self._sent[len(self._sent)] = code, ext, body
        return len(self._sent) - 1

    def receive(self, opaque: int) -> BrokerResponse:
        code, ext, asked = self._sent[opaque]
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self._cluster.routes_asked += 1
            body = {
                "queueDatas": [{"brokerName": "a", "readQueueNums": 5, "perm": 6}],
                "brokerDatas": [{"brokerName": "a", "brokerAddrs": ADDRESSES}],
            }
            return BrokerResponse(0, "", {}, memoryview(json.dumps(body).encode()))
        if code == RequestCode.ASK_TOPIC_ENDS:
            return self._cluster.replicas[self.address].answer_ends(ext, decode_topics(asked))
        assert code == RequestCode.PLAN_TOPIC
        return self._cluster.replicas[self.address].answer(ext)

    def close(self) -> None:
        self._cluster.open_lines -= 1


class Cluster:
    def __init__(self) -> None:
        self.replicas = {"leader:1": PlanningReplica(12), "f1:1": PlanningReplica(10), "f2:1": PlanningReplica(11)}
        self.open_lines = 0
        self.routes_asked = 0

    def connect(self, address: str, timeout: float) -> Connection:
        if address != "names:1" and self.replicas[address].is_down:
            raise Unreachable(address, "cannot connect")
        return Line(self, address)

    def survey(
        self,
        consistency: Any,
        *,
        detail: bool = False,
        topics: tuple[str, ...] = ("T",),
        previous: Survey | None = None,
    ) -> Survey:
        surveyor = BulkSurveyor(("names:1",), 1.0, self.connect, consistency=consistency, detail=detail)
        found = surveyor.survey(Topics(topics), previous=previous)
        assert self.open_lines == 0
        return found


def ends(end: int, first: int = 0) -> dict[tuple[str, str, int], QueueEnds]:
    return {("T", "a", queue): QueueEnds(first, end + queue, 100) for queue in range(5)}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_follower_asks_the_leader_for_latest_ends(cluster: Cluster) -> None:
    found = cluster.survey("latest")
    assert found.ends == ends(10)
    assert found.identities == {("T", "a"): "1-1000"}
    assert found.places == {("T", "a"): []}
    assert [ext["current"] for ext in cluster.replicas["f1:1"].asked] == ["true", "false", "false"]
    assert not cluster.replicas["leader:1"].asked


def test_committed_ends_are_the_largest_of_the_followers(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].first = 3
    found = cluster.survey("committed")
    assert found.ends == ends(11, 3)
    assert {ext["current"] for ext in cluster.replicas["f2:1"].asked} == {"false"}
    assert not cluster.replicas["leader:1"].asked


def test_leader_is_asked_when_no_follower_answers(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].is_down = cluster.replicas["f2:1"].is_down = True
    assert cluster.survey("committed").ends == ends(12)
    assert cluster.survey("latest").ends == ends(12)


def test_ends_of_many_topics_are_asked_at_once(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.knows_ends = True
    cluster.replicas["f1:1"].first = 3
    topics = ("T0", "T1", "T2")
    found = cluster.survey("committed", topics=topics)
    assert found.ends == {(topic, "a", queue): QueueEnds(3, 11 + queue) for topic in topics for queue in range(5)}
    assert found.identities == {(topic, "a"): "1-1000" for topic in topics}
    for name in ("f1:1", "f2:1"):
        assert cluster.replicas[name].asked_ends == [(False, list(topics)), (False, ["T2"])]
        assert not cluster.replicas[name].asked
    assert not cluster.replicas["leader:1"].asked_ends
    cluster.survey("latest", topics=topics)
    assert cluster.replicas["f1:1"].asked_ends[2:] == [(True, list(topics)), (False, ["T2"])]


def test_older_replica_is_asked_for_plans(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].knows_ends = True
    assert cluster.survey("committed").ends == {("T", "a", queue): QueueEnds(0, 11 + queue, 100) for queue in range(5)}
    assert len(cluster.replicas["f2:1"].asked) == 3


def test_survey_reuses_known_routes(cluster: Cluster) -> None:
    known = cluster.survey("committed")
    cluster.replicas["f2:1"].end = 15
    again = cluster.survey("committed", previous=known)
    assert again.ends == ends(15)
    assert again.routes == known.routes
    assert again.identities == known.identities
    assert cluster.routes_asked == 1


@pytest.mark.parametrize("topics_told", [0, 2])
def test_ends_of_unrequested_topics_are_ignored(cluster: Cluster, topics_told: int) -> None:
    for replica in cluster.replicas.values():
        replica.knows_ends = True
    body = memoryview(encode_ends([TopicEnds("1-1", [QueueOffset(0)], [QueueOffset(7)])] * topics_told))
    cluster.replicas["f1:1"].answer_ends = lambda ext, topics: BrokerResponse(0, "", {}, body)  # type: ignore[method-assign]
    assert cluster.survey("latest").ends == {("T", "a", queue): QueueEnds(0, 11 + queue) for queue in range(5)}


def test_places_of_several_pages_are_put_together() -> None:
    found = Cluster().survey("committed", detail=True)
    assert found.places == {("T", "a"): [dict.fromkeys(range(5), 1), dict.fromkeys(range(5), 2)]}


def test_latest_ends_are_unknown_without_a_leader(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[dict[str, str]] = []
    for replica in cluster.replicas.values():
        answer = replica.answer

        def no_leader(ext: dict[str, str], answer: Any = answer) -> BrokerResponse:
            asked.append(ext)
            return BrokerResponse(14, "no leader", {}, memoryview(b"")) if ext["current"] == "true" else answer(ext)

        replica.answer = no_leader  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match=r"no replica knows what is committed \(f1:1: no leader; f2:1"):
        cluster.survey("latest")
    assert cluster.survey("latest-if-possible").ends == ends(11)
    assert "broker group a has no leader" in caplog.text


def test_survey_uses_the_newest_topic_identity_of_all_replicas(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].identity, cluster.replicas["f1:1"].end = "12-500", 2
    found = cluster.survey("committed")
    assert (found.identities["T", "a"], found.ends) == ("12-500", ends(2))


def test_survey_error_names_every_replica(cluster: Cluster) -> None:
    for replica in cluster.replicas.values():
        replica.is_down = True
    with pytest.raises(Unreachable, match=r"f1:1: cannot connect; f2:1: cannot connect; leader:1: cannot connect"):
        cluster.survey("committed")


def test_stock_brokers_are_recognized_and_pull_mode_is_suggested(cluster: Cluster) -> None:
    cluster.replicas["f1:1"].code = 3
    with pytest.raises(PlanInvalid, match="readMode=pull"):
        cluster.survey("latest")


@pytest.mark.parametrize("fields", [{}, {"nextQueue": "x", "topicIdentity": ""}, {"nextQueue": "-1"}])
def test_survey_ignores_an_unreadable_answer(cluster: Cluster, fields: dict[str, str]) -> None:
    body = memoryview(encode_plan([], []))
    cluster.replicas["f1:1"].answer = lambda ext: BrokerResponse(0, "", fields, body)  # type: ignore[method-assign]
    assert cluster.survey("latest").ends == ends(11)


def detailed(cluster: Cluster, consistency: Any = "committed", *, proves_archives: bool = True) -> Survey:
    surveyor = BulkSurveyor(
        ("names:1",), 1.0, cluster.connect, consistency=consistency, detail=False, proves_archives=proves_archives
    )
    found = surveyor.add_details(surveyor.survey(Topics(("T",))))
    assert cluster.open_lines == 0
    return found


def archived(index: int) -> ArchivedLog:
    return ArchivedLog("s3://bucket", None, "c", 10, (index, 1, 10 * index, 7))


def test_archive_position_comes_from_a_replica_confirmed_by_the_leader(cluster: Cluster) -> None:
    for name, index in {"f1:1": 900, "f2:1": 50, "leader:1": 60}.items():
        cluster.replicas[name].archived = index
    cluster.replicas["f1:1"].has_leader = False  # its disk was put back, and it has not found the leader yet
    found = detailed(cluster)
    assert found.archives == {("T", "a"): archived(50)}
    assert not found.claims
    assert not cluster.replicas["leader:1"].asked
    # Where no archive is read, it does not matter.
    assert detailed(cluster, proves_archives=False).archives == {("T", "a"): archived(900)}


def test_archive_end_comes_from_all_replicas_without_a_leader(cluster: Cluster) -> None:
    for name, index in {"f1:1": 40, "f2:1": 50, "leader:1": 0}.items():
        cluster.replicas[name].archived = index
        cluster.replicas[name].has_leader = False
    found = detailed(cluster)
    assert found.archives == {("T", "a"): archived(50)}
    assert found.claims == {("T", "a"): [ArchiveClaim("f1:1", archived(40)), ArchiveClaim("f2:1", archived(50))]}


@pytest.mark.parametrize("proves_archives", [False, True])
def test_details_of_a_topic_that_was_deleted_are_ignored(cluster: Cluster, proves_archives: bool) -> None:
    cluster.replicas["f2:1"].archived = 50
    cluster.replicas["f2:1"].identity = cluster.replicas["leader:1"].identity = "12-500"
    found = detailed(cluster, proves_archives=proves_archives)
    assert found.identities["T", "a"] == "12-500"
    assert found.archives == {("T", "a"): archived(50)}
    assert len(found.places["T", "a"]) == 2
