"""When a replica notes, before it takes another log, that other replicas may have what that one lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.log_numbers import LogIndex
from raftlog.log_transfer import note_reset
from raftlog.segment import EARLY, EARLY_ELSEWHERE

BASE = LogIndex(100)
"""Of the log that was fetched."""


class Replica:
    """What `note_reset` asks of a replica."""

    def __init__(self, leader_base: int | None, *, may_lack: bool, notes: dict[str, bytes]) -> None:
        self.core = SimpleNamespace(leader_may_lack_entries=may_lack, leader_base=leader_base)
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


def test_whole_log_is_not_noted_nor_is_anything_noted_twice() -> None:
    assert not noted(0, 0, may_lack=True)
    assert not noted(0, notes={EARLY: b"older"}, may_lack=True)
