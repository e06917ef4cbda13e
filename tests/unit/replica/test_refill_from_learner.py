"""Who is told that only a learner has what this replica deleted early, and when: see decision 42."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from raftlog.consensus.types import Beginning, NodeId
from raftlog.log_numbers import LogIndex
from raftlog.net.transport import Transport
from raftlog.prefix_refill import PrefixRefill
from raftlog.replica import Replica
from raftlog.segment.disk import RealDisk

N0, N3 = NodeId("n0"), NodeId("n3")


@dataclass
class ShortLeader:
    """A leader that deleted early what ``holder`` has."""

    holder: NodeId | None = N3
    state: Beginning = Beginning.LATER
    learners: tuple[NodeId, ...] = (N3,)
    successor: NodeId | None = None
    is_leader: bool = True
    log: Any = field(default_factory=lambda: SimpleNamespace(first_index=LogIndex(8), base=(LogIndex(7), 1)))

    @property
    def core(self) -> Any:
        conf = SimpleNamespace(learners=self.learners)
        return SimpleNamespace(
            conf=conf, successor_with_older_log=self.successor, leader_id=None, leader_base=None, node_id=N0
        )

    def beginning(self) -> tuple[Beginning, NodeId | None]:
        return self.state, self.holder


async def told(replica: ShortLeader, room: int = 1, seconds: float = 60.0) -> list[Any]:
    """The events of a minute."""
    refill = PrefixRefill(
        RealDisk(),
        "nowhere",
        1024,
        cast("Replica", replica),
        cast("Transport", None),
        lambda: room,
        partial(pytest.fail, "a leader has fetched something"),
        structlog.get_logger(),
    )
    with capture_logs() as events, trio.move_on_after(seconds):
        await refill.run()
    return list(events)


async def test_leader_names_the_learner_once(autojump_clock: MockClock) -> None:
    [event] = await told(ShortLeader())
    assert (event["event"], event["log_level"]) == ("refill_needs_promotion", "warning")
    assert (event["learner"], event["first_index"]) == (N3, 8)
    assert "raftmq group promote n3" in event["reason"]


@pytest.mark.parametrize(
    "replica",
    [
        pytest.param(ShortLeader(is_leader=False), id="follower"),
        pytest.param(ShortLeader(successor=NodeId("n1")), id="a voter takes over"),
        pytest.param(ShortLeader(holder=NodeId("n1"), learners=()), id="a voter has them"),
        pytest.param(ShortLeader(holder=None, state=Beginning.FIRST), id="nobody has them"),
        pytest.param(ShortLeader(holder=None, state=Beginning.UNKNOWN), id="not known yet"),
    ],
)
async def test_replicas_in_other_states_need_no_promotion(replica: ShortLeader, autojump_clock: MockClock) -> None:
    assert await told(replica) == []


async def test_needed_promotion_is_not_reported_without_disk_room(autojump_clock: MockClock) -> None:
    assert await told(ShortLeader(), room=0) == []
    assert await told(ShortLeader(), room=-1) == []
