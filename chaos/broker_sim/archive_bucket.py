"""Simulates object storage that treats the archive of a group as badly as S3 may, and worse.

A request takes time to get there and back. It may be refused, or its answer be lost after it has taken effect; the
client of the store then sends it again, so that a write arrives twice, and late. It takes effect also if the process
that has sent it is killed meanwhile. Objects are stored torn, or rot; the manifest is replaced by an older one, or by
one of another log.

The bucket notes which positions a careful archiver may take for archived: see `ArchiveBucket.ends`.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from chaos.object_store import REASONS, Bucket, BucketStore
from chaos.strand import Strand
from chaos.violation import Violation
from raftlog.segment.backup_manifest import BackupManifest, StoredIndex, StoredObject, decode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, StoreFailed
from raftlog.segment.meta import Base


class Clock(Protocol):
    """The clock and the trace of the simulation, as the bucket uses them."""

    now: float

    def at(self, time: float, event: Callable[..., object], *arguments: object) -> None:
        """Run ``event`` at ``time``, in simulated seconds."""

    def trace_line(self, line: str) -> None:
        """Write a line to the trace."""


class Mood(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which the store treats requests for some time.

    ``seconds`` is the longest way there, and the longest way back. ``refuses``, ``loses_answers`` and ``tears`` are
    probabilities.
    """

    seconds: float = 0.02
    refuses: float = 0.0
    loses_answers: float = 0.0
    tears: float = 0.0


CALM: Final = Mood()
MOODS: Final = (
    CALM,
    Mood(seconds=0.3, refuses=0.2, loses_answers=0.2, tears=0.1),
    Mood(refuses=1.0),
    Mood(seconds=8.0, loses_answers=0.1),
    Mood(seconds=0.1, loses_answers=0.5, tears=0.2),
)


