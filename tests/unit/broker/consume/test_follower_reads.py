"""Where a consumer that lags is sent, and when it is called back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq.broker.consume.follower_reads import FollowerReads, memory_share
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import GroupConfig, PutGroup
from mq.broker.state.metadata import Metadata
from mq.protocol.numbers import PhysicalOffset
from raftlog import NodeId
from raftlog.consensus.types import PeerState, PeerStatus, Role
from raftlog.log_numbers import LogIndex
from raftlog.segment import EntryGone
from tests.support.broker_contexts import context_of

LAG_MAX = 1000
ENTRY_BYTES = 100


class Leader:
    """A leader whose entry number n ends at byte 100 n, and what it knows of its peers."""

    def __init__(self, *peers: PeerStatus) -> None:
        self.is_leader = True
        self.peers = peers
        self.core = self
        self.log = self
        self.asked = 0

    def status(self) -> Any:
        self.asked += 1
        return SimpleNamespace(peers=self.peers, base=SimpleNamespace(index=1), last=SimpleNamespace(index=500))

    def locate(self, index: int) -> Any:
        if index == 13:
            raise EntryGone("log", "index", index, 20)
        assert index <= 500, f"no entry {index}"
        return SimpleNamespace(pos=(index - 1) * ENTRY_BYTES, size=ENTRY_BYTES)


def peer(name: str, applied: int = 100, **given: Any) -> PeerStatus:
    fields: dict[str, Any] = {
        "match": 100,
        "next": 101,
        "state": PeerState.REPLICATE,
        "active": True,
        "disk_ok": True,
        "contact_at": 100.0,
    }
    return PeerStatus(peer=NodeId(name), applied=LogIndex(applied), **fields | given)


class Home:
    def __init__(self, leader: Leader, **settings: Any) -> None:
        self.now = 100.0
        self.metadata = Metadata()
        self.leader = leader
        self.slow = FollowerReads(
            context_of(
                settings=BrokerSettings(slow_consumer_bytes=LAG_MAX, **settings),
                replica=leader,
                metadata=self.metadata,
                clock=lambda: self.now,
            )
        )

    def suggest(self, lag: int, *, behind: int = 0, group: str = "G", queue_id: int = 0) -> int:
        return self.slow.suggest(group, "T", queue_id, PhysicalOffset(behind), lag)


def test_only_a_lagging_client_is_sent_to_a_follower() -> None:
    home = Home(Leader(peer("n1")))
    assert home.suggest(LAG_MAX) == 0
    assert home.leader.asked == 0
    assert home.suggest(LAG_MAX + 1) == 2


@pytest.mark.parametrize(
    "unfit",
    [
        peer("n1", contact_at=97.0),
        peer("n1", state=PeerState.PROBE),
        peer("n1", state=PeerState.SNAPSHOT),
        peer("n1", applied=0),
        peer("n1", applied=1),
        peer("n1", applied=13),
        peer("n1", applied=50),
    ],
    ids=["silent", "probed", "reset", "just joined", "at the base", "entry gone", "behind what is asked for"],
)
def test_leader_does_not_suggest_an_unfit_follower(unfit: PeerStatus) -> None:
    assert Home(Leader(unfit)).suggest(LAG_MAX + 1, behind=50 * ENTRY_BYTES) == 0
    assert Home(Leader(unfit, peer("n2"))).suggest(LAG_MAX + 1, behind=50 * ENTRY_BYTES) == 3


def test_preferred_replica_of_a_group_is_suggested_if_it_can_serve() -> None:
    home = Home(Leader(peer("n1"), peer("n2"), peer("n3")))
    for wish, suggested in ((4, 4), (3, 3)):
        config = GroupConfig(name="G", which_broker_when_consume_slowly=wish)
        home.metadata.apply(PutGroup(config=config, timestamp_ms=1))
        assert {home.suggest(LAG_MAX + 1, queue_id=queue_id) for queue_id in range(20)} == {suggested}
    config = GroupConfig(name="G", which_broker_when_consume_slowly=9)
    home.metadata.apply(PutGroup(config=config, timestamp_ms=1))
    assert home.suggest(LAG_MAX + 1) in (2, 3, 4)


def test_lagging_queues_are_spread_over_followers_and_keep_their_follower() -> None:
    home = Home(Leader(peer("n1"), peer("n2")))
    first = [home.suggest(LAG_MAX + 1, queue_id=queue_id) for queue_id in range(40)]
    assert 8 < first.count(2) < 32
    assert first.count(2) + first.count(3) == 40
    assert [home.suggest(LAG_MAX + 1, queue_id=queue_id) for queue_id in range(40)] == first
    assert home.leader.asked == 1


def test_knowledge_about_followers_is_soon_refreshed() -> None:
    home = Home(Leader(peer("n1")))
    assert home.suggest(LAG_MAX + 1) == 2
    home.leader.peers = ()
    home.now += 0.3
    assert home.suggest(LAG_MAX + 1) == 0


def test_follower_keeps_clients_far_behind_and_sends_near_ones_back() -> None:
    home = Home(Leader(), node_id="n2", peers="n2@127.0.0.1:1")
    home.leader.is_leader = False
    assert home.suggest(LAG_MAX * 5) == 3
    assert home.suggest(LAG_MAX // 2 + 1) == 3
    assert home.suggest(LAG_MAX // 2) == 0


@pytest.mark.parametrize(
    ("base", "behind", "only_here"), [(None, 0, False), (5, 0, False), (50, 4000, True), (50, 5000, False)]
)
def test_follower_keeps_clients_of_messages_that_the_leader_has_deleted(
    base: int | None, behind: int, only_here: bool
) -> None:
    assert following(base).is_only_here(PhysicalOffset(behind)) is only_here


def test_follower_keeps_clients_that_read_deleted_messages() -> None:
    assert following(501).is_only_here(PhysicalOffset(4000))


def following(leader_base: int | None) -> FollowerReads:
    """A follower with the entries 6 to 500, whose leader has those behind ``leader_base``."""
    home = Home(leader := Leader(), node_id="n2", peers="n2@127.0.0.1:1")
    leader.is_leader = False
    for name, value in {
        "leader_base": leader_base,
        "base": SimpleNamespace(index=5),
        "role": Role.FOLLOWER,
        "last_index": 500,
    }.items():
        setattr(leader, name, value)
    return home.slow


def test_default_lag_limit_is_a_share_of_memory() -> None:
    slow = FollowerReads(
        context_of(settings=BrokerSettings(), replica=Leader(), metadata=Metadata(), clock=lambda: 0.0)
    )
    assert slow.lag_max == memory_share() > 100_000_000
