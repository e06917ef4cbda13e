"""Readers of archived messages keep their connections, however slow the store is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos.broker_sim.archive import Archive
from chaos.broker_sim.archive_bucket import CALM, Mood
from chaos.broker_sim.clients import Client, ClientResponse, LostResponse, ResponseOrLoss, pull_fields
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.schedule import draw_broker_scenario
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.net.connection import ClientConnection
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import decode_records
from raftlog.consensus.types import NodeId

READERS = 10
SECONDS = 40.0
SLOW = Mood(seconds=2.0)
"""A request takes up to 4 s; readers are told to try again after 5 s."""


class SlowStore(Archive):
    """One broker and nothing but a slow store; ten readers that begin at the first message again and again."""

    def __init__(self, cluster: Any) -> None:
        super().__init__(cluster)
        self.answers: Counter[int | LostResponse] = Counter()
        self.messages = 0
        self._offsets = [0] * READERS

    def settings(self) -> dict[str, Any]:
        given = {"archive_cache_bytes": 0, "archive_retention_bytes": None, "idle_seconds_max": 3.0}
        return super().settings() | given

    def limits(self, drawn: BrokerLimits) -> BrokerLimits:
        quick = super().limits(DEFAULT).archive
        archive = replace(quick, silent_seconds=300.0, read_memory_bytes=1 << 16, read_wait_seconds=5.0)
        return replace(DEFAULT, archive=archive)

    def begin(self) -> None:
        super().begin()
        for number in range(READERS):
            client = Client(self.cluster, 100 + number, self.on_broker_request)
            self.cluster.at(8.0, self._pull, client, number)

    def _change_mood(self) -> None:
        self.bucket.mood = SLOW if 6.0 < self.cluster.now < SECONDS else CALM
        self.cluster.at(self.cluster.now + 1.0, self._change_mood)

    def _harm(self) -> None:
        pass

    def _pull(self, client: Client, number: int) -> None:
        queue_id = number % self.queues

        def done(answer: ResponseOrLoss) -> None:
            self.answers[answer.code if isinstance(answer, ClientResponse) else answer] += 1
            if isinstance(answer, ClientResponse) and answer.code == ResponseCode.SUCCESS:
                count = len(list(decode_records(answer.body)))
                self.messages += count
                self._offsets[number] += count
            else:
                self._offsets[number] = 0 if answer is not LostResponse.UNKNOWN else self._offsets[number]
            if self.cluster.now < SECONDS:
                self.cluster.at(self.cluster.now + 0.01, self._pull, client, number)

        code = RequestCode.PULL_MESSAGE
        ext = pull_fields("G3", self.topic, queue_id, self._offsets[number], 32)
        client.request(self.cluster.some_node(self.rng), code, ext, b"", done, seconds=60.0)


@pytest.mark.slow
def test_cold_readers_of_a_slow_store_are_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit of a client's connection has a reason of its own with which the broker closes it."""
    node = NodeId("n0")
    drawn = draw_broker_scenario(3, "archive", SECONDS)
    scenario = replace(
        drawn, nodes=(node,), spares=(), priorities=(0,), clock_rates=(1.0,), faults=(), kinds=(), wall_skew_ms=0
    )
    closed: Counter[str] = Counter()
    readers = {f"10.1.0.{101 + number}" for number in range(READERS)}
    close: Callable[[ClientConnection, str], None] = ClientConnection._on_close

    def noted(connection: ClientConnection, reason: str) -> None:
        if connection.peer.partition(":")[0] in readers:
            closed["idle, behind the last pull" if cluster.now > SECONDS and reason == "idle" else reason] += 1
        close(connection, reason)

    monkeypatch.setattr(ClientConnection, "_on_close", noted)
    cluster = BrokerCluster(SlowStore.adapt(scenario), SlowStore)
    cluster.run()
    workload = cluster.workload
    assert isinstance(workload, SlowStore)
    assert closed["idle, behind the last pull"] >= 1, "they are seen"
    assert workload.messages > 100
    assert workload.answers[LostResponse.UNREACHABLE] == 0
    assert workload.counts["files deleted locally"] > 5
    others = ("idle, behind the last pull", "closed by peer", "receive failed", "send failed", "broker stops")
    assert not [reason for reason in closed if not reason.startswith(others)], closed
