"""Seeds of a replica that joins: the store fails, lies and lags at any step, and the replica is killed at any step."""

from __future__ import annotations

import random

import pytest

from chaos.broker_sim.former_group import former_archive
from chaos.disk import MemoryDisk
from chaos.object_store import Bucket, BucketStore
from mq.store.archive.whole_files import open_joining
from raftlog.segment import SegmentError
from raftlog.segment.backup_manifest import decode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, StoreFailed
from raftlog.segment.limits import LogLimits
from raftlog.segment.meta import Base
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall
from tests.support.archived_logs import SEGMENT_BYTES, MessageLog, new_bucket, steps

LIMITS = LogLimits(piece_bytes=1024)
NEW = "/new/commitlog"


class UnkindBucket:
    """An archive to which things happen before a request."""

    def __init__(self, bucket: Bucket, rng: random.Random) -> None:
        self.bucket = bucket
        self._rng = rng
        self._intact = dict(bucket.objects)
        manifest = decode_backup_manifest(bucket.objects[MANIFEST_NAME])
        assert manifest.objects
        self._former = former_archive(manifest, bucket.objects, len(manifest.objects.files))
        self._is_gone = False

    def happen(self) -> None:
        chance = self._rng.random()
        objects = self.bucket.objects
        if chance < 0.03:
            name = self._rng.choice(sorted(objects))
            content = bytearray(objects[name])
            content[self._rng.randrange(len(content))] ^= 1
            objects[name] = bytes(content)
        elif chance < 0.05:
            del objects[self._rng.choice(sorted(objects))]
        elif chance < 0.07:
            objects |= self._former
        elif chance < 0.3:
            objects |= self._intact
        self._is_gone = self._rng.random() < 0.05
        if self._is_gone:
            raise StoreFailed("s3://bucket", "get", "no answer")


class UnkindStore(BucketStore):
    def __init__(self, unkind: UnkindBucket) -> None:
        super().__init__(unkind.bucket)
        self._unkind = unkind

    def read_range(self, name: str, length: int, offset: int) -> bytes:
        self._unkind.happen()
        return super().read_range(name, length, offset)

    def load_manifest(self) -> bytes | None:
        self._unkind.happen()
        return super().load_manifest()


def join(seed: int) -> tuple[int, int, int]:
    """Let a replica get the log; pieces from the archive, pieces from the leader, and how often it was killed."""
    rng = random.Random(f"{seed} joins")
    messages = MessageLog()
    messages.send(rng.randint(60, 150))
    bucket = new_bucket(seed)
    found = [step for step in steps(messages, bucket) if step.index]
    number = rng.randrange(len(found))  # the leader may know of less than what is there
    archived = Base(found[number].index, found[number].term, found[number].pos, found[number].chain)  # type: ignore[arg-type]
    unkind = UnkindBucket(bucket, rng)
    messages.send(rng.randint(0, 60))
    manifest = messages.log.manifest(messages.log.last_index, conf=b"")
    manifest = Manifest(manifest.base, manifest.last, b"", SEGMENT_BYTES, archived=archived)
    source, disk = messages.source(), MemoryDisk()
    from_archive = from_leader = kills = 0
    while True:
        staging = SnapshotInstall(disk, NEW, manifest, limits=LIMITS)
        reader = open_joining(
            archived,
            open_store=lambda: UnkindStore(unkind),
            identity="c",
            segment_bytes=SEGMENT_BYTES,
            name="s3://bucket",
            blocks_max=rng.choice((1, 100)),
            clock=lambda: 0.0,
        )
        leaves = False
        while not staging.complete:
            wanted = staging.next_request()
            assert wanted is not None
            _, pos, nbytes = wanted
            if not leaves and pos < archived.pos:
                try:
                    data = reader.read(pos, nbytes)
                except SegmentError:
                    leaves = True
                    continue
                assert staging.accept("log", pos, data), f"seed {seed}: proven bytes at {pos} do not fit"
                from_archive += 1
            else:
                assert staging.accept("log", pos, source.read(pos, nbytes))
                from_leader += 1
            if rng.random() < 0.05:
                break
        if staging.complete:
            break
        kills += 1
        staging.close()
        if rng.random() < 0.5:
            disk.crash(rng)
    staging.finish()
    for start in manifest.starts:
        content = disk.content(f"{NEW}/reset/{start:020d}").ljust(SEGMENT_BYTES, b"\0")
        assert content == source.read(start, SEGMENT_BYTES), f"seed {seed}: file {start}"
    return from_archive, from_leader, kills


@pytest.mark.parametrize("first", [0, 20])
def test_joined_log_equals_the_log_of_the_group(first: int) -> None:
    sums = [sum(each) for each in zip(*(join(seed) for seed in range(first, first + 20)), strict=True)]
    assert min(sums) > 10, f"from the archive, from the leader, kills: {sums}"
