"""Object storage in memory that is at least as unkind as S3: an operation may fail, even after it took effect.

As in S3, every client sees a write at once, conditions of writes hold, and objects appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Final

from raftlog.segment.backup_store import MANIFEST_NAME, ManifestChanged, NotStored, StoreFailed

REASONS: Final = ("503 SlowDown", "500 InternalError", "ExpiredToken", "connection reset")


class ProcessKilled(BaseException):
    """The process that calls the store is killed at this operation."""


class Bucket:
    """The objects of a bucket, by name, and how the bucket treats its callers.

    Attributes:
        fails: probability that an operation fails: in half of the cases after it has taken effect.
        tears: probability that an object is stored without its end, although the answer says that it is there.
        compares: whether it refuses an object whose checksum differs from the sent one.
        before: called with the name of each operation and object, before it happens; may raise `ProcessKilled`.
    """

    def __init__(self, rng: random.Random) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails = self.tears = 0.0
        self.compares = False
        self.before: Callable[[str, str], None] = lambda operation, name: None
        self.operations = 0
        self._rng = rng

    def run_operation(self, operation: str, name: str, effect: Callable[[], None]) -> None:
        """Run one operation, which may fail. Raises StoreFailed, ProcessKilled."""
        self.operations += 1
        self.before(operation, name)
        fails = self._rng.random() < self.fails
        if not fails or self._rng.random() < 0.5:
            effect()
        if fails:
            raise StoreFailed(name, operation, self._rng.choice(REASONS))

    def put(self, name: str, content: bytes) -> None:
        """Store an object, perhaps torn."""
        if content and self._rng.random() < self.tears:
            if self.compares:
                return
            content = content[: self._rng.randrange(len(content))]
        self.objects[name] = content

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        self.objects.pop(name, None)


class BucketStore:
    """The interface of a bucket for one process; a `mq.store.archive.archiver.ArchiveStore`.

    As the store for S3, it reads the object if its condition is not fulfilled: an earlier attempt may have succeeded.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.name = "s3://bucket"
        self._bucket = bucket
        self._version: str | None = None

    def path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def begin_writing(self) -> None:
        """Do nothing: a bucket needs no preparation."""

    def check_conditions(self) -> None:
        """Do nothing: the bucket fulfils conditions of writes."""

    def names(self, folder: str = "") -> Iterable[str]:
        prefix = folder and f"{folder}/"
        self._bucket.run_operation("list", folder, lambda: None)
        return {name[len(prefix) :].partition("/")[0] for name in self._bucket.objects if name.startswith(prefix)}

    def read(self, name: str, length: int, offset: int) -> bytes:
        self._bucket.run_operation("get", name, lambda: None)
        if name not in self._bucket.objects:
            raise NotStored(self.path(name))
        return self._bucket.objects[name][offset : offset + length]

    def read_range(self, name: str, length: int, offset: int) -> bytes:
        return self.read(name, length, offset)

    def load_manifest(self) -> bytes | None:
        self._bucket.run_operation("get", MANIFEST_NAME, lambda: None)
        content = self._bucket.objects.get(MANIFEST_NAME)
        self._version = _version(content)
        return content

    def replace_manifest(self, content: bytes) -> None:
        fulfilled = False

        def replace() -> None:
            nonlocal fulfilled
            fulfilled = _version(self._bucket.objects.get(MANIFEST_NAME)) == self._version
            if fulfilled:
                self._bucket.objects[MANIFEST_NAME] = content
                self.did_replace(content)

        self._bucket.run_operation("put", MANIFEST_NAME, replace)
        if not fulfilled and self.load_manifest() != content:
            raise ManifestChanged(self.name, "another run has changed this backup meanwhile")
        self._version = _version(content)

    def did_replace(self, content: bytes) -> None:
        """Handle that this process has replaced the manifest under its condition."""

    def write(self, name: str, pieces: Iterable[bytes]) -> bool:
        content = b"".join(pieces)
        assert name not in self._bucket.objects, f"{name} is written a second time"
        self._bucket.run_operation("put", name, lambda: self._bucket.put(name, content))
        if self._bucket.compares and name not in self._bucket.objects:
            raise StoreFailed(name, "put", "400 BadDigest")
        return self._bucket.compares

    def remove(self, name: str) -> None:
        self._bucket.run_operation("delete", name, lambda: self._bucket.remove(name))

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _version(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()
