"""Beginning from a snapshot and a log whose beginning is gone: the same queues as from the whole log."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mq.protocol.numbers import PhysicalOffset
from mq.store.checkpoint import Checkpoint, Checkpointer, encode_checkpoint, load_checkpoint
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.errors import CheckpointDamaged, RunInvalid, StoreLost
from mq.store.opening import LogBounds, OpenedStore, QueueCatchUp, ends_of, open_store
from mq.store.queue_capture import QueueRow
from mq.store.queue_store import QueueStore
from raftlog.log_numbers import NO_TERM, LogIndex, Term
from tests.unit.store.queue_log import ENTRY_BYTES, TINY, Log, apply, commit


def random_log(seed: int, events: int) -> Log:
    rng, log = random.Random(seed), Log()
    for _ in range(events):
        if rng.random() < 0.08:
            log.drop(rng.choice("ABC"))
        else:
            log.send(rng.choice("ABC"), rng.randrange(3), rng.randrange(1, 6))
    return log


def positions(log: Log) -> list[int]:
    """Where each event's entry begins; entry n + 1 is event n."""
    found, at = [], 0
    for event in log.events:
        found.append(at)
        if isinstance(event, QueueRun):
            at += len(event.entries) // QUEUE_ENTRY.size * ENTRY_BYTES
    return [*found, at]


def snapshot_at(log: Log, index: int, directory: Path) -> Checkpoint:
    store = open_store(str(directory), TINY).queues
    for event in log.events[:index]:
        apply(store, event)
    return Checkpoint(
        applied_index=LogIndex(index),
        applied_term=Term(1),
        applied_pos=PhysicalOffset(positions(log)[index]),
        queues=ends_of(store.table()),
        state=b"s",
    )


def replay(opened: OpenedStore, log: Log, until: int | None = None) -> None:
    catch_up: QueueCatchUp | None = opened.catch_up
    for index, event in enumerate(log.events, 1):
        if opened.checkpoint.applied_index < index <= (until or len(log.events)):
            apply(opened.queues, event)
            if catch_up is not None and index == catch_up.until_index:
                catch_up.add_ends(opened.queues)


def state(store: QueueStore, base_pos: int) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    while store.expire_some(PhysicalOffset(base_pos)):
        pass
    return {(q.topic, q.queue_id): (q.min_offset, q.max_offset, q.read(q.min_offset, 999)) for q in store.queues()}


def whole(directory: Path, log: Log, base_pos: int) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    store = open_store(str(directory), TINY).queues
    for event in log.events:
        apply(store, event)
    return state(store, base_pos)


def bounds(log: Log, base: int) -> LogBounds:
    return LogBounds(
        LogIndex(base), PhysicalOffset(positions(log)[base]), LogIndex(len(log.events)), lambda index: Term(1)
    )


def cases() -> Iterator[tuple[int, int, int]]:
    rng = random.Random(7)
    for seed in range(60):
        base = rng.randrange(1, 30)
        yield seed, base, rng.randrange(base, 41)


@pytest.mark.parametrize(("seed", "base", "at"), list(cases()))
def test_app_snapshot_and_log_cut_queues_equal_a_full_replay(tmp_path: Path, seed: int, base: int, at: int) -> None:
    log = random_log(seed, 40)
    incoming = tmp_path / "incoming"
    incoming.write_bytes(encode_checkpoint(snapshot_at(log, at, tmp_path / "leader")))
    opened = open_store(str(tmp_path / "new"), TINY, log=bounds(log, base), incoming=str(incoming))
    assert not incoming.exists()
    assert opened.checkpoint.state == b"s"
    assert (opened.checkpoint.applied_index, opened.catch_up is None) == (base, at == base)
    replay(opened, log)
    base_pos = positions(log)[base]
    assert state(opened.queues, base_pos) == whole(tmp_path / "full", log, base_pos)


def test_crash_while_queues_are_filled_begins_from_the_snapshot_again(tmp_path: Path) -> None:
    log, new = random_log(3, 40), tmp_path / "new"
    incoming = tmp_path / "incoming"
    incoming.write_bytes(encode_checkpoint(snapshot_at(log, 30, tmp_path / "leader")))
    opened = open_store(str(new), TINY, log=bounds(log, 10), incoming=str(incoming))
    replay(opened, log, until=20)
    opened.queues.flush_all()
    opened.queues.close()
    again = open_store(str(new), TINY, log=bounds(log, 10), incoming=str(incoming))
    assert (again.checkpoint.applied_index, again.catch_up is not None) == (10, True)
    replay(again, log)
    pos = positions(log)
    pending = Checkpointer(str(new), again.queues).prepare(
        applied_index=LogIndex(40), applied_term=Term(1), applied_pos=PhysicalOffset(pos[40]), state=lambda: b"later"
    )
    assert commit(pending)
    assert not (new / "snapshot").exists()
    settled = open_store(str(new), TINY, log=bounds(log, 10), incoming=str(incoming))
    assert (settled.checkpoint.applied_index, settled.catch_up) == (40, None)
    assert state(settled.queues, pos[10]) == whole(tmp_path / "full", log, pos[10])


