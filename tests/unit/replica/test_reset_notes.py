"""When a replica notes, before it takes another log, that other replicas may have what that one lacks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from raftlog.consensus.types import NodeId
from raftlog.log_numbers import LogIndex
from raftlog.log_transfer import HEARING_SECONDS, hear_beginnings, note_reset
from raftlog.segment import EARLY, EARLY_ELSEWHERE

BASE = LogIndex(100)
"""Of the log that was fetched."""


class Replica:
    """What `note_reset` asks of a replica."""

    def __init__(self, leader_base: int | None, *, may_lack: bool, notes: dict[str, bytes]) -> None:
        self.core = SimpleNamespace(leader_may_lack_entries=may_lack, leader_base=leader_base, leader_id="n1")
        self.log = SimpleNamespace(notes=notes)
        self.noted: list[tuple[str, bytes]] = []

    def remember(self, key: str, value: bytes, then: Any) -> None:
        self.noted.append((key, value))
        then()


def noted(leader_base: int | None, base: int = BASE, *, may_lack: bool = False, notes: Any = None) -> bool:
    replica: Any = Replica(leader_base, may_lack=may_lack, notes=notes or {})
    done: list[bool] = []
    note_reset(replica, LogIndex(base), lambda: done.append(True))
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
def test_copy_that_begins_as_early_as_the_leader_is_not_noted(leader_base: int | None) -> None:
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
    replica: Any = Replica(99, may_lack=False, notes={})
    assert 1 <= waited(replica, "n1", heartbeat_after=1) < HEARING_SECONDS
    note_reset(replica, BASE, lambda: None)
    assert not replica.noted


def test_copy_of_a_leader_that_falls_silent_is_noted() -> None:
    replica: Any = Replica(99, may_lack=False, notes={})
    assert waited(replica, "n1") == HEARING_SECONDS
    note_reset(replica, BASE, lambda: None)
    assert replica.noted


def test_reset_notes_do_not_wait_for_irrelevant_heartbeats() -> None:
    assert waited(Replica(99, may_lack=False, notes={}), "n0") == 0
    assert waited(Replica(BASE, may_lack=False, notes={}), "n1") == 0
    assert waited(Replica(None, may_lack=False, notes={}), "n1") == 0


def test_new_leader_is_heard_before_its_copy_is_noted() -> None:
    assert 2 <= waited(Replica(BASE, may_lack=True, notes={}), "n1", heartbeat_after=2) < HEARING_SECONDS
