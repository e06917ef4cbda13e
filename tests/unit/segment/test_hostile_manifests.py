"""What a peer offers in place of a whole log: numbers that no log has are refused, entries that nobody can use too."""

from __future__ import annotations

import random
from collections import Counter

import cbor2
import msgspec
import pytest

from chaos.disk import MemoryDisk
from raftlog.segment.codec import NORMAL, EntryRef
from raftlog.segment.snapshot_install import SnapshotInstall, decode_manifest, encode_manifest
from tests.support.log_fetches import LIMITS, fill, manifest_of, pull
from tests.unit.segment.log_home import DIRECTORY, LogHome

EDGES: tuple[object, ...] = (
    -1,
    0,
    1,
    4095,
    4096,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    "",
    None,
    b"x",
    [],
    {},
)


def test_manifest_is_refused_or_can_be_gathered() -> None:
    home = LogHome()
    good = manifest_of(fill(home, 95))
    assert decode_manifest(encode_manifest(good)) == good
    rng = random.Random(3)
    outcomes: Counter[str] = Counter()
    for _ in range(600):
        fields = msgspec.to_builtins(good, builtin_types=(bytes,))
        for _ in range(rng.choice((1, 1, 2))):
            part = rng.choice((fields, fields["base"], fields["last"]))
            if isinstance(part, dict):
                part[rng.choice(list(part))] = rng.choice(EDGES)
        try:
            manifest = decode_manifest(cbor2.dumps(fields))
        except ValueError:
            outcomes["refused"] += 1
            continue
        outcomes["taken"] += 1
        if manifest.segment_bytes != good.segment_bytes:
            continue  # refused by whoever has files of another length
        staging = SnapshotInstall(MemoryDisk(), DIRECTORY, manifest, limits=LIMITS)
        for _ in range(5):
            assert staging.missing_bytes >= 0
            if (wanted := staging.next_request()) is None:
                break
            what, pos, nbytes = wanted
            staging.accept(what, pos, rng.randbytes(rng.choice((nbytes, nbytes, 0, 3))))
        staging.close()
    home.close_all()
    assert min(outcomes["refused"], outcomes["taken"]) > 50, outcomes


def test_unusable_entry_is_requested_again() -> None:
    leader, home = LogHome(), LogHome()
    source = fill(leader, 95)
    bad = 30
    refused: list[int] = []

    def check(ref: EntryRef, body: memoryview) -> None:
        if ref.index == bad and ref.kind == NORMAL:
            refused.append(ref.index)
            raise ValueError("no records")

    home.open().close()
    staging = SnapshotInstall(home.disk, DIRECTORY, manifest_of(source), check, limits=LIMITS)
    with pytest.raises(AssertionError):
        pull(staging, source, rng=random.Random(1))
    assert refused
    assert not staging.complete
    staging.close()
    leader.close_all()
