"""Clients that are kept out by what the log says: thousands of them are not dealt with in one step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import structlog

from mq.broker.admin import removed_members
from mq.broker.admin.removed_members import RemovedMembers
from mq.broker.net.clients import ClientRegistry
from mq.broker.state.removed_members import REMOVED_MEMBERS_MAX, RemoveOrReadmit, ReplicatedRemovals
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData

NOW_MS = 1_800_000_000_000


class Started:
    """A replica that finds in its log who is kept out."""

    def __init__(self) -> None:
        self.registry: ClientRegistry[Any] = ClientRegistry()
        self.state = ReplicatedRemovals()
        self.now = 0.0
        self.ended: list[str] = []
        self.notified: list[str] = []
        context = SimpleNamespace(
            clients=self.registry,
            clock=lambda: self.now,
            wall_clock_ms=lambda: NOW_MS,
            metadata=SimpleNamespace(kept_out=self.state, format_level=SimpleNamespace(level=8)),
            appender=SimpleNamespace(is_open=True),
            log=structlog.get_logger(),
        )
        self.service = RemovedMembers(
            cast("Any", context),
            notify=lambda notices: self.notified.extend(group for group, _ in notices),
            send_notice=lambda group, connections: None,
            end_waiting=[lambda group, client_id, connections: self.ended.append(client_id)],
        )

    def keep_out(self, client_id: str, seconds: int = 600) -> None:
        self.state.apply(
            RemoveOrReadmit(group="g", client_id=client_id, until_ms=NOW_MS + 1000 * seconds, now_ms=NOW_MS)
        )

    def join(self, client_id: str) -> None:
        data = ConsumerData("g", [SubscriptionData("T")])
        self.registry.heartbeat(0.0, client_id, HeartbeatData(client_id=client_id, consumers=[data]), "JAVA", 409)


def test_thousands_of_removed_members_are_handled_in_steps() -> None:
    started = Started()
    rows = [("g", f"c{number:05}", NOW_MS + 600_000, "", "") for number in range(REMOVED_MEMBERS_MAX)]
    started.state.restore(rows)
    started.service.follow_and_expire()
    assert len(started.registry.removed_members.table) == REMOVED_MEMBERS_MAX, "nobody gets a message"
    assert not started.ended
    turns = 0
    while len(started.ended) < REMOVED_MEMBERS_MAX:
        before = len(started.ended)
        started.service.end_some()
        turns += 1
        assert 0 < len(started.ended) - before <= removed_members._ENDED_AT_ONCE
    assert turns == REMOVED_MEMBERS_MAX / removed_members._ENDED_AT_ONCE
    started.service.follow_and_expire()
    started.service.end_some()
    assert len(started.ended) == REMOVED_MEMBERS_MAX, "once for each"
    started.registry.check_invariants()


def test_member_excluded_by_the_log_is_removed_at_once() -> None:
    started = Started()
    started.join("c1")
    started.join("c2")
    started.keep_out("c1")
    started.service.follow_and_expire()
    assert started.registry.consumer_ids("g") == ["c2"]
    assert (started.ended, started.notified) == (["c1"], ["g"])
    started.registry.check_invariants()


def test_client_readmitted_during_the_removal_stays() -> None:
    started = Started()
    started.keep_out("c1")
    started.service.follow_and_expire()
    started.keep_out("c1", seconds=0)
    started.service.follow_and_expire()
    started.service.end_some()
    assert not started.ended
    assert not started.registry.removed_members.table
