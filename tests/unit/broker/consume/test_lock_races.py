"""Queue locks, with the log's rounds in the test's hands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import structlog

from mq.broker.consume.queue_locks import QueueLockService
from mq.broker.net.call import Call
from mq.broker.net.clients import ROUND_CALLS
from mq.broker.state.commands import DeleteTopic, LockQueues, PutTopic, TopicConfig
from mq.broker.state.metadata import Metadata
from mq.protocol.codes import RequestCode
from mq.protocol.frames import JSON
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.wire.encoding import encode_request
from tests.support.appender_rounds import Rounds
from tests.support.broker_contexts import context_of


class Stage:
    """The locks of a broker with the topic T, which has one queue."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.make_topic()
        self.rounds = Rounds(self.metadata)
        self.now = 0.0
        self.told: dict[str, list[int]] = {}
        self.held_reads: list[Callable[[bool], None]] | None = None
        self.locks = QueueLockService(
            context_of(
                metadata=self.metadata,
                appender=self.rounds,
                client_id=lambda connection, group: None,
                reads__read_once=self._read,
                clock=lambda: self.now,
                log=structlog.get_logger(),
            )
        )
        self.locks.lead()

    def _read(self, on_read: Callable[[bool], None]) -> None:
        if self.held_reads is None:
            on_read(True)
        else:
            self.held_reads.append(on_read)

    def make_topic(self) -> None:
        self.metadata.apply(PutTopic(config=TopicConfig(name="T", read_queues=1, write_queues=1), timestamp_ms=1))

    def lock(self, client_id: str, host: bytes = bytes(4)) -> None:
        self._ask(client_id, RequestCode.LOCK_BATCH_MQ, self.locks.handle_lock, host)

    def unlock(self, client_id: str) -> None:
        self._ask(client_id, RequestCode.UNLOCK_BATCH_MQ, self.locks.handle_unlock)

    def _ask(self, client_id: str, code: int, handle: Callable[..., bytes | None], host: bytes = bytes(4)) -> None:
        queues = [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]
        body = json.dumps({"clientId": client_id, "consumerGroup": "G", "mqSet": queues}).encode()
        [(request, _, _)], _ = decode_chunk(encode_request(code, 1))
        connection: Any = _Connection(self.told, client_id, host)
        handle(Call(connection, request, body, JSON))


class _Connection:
    """Notes the queues that a client was told are its own."""

    def __init__(self, told: dict[str, list[int]], client_id: str, host: bytes) -> None:
        self.host = host + bytes(4)
        self._told = told
        self._client_id = client_id

    def answer(self, request: Any, reply: bytes) -> None:
        [(_, body, _)], _ = decode_chunk(reply)
        if body:
            self._told[self._client_id] = [ref["queueId"] for ref in json.loads(body)["lockOKMQSet"]]


def test_late_unlock_does_not_open_the_queue_to_a_third_client() -> None:
    """c1 was silent, c2 gets its queue; c1 gives it back while that is on its way, and c3 comes before that is done."""
    stage = Stage()
    stage.lock("c1")
    stage.rounds.commit(1)
    stage.now = 100.0
    stage.lock("c2")
    stage.unlock("c1")
    stage.rounds.commit(1)
    assert stage.told["c2"] == [0]
    stage.lock("c3")
    stage.lock("c2")
    stage.rounds.commit(0)
    assert stage.told == {"c1": [0], "c2": [0], "c3": []}
    assert stage.metadata.lock_holder("G", "T", 0) == "c2"


def test_lock_not_yet_committed_is_not_reported() -> None:
    """A client asks twice. The first answer comes late: not before the second request found the queue free."""
    stage = Stage()
    stage.lock("c1")
    stage.rounds.commit(1)
    stage.held_reads = []
    stage.lock("c2")
    stage.now = 100.0
    stage.lock("c2")
    [answer] = stage.held_reads
    answer(True)
    assert stage.told["c2"] == []
    assert stage.metadata.lock_holder("G", "T", 0) == "c1"
    stage.rounds.commit(1)
    assert stage.told["c2"] == [0]


def test_lock_being_revoked_is_not_reported() -> None:
    """It was renewed in time, and then its time was over before anybody could confirm that."""
    stage = Stage()
    stage.lock("c1")
    stage.rounds.commit(1)
    stage.now, stage.held_reads = 59.0, []
    stage.lock("c1")
    stage.now = 61.0
    stage.locks.expire_some()
    [answer] = stage.held_reads
    answer(True)
    assert stage.told["c1"] == []
    stage.rounds.commit(1)
    assert stage.metadata.lock_holder("G", "T", 0) is None


def test_grants_of_an_earlier_leadership_do_not_change_counts() -> None:
    """A request is given back after the leadership ended and another host got the queue."""
    stage = Stage()
    stage.lock("c1", b"aaaa")
    stage.locks.lead()
    stage.lock("c2", b"bbbb")
    stage.rounds.commit(1)
    assert stage.locks._host_grants == {b"bbbb": 1}
    stage.rounds.commit(1)
    assert not stage.locks._host_grants


def test_deleted_topic_removes_known_lock_renewals() -> None:
    stage = Stage()
    stage.lock("c1")
    stage.rounds.commit(1)
    stage.metadata.apply(DeleteTopic(name="T", timestamp_ms=2))
    stage.make_topic()
    stage.locks.expire_some()
    assert not list(stage.locks._renewals)


def test_expired_locks_are_released_gradually_within_a_round() -> None:
    stage = Stage()
    for number in range(300):
        topic = TopicConfig(name=f"T{number}", read_queues=1, write_queues=1)
        stage.metadata.apply(PutTopic(config=topic, timestamp_ms=1))
        stage.metadata.apply(LockQueues(group="G", client_id="c1", queues=[(topic.name, 0)]))
    stage.now = 59.0
    stage.locks.expire_some()
    assert not stage.locks._releases
    stage.now = 61.0
    found = [0]
    for _ in range(2 * ROUND_CALLS):
        stage.locks.expire_some()
        found.append(len(stage.locks._releases))
    assert found[ROUND_CALLS // 2] <= 200
    assert found[-1] == 300
    assert max(after - before for before, after in itertools.pairwise(found)) <= 6
