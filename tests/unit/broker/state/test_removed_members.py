"""The replicated table of clients that are kept out of groups."""

from __future__ import annotations

import pytest

from mq.broker.state.commands import encode_command
from mq.broker.state.removed_members import REMOVED_MEMBERS_MAX, RemoveOrReadmit, ReplicatedRemovals
from mq.broker.state.table import CommandInvalid


def keep_out(client_id: str, until_ms: int, now_ms: int = 1000, group: str = "G") -> RemoveOrReadmit:
    return RemoveOrReadmit(
        group=group, client_id=client_id, until_ms=until_ms, now_ms=now_ms, reason="hangs", operator="ops"
    )


def test_removed_client_stays_out_until_its_time_or_readmission() -> None:
    kept = ReplicatedRemovals()
    kept.apply(keep_out("c", 5000))
    kept.apply(keep_out("d", 5000))
    assert kept.table["G", "c"] == (5000, "hangs", "ops")
    kept.apply(keep_out("c", 2000, now_ms=2000))
    assert list(kept.table) == [("G", "d")]
    kept.group_deleted("G")
    assert not kept.table


def test_expired_removals_make_room() -> None:
    kept = ReplicatedRemovals()
    kept.restore([("G", f"c{number}", 5000, "hangs", "ops") for number in range(REMOVED_MEMBERS_MAX - 1)])
    for number in range(REMOVED_MEMBERS_MAX - 1, REMOVED_MEMBERS_MAX + 1):
        kept.apply(keep_out(f"c{number}", 5000))
    assert len(kept.table) == REMOVED_MEMBERS_MAX
    kept.apply(keep_out("late", 9000, now_ms=5000))
    assert list(kept.table) == [("G", "late")]
    kept.check_invariants()


def test_snapshot_names_clients_kept_out() -> None:
    kept, again = ReplicatedRemovals(), ReplicatedRemovals()
    assert kept.capture()() is None
    kept.apply(keep_out("c", 5000))
    again.restore(kept.capture()())
    assert again.table == kept.table
    assert again.version > 0
    again.restore(None)
    assert not again.table


def test_long_client_ids_are_refused() -> None:
    with pytest.raises(CommandInvalid, match="1024 characters"):
        encode_command(keep_out("c" * 1025, 5000))
