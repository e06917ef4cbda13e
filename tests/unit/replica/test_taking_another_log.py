"""Before a replica takes another log: what it notes, who tells it what only a learner has, which members it gets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import cbor2
import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from chaos.disk import MemoryDisk
from raftlog import ConfState
from raftlog.consensus.confchange import MEMBERS_MAX, encode_conf
from raftlog.consensus.types import Beginning, NodeId
from raftlog.log_numbers import LogIndex, Term
from raftlog.log_transfer import HEARING_SECONDS, Puller, hear_beginnings, record_reset
from raftlog.net.frames import InstallOffer, WireError
from raftlog.net.received_entries import check_configuration
from raftlog.net.transport import Transport
from raftlog.prefix_refill import PrefixRefill
from raftlog.replica import Replica
from raftlog.segment import EARLY, EARLY_ELSEWHERE
from raftlog.segment.codec import EntryRef
from raftlog.segment.disk import RealDisk
from raftlog.segment.meta import Base
from raftlog.segment.snapshot_install import Manifest, encode_manifest

BASE = LogIndex(100)
"""Of the log that was fetched."""


class NotingReplica:
    """What `record_reset` asks of a replica."""

    def __init__(self, leader_base: int | None, *, may_lack: bool, notes: dict[str, bytes]) -> None:
        self.core = SimpleNamespace(leader_may_lack_entries=may_lack, leader_base=leader_base, leader_id="n1")
        self.log = SimpleNamespace(notes=notes)
        self.noted: list[tuple[str, bytes]] = []

    def remember(self, key: str, value: bytes, then: Any) -> None:
        self.noted.append((key, value))
        then()


def noted(leader_base: int | None, base: int = BASE, *, may_lack: bool = False, notes: Any = None) -> bool:
    replica: Any = NotingReplica(leader_base, may_lack=may_lack, notes=notes or {})
    done: list[bool] = []
    record_reset(replica, LogIndex(base), lambda: done.append(True))
    assert done == [True]
    assert replica.noted in ([], [(EARLY, EARLY_ELSEWHERE)])
    return bool(replica.noted)


def test_copy_of_a_leader_that_may_lack_entries_is_noted() -> None:
    assert noted(BASE, may_lack=True)


@pytest.mark.parametrize("leader_base", [0, 99])
def test_copy_that_begins_later_than_the_present_leader_is_noted(leader_base: int) -> None:
    """It comes from an earlier leader, which had deleted early."""
    assert noted(leader_base)


@pytest.mark.parametrize("leader_base", [100, 200, None])
def test_copy_as_long_as_the_leaders_log_is_not_noted(leader_base: int | None) -> None:
    assert not noted(leader_base)


def test_reset_notes_skip_whole_logs_and_repetitions() -> None:
    assert not noted(0, 0, may_lack=True)
    assert not noted(0, notes={EARLY: b"older"}, may_lack=True)


def waited(replica: Any, source: str, heartbeat_after: float = math.inf, leader_base: int = BASE) -> float:
    """Seconds for which a copy of the log of `source` waits while n1 leads; that tells its base with a heartbeat."""

    async def heartbeat() -> None:
        await trio.sleep(heartbeat_after)
        replica.core.leader_base, replica.core.leader_may_lack_entries = leader_base, False

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(heartbeat)
            begun = trio.current_time()
            await hear_beginnings(replica, NodeId(source), BASE)
            nursery.cancel_scope.cancel()
            return trio.current_time() - begun
        raise AssertionError("cancelled")

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_leader_that_deleted_files_is_heard_before_noting_its_copy() -> None:
    """Its copy was noted as if it came from an earlier leader, and transfers to the replica were refused."""
    replica: Any = NotingReplica(99, may_lack=False, notes={})
    assert 1 <= waited(replica, "n1", heartbeat_after=1) < HEARING_SECONDS
    record_reset(replica, BASE, lambda: None)
    assert not replica.noted


def test_copy_of_a_leader_that_falls_silent_is_noted() -> None:
    replica: Any = NotingReplica(99, may_lack=False, notes={})
    assert waited(replica, "n1") == HEARING_SECONDS
    record_reset(replica, BASE, lambda: None)
    assert replica.noted


def test_reset_notes_do_not_wait_for_irrelevant_heartbeats() -> None:
    assert waited(NotingReplica(99, may_lack=False, notes={}), "n0") == 0
    assert waited(NotingReplica(BASE, may_lack=False, notes={}), "n1") == 0
    assert waited(NotingReplica(None, may_lack=False, notes={}), "n1") == 0


def test_new_leader_is_heard_before_its_copy_is_noted() -> None:
    assert 2 <= waited(NotingReplica(BASE, may_lack=True, notes={}), "n1", heartbeat_after=2) < HEARING_SECONDS


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
async def test_replicas_in_other_states_suggest_no_promotion(replica: ShortLeader, autojump_clock: MockClock) -> None:
    assert await told(replica) == []


async def test_needed_promotion_is_not_reported_without_disk_room(autojump_clock: MockClock) -> None:
    assert await told(ShortLeader(), room=0) == []
    assert await told(ShortLeader(), room=-1) == []


LEADER = NodeId("n0")


def configuration(members: int, host_length: int) -> ConfState:
    names = tuple(NodeId(f"n{number}") for number in range(members))
    return ConfState(names, (), (), tuple((name, "h" * host_length + ":10931") for name in names))


def offer(conf: bytes) -> InstallOffer:
    last = EntryRef(index=LogIndex(9), term=Term(2), kind=1, pos=8192, size=100, chain=7)
    return InstallOffer(2, encode_manifest(Manifest(Base(LogIndex(5), Term(1), 4096, 3), last, conf, 4096)))


def puller(initial: ConfState) -> Puller:
    nothing: Any = None
    log = structlog.stdlib.get_logger()
    return Puller(MemoryDisk(), "/log", 4096, nothing, nothing, lambda: None, log, initial=initial)


@pytest.mark.parametrize(
    "conf",
    [encode_conf(configuration(5, 250)), encode_conf(configuration(MEMBERS_MAX + 1, 1)), cbor2.dumps(["n0"])],
)
def test_offer_with_a_configuration_that_no_change_makes_is_refused(conf: bytes) -> None:
    with pytest.raises(WireError):
        puller(configuration(3, 20)).on_offer(LEADER, offer(conf))


def test_offer_with_a_reachable_configuration_is_accepted() -> None:
    puller(ConfState()).on_offer(LEADER, offer(encode_conf(configuration(5, 60))))


def test_founders_accept_their_initial_configuration() -> None:
    founders = configuration(5, 250)
    puller(founders).on_offer(LEADER, offer(encode_conf(founders)))


def test_configuration_too_large_for_any_directory_is_refused() -> None:
    check_configuration(configuration(5, 60))
    with pytest.raises(ValueError, match=r"the configuration has 5 members and \d+ bytes"):
        check_configuration(configuration(5, 250))
