"""Each change of a replica's role comes with the reason for it."""

from __future__ import annotations

import pytest

from raftlog.consensus.causes import Cause, CauseKind
from raftlog.consensus.effects import Effects
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import CoreConfig, NodeId, Role
from tests.paper.group import A, B, C, Group


class Told(RaftCore):
    """A core that keeps the causes it told."""

    causes: dict[NodeId, list[Cause]]

    def take_effects(self) -> Effects:
        effects = super().take_effects()
        if effects.role is not None and effects.role.cause is not None:
            self.causes.setdefault(self.node_id, []).append(effects.role.cause)
        return effects


@pytest.fixture
def causes(monkeypatch: pytest.MonkeyPatch) -> dict[NodeId, list[Cause]]:
    kept: dict[NodeId, list[Cause]] = {}
    monkeypatch.setattr(Told, "causes", kept, raising=False)
    return kept


def led_by_a() -> Group:
    return Group(core_class=Told).led_by(A, 1.0)


def test_silence_of_a_leader_is_reported_with_its_length(causes: dict[NodeId, list[Cause]]) -> None:
    group = led_by_a()
    heard_at = group.now
    group.now = group[B].next_deadline()
    group.tick(B)
    last = causes[B][-1]
    assert (last.kind, last.node) == (CauseKind.LEADER_SILENT, A)
    assert last.seconds == pytest.approx(group.now - heard_at, abs=0.21)
    assert str(Cause(CauseKind.LEADER_SILENT, "n2", 1.02)) == "no message from leader n2 for 1,020 ms"


def test_leader_reports_silence_of_the_majority(causes: dict[NodeId, list[Cause]]) -> None:
    group = led_by_a()
    group.cut = {(B, A), (C, A)}
    group.pass_time(2.0, alive=(A,))
    lost = [cause for cause in causes[A] if cause.kind is CauseKind.MAJORITY_SILENT]
    assert len(lost) == 1
    assert lost[0].seconds is not None
    assert lost[0].seconds > CoreConfig().election_timeout_seconds_min


def test_election_is_reported_step_by_step(causes: dict[NodeId, list[Cause]]) -> None:
    led_by_a()
    assert [cause.kind for cause in causes[A]] == [CauseKind.NO_LEADER, CauseKind.PRE_VOTE_WON, CauseKind.ELECTED]
    assert causes[B][-1] == Cause(CauseKind.LEADER_FOUND, A)


def test_transfer_is_reported_by_both_sides(causes: dict[NodeId, list[Cause]]) -> None:
    group = led_by_a()
    assert group[A].transfer(B, group.now) is None
    group.deliver()
    assert group[B].role is Role.LEADER
    assert Cause(CauseKind.HANDED_OVER, B) in causes[A]
    assert Cause(CauseKind.ASKED_TO_LEAD, A) in causes[B]


def test_hanging_disk_is_reported(causes: dict[NodeId, list[Cause]]) -> None:
    group = led_by_a()
    group[A].disk_slow(1.2, group.now)
    group.pump()
    assert causes[A][-1] == Cause(CauseKind.DISK_SLOW, None, 1.2)


def test_end_of_the_leader_process_is_reported(causes: dict[NodeId, list[Cause]]) -> None:
    group = led_by_a()
    group[B].peer_lost(A, group.now)
    group.pump()
    assert Cause(CauseKind.LEADER_ENDED, A) in causes[B]


@pytest.mark.parametrize("kind", CauseKind)
def test_every_cause_has_a_description(kind: CauseKind) -> None:
    text = str(Cause(kind, "n2", 1.5))
    assert text
    assert "{" not in text