def _checkpointed(tmp_path: Path, log: Log, *indexes: int) -> Path:
    store, done = open_store(str(tmp_path / "own"), TINY).queues, 0
    checkpointer = Checkpointer(str(tmp_path / "own"), store)
    for index in indexes:
        for event in log.events[done:index]:
            apply(store, event)
        done = index
        store.flush_all()
        pending = checkpointer.prepare(
            applied_index=LogIndex(index),
            applied_term=Term(1),
            applied_pos=PhysicalOffset(positions(log)[index]),
            state=lambda: b"own",
        )
        assert commit(pending)
    store.close()
    return tmp_path / "own"


@pytest.mark.parametrize("lost", ["checkpoint", "queues"])
def test_older_checkpoint_is_used_if_the_log_beginning_is_gone(tmp_path: Path, lost: str) -> None:
    log = random_log(5, 40)
    own = _checkpointed(tmp_path, log, 20, 30)
    if lost == "checkpoint":
        (own / "checkpoint").write_bytes(b"rubbish")
    else:
        for path in (own / "queues").rglob("000*"):
            path.write_bytes(b"")
    opened = open_store(str(own), TINY, log=bounds(log, 15))
    assert opened.rebuild_reason is not None
    assert opened.catch_up is not None
    assert opened.catch_up.until_index == (20 if lost == "checkpoint" else 30)
    replay(opened, log)
    base_pos = positions(log)[15]
    assert state(opened.queues, base_pos) == whole(tmp_path / "full", log, base_pos)


def test_missing_log_beginning_without_a_record_is_reported(tmp_path: Path) -> None:
    log = random_log(5, 40)
    own = _checkpointed(tmp_path, log, 10, 12)
    with pytest.raises(StoreLost, match=r"begins at entry 16.*begins after entry 12"):
        open_store(str(own), TINY, log=bounds(log, 15))
    assert load_checkpoint(str(own)) is not None


def test_snapshot_older_than_the_checkpoint_is_put_away(tmp_path: Path) -> None:
    log = random_log(6, 40)
    incoming = tmp_path / "incoming"
    incoming.write_bytes(encode_checkpoint(snapshot_at(log, 15, tmp_path / "leader")))
    own = _checkpointed(tmp_path, log, 20)
    opened = open_store(str(own), TINY, log=bounds(log, 10), incoming=str(incoming))
    assert (opened.checkpoint.applied_index, opened.checkpoint.state) == (20, b"own")
    assert not incoming.exists()


def test_contradictory_snapshot_is_refused(tmp_path: Path) -> None:
    log = random_log(1, 40)
    snapshot = snapshot_at(log, 30, tmp_path / "leader")
    topic, rows = next(iter(snapshot.queues.items()))
    queue_id, low, high, tail = rows[0]
    lie = {**snapshot.queues, topic: [(queue_id, low + 1, high + 1, tail), *rows[1:]]}
    incoming = tmp_path / "incoming"
    incoming.write_bytes(encode_checkpoint(msgspec.structs.replace(snapshot, queues=lie)))
    opened = open_store(str(tmp_path / "new"), TINY, log=bounds(log, 5), incoming=str(incoming))
    with pytest.raises(
        RunInvalid, match=f"{topic}/{queue_id}: ends at {high} after entry 30, at {high + 1} in the snap"
    ):
        replay(opened, log)


@pytest.mark.parametrize(
    "queues",
    [
        {"../x": [(0, 1, 1, b"")]},
        {"T": [(-1, 1, 1, b"")]},
        {"T": [(2**31, 1, 1, b"")]},
        {"T": [(0, -1, 1, b"")]},
        {"T": [(0, 2, 1, b"")]},
        {"T": [(0, 2**63, 2**63, b"")]},
        {"T": [(0, 0, 1, bytes(19))]},
        {"T": [(0, 0, 1, bytes(40))]},
        {"T": [(0, 1, 1, b""), (0, 2, 2, b"")]},
    ],
)
def test_snapshot_with_impossible_queues_is_refused(tmp_path: Path, queues: dict[str, list[QueueRow]]) -> None:
    incoming = tmp_path / "incoming"
    incoming.write_bytes(encode_checkpoint(Checkpoint(applied_index=LogIndex(30), queues=queues)))
    with pytest.raises(StoreLost, match=r"queue|topic"):
        open_store(
            str(tmp_path / "new"),
            TINY,
            log=LogBounds(LogIndex(5), PhysicalOffset(1000), LogIndex(40), lambda index: NO_TERM),
            incoming=str(incoming),
        )


@pytest.mark.parametrize("name", ["applied_index", "applied_term", "applied_pos", "dropped_count"])
@pytest.mark.parametrize("number", [-1, 2**63])
def test_snapshot_with_impossible_numbers_is_refused(tmp_path: Path, name: str, number: int) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(
        encode_checkpoint(msgspec.structs.replace(Checkpoint(applied_index=LogIndex(30)), **{name: number}))
    )
    with pytest.raises(CheckpointDamaged, match=name):
        load_checkpoint(str(tmp_path), "snapshot")


def test_checkpoint_that_the_disk_does_not_give_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica derives all anew, rather than to refuse each start."""
    log = random_log(3, 30)
    (tmp_path / "checkpoint").write_bytes(encode_checkpoint(snapshot_at(log, 10, tmp_path / "source")))

    def read(path: str, mode: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr("mq.store.checkpoint.open", read, raising=False)
    opened = open_store(str(tmp_path), TINY)
    assert opened.checkpoint == Checkpoint()
    assert "the disk cannot read it" in (opened.rebuild_reason or "")
    replay(opened, log)
