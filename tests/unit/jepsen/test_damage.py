"""Damage to files: it is there, it knows where, and it knows when it is gone."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from jepsen.damage.log_damage import (
    break_block,
    break_end,
    break_vote,
    closed_files,
    damage_all_copies,
    flip_bits,
    flip_property,
    forget_sidecars,
)
from jepsen.nemeses.rot import serves
from mq.protocol import properties
from mq.protocol.messages.records import decode_record, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset

CONTENT = bytes(range(1, 251)) * 40


@pytest.fixture
def commitlog(tmp_path: Path) -> Path:
    for position in (0, 10_000, 20_000):
        (tmp_path / f"{position:020d}").write_bytes(CONTENT)
    (tmp_path / f"{30_000:020d}").write_bytes(CONTENT[:6000] + bytes(4000))
    (tmp_path / "meta").write_bytes(bytes(8192))
    (tmp_path / f"{0:020d}.index").write_bytes(b"index")
    return tmp_path


def test_newest_file_is_not_closed(commitlog: Path) -> None:
    assert [path.name for path in closed_files(commitlog)] == [f"{at:020d}" for at in (0, 10_000, 20_000)]
    assert closed_files(commitlog / "missing") == []


def test_file_before_one_that_is_only_prepared_is_still_written(commitlog: Path) -> None:
    (commitlog / f"{40_000:020d}").write_bytes(bytes(100))
    assert [path.name for path in closed_files(commitlog)] == [f"{at:020d}" for at in (0, 10_000, 20_000)]


def test_flipped_bit_is_one_differing_byte_until_repaired(commitlog: Path) -> None:
    (damaged,) = flip_bits(Random(1), closed_files(commitlog)[:1], bits_max=1)
    assert (damaged.is_changed, damaged.changed_bytes, damaged.returns) == (True, 1, True)
    damaged.path.write_bytes(CONTENT)
    assert not damaged.is_changed


def test_file_deleted_by_retention_is_not_reported_as_changed(commitlog: Path) -> None:
    (damaged,) = flip_bits(Random(1), closed_files(commitlog)[:1], bits_max=1)
    damaged.path.unlink()
    assert not damaged.is_changed


def test_unused_rest_of_a_file_stays_unchanged(commitlog: Path) -> None:
    newest = commitlog / f"{30_000:020d}"
    for seed in range(50):
        flip_bits(Random(seed), [newest], bits_max=20)
    assert newest.read_bytes()[6000:] == bytes(4000)


def test_many_flipped_bits_always_change_the_file(commitlog: Path) -> None:
    for seed in range(50):
        for damaged in flip_bits(Random(seed), closed_files(commitlog), bits_max=20):
            assert damaged.is_changed
            damaged.path.write_bytes(CONTENT)


def test_damage_to_log_end_changes_only_written_bytes(commitlog: Path) -> None:
    newest = commitlog / f"{30_000:020d}"
    before = newest.read_bytes()
    for seed in range(50):
        (damaged,) = break_end(Random(seed), commitlog)
        assert damaged.is_changed
        assert not damaged.returns
        assert newest.read_bytes()[:1000] == before[:1000]
        newest.write_bytes(before)


def test_log_end_is_damaged_in_the_last_nonempty_file(commitlog: Path) -> None:
    (commitlog / f"{30_000:020d}").write_bytes(bytes(100))
    (damaged,) = break_end(Random(1), commitlog)
    assert damaged.path.name == f"{20_000:020d}"
    assert damaged.is_changed


def test_empty_log_has_no_end_to_break(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(100))
    assert break_end(Random(1), tmp_path) == []


def test_vote_file_loses_one_bit(commitlog: Path) -> None:
    (damaged,) = break_vote(Random(1), commitlog)
    assert damaged.changed_bytes == 1


def test_deleting_sidecars_keeps_the_log_files(commitlog: Path) -> None:
    forget_sidecars(commitlog)
    assert not list(commitlog.glob("*.index"))
    assert len(closed_files(commitlog)) == 3


def _log(directory: Path, contents: list[bytes]) -> Path:
    directory.mkdir(parents=True)
    for number, content in enumerate(contents):
        (directory / f"{number:020}").write_bytes(content)
    return directory


def test_helix_damages_every_replica_and_no_place_twice(tmp_path: Path) -> None:
    contents = [Random(number).randbytes(512 * 1024) for number in range(4)]
    logs = {node: _log(tmp_path / node, contents) for node in ("n0", "n1", "n2")}
    damaged = damage_all_copies(Random(1), logs)
    assert all(damaged.values())
    assert all(each.is_changed for its in damaged.values() for each in its)
    hit: dict[str, list[tuple[int, int]]] = {}
    for node, its in damaged.items():
        hit[node] = [
            (number, at)
            for number, content in enumerate(contents)
            for at, (a, b) in enumerate(zip((logs[node] / f"{number:020}").read_bytes(), content, strict=True))
            if a != b
        ]
        assert {number for number, _ in hit[node]} <= {0, 1, 2}, f"the newest file of {node} is still written"
        assert {each.path.name for each in its} == {f"{number:020}" for number, _ in hit[node]}
    near = [
        (one, other)
        for one, other in combinations(hit, 2)
        for number, at in hit[one]
        for other_number, other_at in hit[other]
        if number == other_number and abs(at - other_at) < 65536 + 4096
    ]
    assert not near, "an entry may be damaged on two replicas"


def test_helix_does_not_damage_files_that_differ(tmp_path: Path) -> None:
    logs = {node: _log(tmp_path / node, [node.encode() * 9000, b"x"]) for node in ("n0", "n1", "n2")}
    assert damage_all_copies(Random(1), logs) == {"n0": [], "n1": [], "n2": []}


@pytest.mark.parametrize("misdirected", [False, True])
def test_dropped_and_misdirected_blocks_differ_in_one_block(tmp_path: Path, misdirected: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(Random(1).randbytes(10 * 4096))
    (damaged,) = break_block(Random(2), path, misdirected=misdirected)
    assert damaged.is_changed
    assert 4000 < damaged.changed_bytes <= 4096
    now = path.read_bytes()
    (at,) = (at for at in range(10) if now[at * 4096 :][:4096] != damaged.before[at * 4096 :][:4096])
    assert now[at * 4096 :][:4096] in (
        [damaged.before[n * 4096 :][:4096] for n in range(10)] if misdirected else [bytes(4096)]
    )


def record(topic: str, own: dict[str, str]) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=1,
        body=b"body",
        properties=properties.encode(own),
        queue_offset=QueueOffset(7),
        physical_offset=PhysicalOffset(0),
        born_timestamp_ms=0,
        born_host=bytes(8),
        store_timestamp_ms=0,
        store_host=bytes(8),
    )


def test_bit_is_flipped_in_a_property_of_a_client_message(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    internal = record("RMQ_SYS_TRANS", {"jepsen": "9.9.9"})
    path.write_bytes(b"entry header" + internal + record("Log", {"jepsen": "3.0.0"}))
    found = flip_property(Random(1), [path])
    assert found is not None
    damaged, message = found
    assert (message.topic, message.queue_id, message.queue_offset) == ("Log", 1, 7)
    assert damaged.changed_bytes == 1
    now = decode_record(memoryview(path.read_bytes()), offset=len(b"entry header") + len(internal))
    assert now.properties["jepsen"] == "2.0.0"


def test_reader_detects_a_changed_property() -> None:
    sent = record("Log", {"jepsen": "3.0.0"})
    message = decode_record(memoryview(sent))
    assert serves(message, sent)
    assert not serves(message, record("Log", {"jepsen": "2.0.0"}))
    assert not serves(message, sent + sent)
    assert not serves(message, b"")
    assert not serves(message, sent[:-1])


def test_file_without_client_messages_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(CONTENT)
    assert flip_property(Random(1), [path]) is None
    assert path.read_bytes() == CONTENT