class ArchiveBucket(Bucket):
    """The bucket of a simulated archive, which checks what its writers promise.

    Attributes:
        mood: how it treats requests now.
        ends: the ends of the manifests that were written under their condition, whose objects were all intact, and had
            been read back after they were written, unless the store had compared them itself. No other position may be
            taken for archived.
        may_begin_at: up to this physical offset the group has agreed to delete the beginning of the archive.
        writes: objects as they were stored, whatever happened to them later.
    """

    def __init__(self, cluster: Clock, rng: random.Random, counts: Counter[str]) -> None:
        super().__init__(rng)
        self.mood = CALM
        self.ends: set[Base] = set()
        self._cluster = cluster
        self._counts = counts
        self.writes: dict[str, bytes] = {}
        self._read_back: set[str] = set()
        self._read: dict[str, int] = {}
        self._manifests: list[bytes] = []
        self._furthest = b""
        self.may_begin_at = 0

    def run_operation(self, operation: str, name: str, effect: Callable[[], None]) -> None:
        """Let an operation of the current strand take effect in simulated time, or fail. Raises StoreFailed."""
        strand, rng = Strand.current, self._rng
        if strand is None:
            raise Violation(f"the event loop waits for the store: {operation} {name}")
        self.operations += 1
        mood = self.mood
        there, back = rng.uniform(0.0, mood.seconds), rng.uniform(0.0, mood.seconds)
        if rng.random() < mood.refuses:
            strand.pause(there + back)
            self._counts["store: refused"] += 1
            raise StoreFailed(name, operation, rng.choice(REASONS))
        self._cluster.at(self._cluster.now + there, effect)
        if operation in ("put", "delete") and rng.random() < mood.loses_answers:
            self._counts["store: answer lost"] += 1
            if rng.random() < 0.5:
                strand.pause(there + back)
                raise StoreFailed(name, operation, "connection reset")
            again = rng.uniform(0.0, mood.seconds)  # perhaps before the first one, which is still on its way
            self._cluster.at(self._cluster.now + again, effect)
            there = max(there, again)
        strand.pause(there + back)

    def put(self, name: str, content: bytes) -> None:
        if content and self._rng.random() < self.mood.tears:
            self._counts["store: torn"] += 1
            if self.compares:
                return
            content = content[: self._rng.randrange(len(content))]
        self.objects[name] = content
        self.writes[name] = content
        self._read[name] = 0
        self._read_back.discard(name)

    def remove(self, name: str) -> None:
        """Remove an object. Raises Violation if the last manifest whose conditional write succeeded names it."""
        objects = decode_backup_manifest(self._manifests[-1]).objects if self._manifests else msgspec.UNSET
        if objects is not msgspec.UNSET and name in objects.names:
            raise Violation(f"{name} is deleted while the manifest names it")
        if name in self.objects:
            self._counts["store: deleted"] += 1
        super().remove(name)

    def on_read(self, name: str, offset: int, nbytes: int) -> None:
        """Record which bytes of an object a reader got."""
        if offset == self._read.get(name):
            self._read[name] = offset + nbytes
        if self._read.get(name, -1) >= len(self.writes.get(name, b"")):
            self._read_back.add(name)

    def newest(self) -> BackupManifest | None:
        """Return the manifest with the highest end, of those written under their condition; None before the first."""
        return decode_backup_manifest(self._furthest) if self._furthest else None

    def check_manifest(self, content: bytes) -> None:
        """Check a manifest that has just replaced the former one under its condition. Raises Violation."""
        manifest = decode_backup_manifest(content)
        assert manifest.objects is not msgspec.UNSET, "an archive without objects"
        is_sound = True
        for each in manifest.objects.files:
            if not each.verified:
                raise Violation(f"the manifest names {each.name}, which the replica says was not read back")
            objects: list[StoredObject | StoredIndex] = [each]
            objects += [] if each.index is None else [each.index]
            for one in objects:
                if one.name not in self._read_back and (one is not each or not self.compares):
                    raise Violation(f"the manifest names {one.name}, which was not read back")
                is_sound &= hashlib.sha256(self.writes[one.name]).hexdigest() == one.sha256
        if not is_sound:
            raise Violation(f"the manifest up to {manifest.archived} names an object that was stored torn")
        if manifest.base.pos > self.may_begin_at:
            raise Violation(f"the manifest begins at {manifest.base.pos}, the group serves from {self.may_begin_at} on")
        self._counts["store: manifests that begin later"] += manifest.base.pos > 0
        self._cluster.trace_line(f"the store has a manifest from {manifest.base.pos} to {manifest.archived}")
        self.ends.add(manifest.archived)
        self._manifests.append(content)
        newest = self.newest()
        if newest is None or manifest.archived.index >= newest.archived.index:
            self._furthest = content
        self._counts["store: manifests"] += 1

    # -- what happens to the bucket ------------------------------------------------------------------------------------

    def rot(self) -> None:
        """Flip a bit of an object."""
        names = sorted(name for name, content in self.objects.items() if content and name != MANIFEST_NAME)
        if names:
            name = self._rng.choice(names)
            content = bytearray(self.objects[name])
            content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
            self.objects[name] = bytes(content)
            self._counts["store: bit flipped"] += 1

    def roll_back(self) -> None:
        """Replace the manifest with an older one whose objects are all still stored."""
        older = [each for each in self._manifests[:-1] if self._is_there(each)]
        if older:
            self.objects[MANIFEST_NAME] = self._rng.choice(older)
            self._counts["store: rolled back"] += 1
            self._cluster.trace_line("somebody rolls the manifest back")

    def _is_there(self, content: bytes) -> bool:
        objects = decode_backup_manifest(content).objects
        return objects is not msgspec.UNSET and objects.names <= self.objects.keys()

    def replace_all(self, objects: dict[str, bytes]) -> None:
        """Add other objects, such as a former group's archive; objects with other names stay."""
        self.objects |= objects
        self._counts["store: of another log"] += 1
        self._cluster.trace_line("somebody puts another log there")

    def mend(self) -> None:
        """Restore all objects as they were written, and the manifest with the highest end."""
        self._cluster.trace_line("somebody mends the store")
        self.mood = CALM
        for name in self.objects:
            if name in self.writes:
                self.objects[name] = self.writes[name]
        if self._furthest:
            self.objects[MANIFEST_NAME] = self._furthest


class ArchiveBucketStore(BucketStore):
    """The interface of an `ArchiveBucket` for one process."""

    def __init__(self, bucket: ArchiveBucket) -> None:
        super().__init__(bucket)
        self._archive_bucket = bucket

    def read(self, name: str, length: int, offset: int) -> bytes:
        data = super().read(name, length, offset)
        self._archive_bucket.on_read(name, offset, len(data))
        return data

    def did_replace(self, content: bytes) -> None:
        self._archive_bucket.check_manifest(content)
