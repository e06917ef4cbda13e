"""A backup of objects that are never changed: valid after whatever ends a run, and whatever other runs do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from raftlog.log_numbers import LogIndex
from raftlog.segment.backup import Backup, BackupTarget
from raftlog.segment.backup_layouts import LEFTOVERS_STAY_MS, Snapshot
from raftlog.segment.backup_manifest import BackupManifest, decode_backup_manifest, encode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME, BackupDamaged, BackupRefused, NotStored, StoreFailed
from raftlog.segment.running_log import RunningLog
from tests.unit.segment.committed_logs import body, filled
from tests.unit.segment.log_home import DIRECTORY, LogHome

NOW_MS = 1_800_000_000_000


class Bucket:
    """Objects by name. Raises `StoreFailed` in place of the operation number ``fails_at``."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_at = -1

    def operation(self, name: str) -> None:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise StoreFailed(name, "whatever", "the test says so")


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


class BucketStore:
    """A bucket as one process sees it. ``conditional`` says whether it takes conditions for a write."""

    def __init__(self, bucket: Bucket, *, conditional: bool = True) -> None:
        self.name = "s3://bucket"
        self._bucket = bucket
        self._conditional = conditional
        self._loaded: bytes | None = None

    def path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def begin_writing(self) -> None:
        pass

    def names(self, folder: str = "") -> Iterable[str]:
        self._bucket.operation(folder)
        prefix = folder and f"{folder}/"
        return {name[len(prefix) :].partition("/")[0] for name in self._bucket.objects if name.startswith(prefix)}

    def read(self, name: str, length: int, offset: int) -> bytes:
        if name not in self._bucket.objects:
            raise NotStored(self.path(name))
        return self._bucket.objects[name][offset : offset + length]

    def load_manifest(self) -> bytes | None:
        self._loaded = self._bucket.objects.get(MANIFEST_NAME)
        return self._loaded

    def replace_manifest(self, content: bytes) -> None:
        self._bucket.operation(MANIFEST_NAME)
        if self._conditional and self._bucket.objects.get(MANIFEST_NAME) != self._loaded:
            raise BackupRefused(self.name, "another process has written to it meanwhile")
        self._bucket.objects[MANIFEST_NAME] = content

    def write(self, name: str, pieces: Iterable[bytes]) -> bool:
        content = b"".join(pieces)
        self._bucket.operation(name)
        assert name not in self._bucket.objects, f"{name} is written a second time"
        self._bucket.objects[name] = content
        return False

    def remove(self, name: str) -> None:
        self._bucket.operation(name)
        self._bucket.objects.pop(name, None)

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class BackupRun:
    """A run that has begun: it knows the manifest and what is committed, as they were then."""

    def __init__(self, home: LogHome, bucket: Bucket, *, conditional: bool = True) -> None:
        self._source = RunningLog(home.disk, DIRECTORY)
        self._target = BackupTarget(BucketStore(bucket, conditional=conditional))

    def end(self, now_ms: int, snapshot: Snapshot | None = None) -> BackupManifest:
        try:
            return self._target.extend(self._source, conf=b"", snapshot=snapshot, now_ms=now_ms)
        finally:
            self._source.close()
            self._target.close()


def entries(bucket: Bucket, between: Callable[[], object] = lambda: None) -> list[bytes]:
    """All of a backup, verified; ``between`` is called when half of it has been read."""
    backup = Backup(BucketStore(bucket))
    found: list[bytes] = []
    for number, run in enumerate(backup.runs()):
        found += [run.body(entry) for entry in run.entries]
        if number == 2:
            between()
    backup.snapshot()
    return found


def bodies(last_index: int) -> list[bytes]:
    return [body(index) for index in range(1, last_index + 1)]


def grow(home: LogHome, first: int, last: int) -> None:
    log = home.opened[-1]
    home.put(log, *(body(index) for index in range(first, last + 1)))
    home.submit(log, commit_hint=last)


def test_backup_runs_remove_superseded_objects(home: LogHome, bucket: Bucket) -> None:
    filled(home, 3)
    for number, last in enumerate((3, 4, 30, 31, 31, 100, 200), 1):
        known = home.opened[-1].last_index
        grow(home, known + 1, last)
        manifest = BackupRun(home, bucket).end(NOW_MS + number * 2 * LEFTOVERS_STAY_MS)
        assert entries(bucket) == bodies(last)
        assert manifest.objects
        assert set(bucket.objects) == {MANIFEST_NAME, *manifest.objects.names, *manifest.objects.superseded}
        assert len(manifest.objects.superseded) <= 1


@pytest.mark.parametrize("first", [True, False])
def test_failure_at_any_operation_leaves_the_backup_unchanged_or_finished(
    home: LogHome, bucket: Bucket, first: bool
) -> None:
    filled(home, 60)
    if not first:
        BackupRun(home, bucket).end(NOW_MS)
        grow(home, 61, 200)
    before, last = dict(bucket.objects), home.opened[-1].last_index
    failed = 0
    for nth in range(1, 100):
        bucket.objects, bucket.fails_at = dict(before), nth
        try:
            BackupRun(home, bucket).end(NOW_MS + 1)
        except StoreFailed:
            failed += 1
            if first:
                assert MANIFEST_NAME not in bucket.objects
            else:
                assert entries(bucket) == bodies(60)
        else:
            assert entries(bucket) == bodies(last)
        done = bucket.fails_at > 0
        bucket.fails_at = -1
        BackupRun(home, bucket).end(NOW_MS + 2)
        assert entries(bucket) == bodies(last)
        if done:
            break
    assert failed > 4


def test_leftovers_of_a_killed_run_are_removed_a_day_later(home: LogHome, bucket: Bucket) -> None:
    filled(home, 60)
    bucket.fails_at = 4
    with pytest.raises(StoreFailed):
        BackupRun(home, bucket).end(NOW_MS)
    left = set(bucket.objects)
    assert left
    bucket.objects["log/notes.txt"] = b"of somebody else"
    BackupRun(home, bucket).end(NOW_MS + LEFTOVERS_STAY_MS)
    assert left < set(bucket.objects)
    manifest = BackupRun(home, bucket).end(NOW_MS + LEFTOVERS_STAY_MS + 1)
    assert manifest.objects
    assert set(bucket.objects) == {MANIFEST_NAME, "log/notes.txt", *manifest.objects.names}


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("known", [0, 60])
@pytest.mark.parametrize("news", [0, 1, 100])
def test_concurrent_runs_keep_the_backup_intact(
    home: LogHome, bucket: Bucket, conditional: bool, known: int, news: int
) -> None:
    """Also where conditions are ignored: there the later run wins, and the next one copies again what it lacks."""
    filled(home, known or 30)
    if known:
        BackupRun(home, bucket).end(NOW_MS)
    slow = BackupRun(home, bucket, conditional=conditional)
    last = known or 30
    if news:
        grow(home, last + 1, last + news)
    BackupRun(home, bucket).end(NOW_MS + 1, None)
    if conditional:
        with pytest.raises(BackupRefused, match="meanwhile"):
            slow.end(NOW_MS + 2)
        assert entries(bucket) == bodies(last + news)
    else:
        slow.end(NOW_MS + 2)
        assert entries(bucket) == bodies(last)
    BackupRun(home, bucket).end(NOW_MS + 3)
    assert entries(bucket) == bodies(last + news)


def test_backup_run_missing_removed_objects_is_refused(home: LogHome, bucket: Bucket) -> None:
    filled(home, 30)
    BackupRun(home, bucket).end(NOW_MS)
    slow = BackupRun(home, bucket, conditional=False)
    for number in (1, 2):
        grow(home, 30 + number, 30 + number)
        BackupRun(home, bucket).end(NOW_MS + number)
    with pytest.raises(BackupDamaged, match="the object is missing"):
        slow.end(NOW_MS + 3)
    assert entries(bucket) == bodies(32)


def test_reader_continues_when_the_newest_object_is_replaced(home: LogHome, bucket: Bucket) -> None:
    filled(home, 90)
    BackupRun(home, bucket).end(NOW_MS)

    def more() -> None:
        for number in (1, 2):
            grow(home, 90 + number, 90 + number)
            BackupRun(home, bucket).end(NOW_MS + number)

    assert entries(bucket, more) == bodies(90)
    assert entries(bucket) == bodies(92)


def test_snapshots_of_two_first_runs_do_not_mix(home: LogHome, bucket: Bucket) -> None:
    log = filled(home, 200)
    log.drop_prefix(log.segments()[2].start, b"conf")
    home.submit(log)
    slow = BackupRun(home, bucket)
    manifest = BackupRun(home, bucket).end(NOW_MS, Snapshot(LogIndex(150), b"state"))
    with pytest.raises(BackupRefused):
        slow.end(NOW_MS + 1, Snapshot(LogIndex(140), b"another"))
    assert Backup(BucketStore(bucket)).snapshot() == b"state"
    assert entries(bucket)[-1] == body(200)
    assert manifest.objects
    bucket.objects[manifest.objects.snapshot] = b"stale"
    with pytest.raises(BackupDamaged, match="snapshot/"):
        entries(bucket)
    del bucket.objects[manifest.objects.snapshot]
    with pytest.raises(BackupDamaged, match="it is missing"):
        entries(bucket)


def test_manifest_with_invalid_names_is_refused(home: LogHome, bucket: Bucket) -> None:
    filled(home, 100)
    manifest = BackupRun(home, bucket).end(NOW_MS)
    objects = manifest.objects
    assert objects
    first, *rest = objects.files
    wrong = [
        replace(objects, files=(replace(first, name="log/../../etc/passwd"), *rest)),
        replace(objects, files=(replace(first, start=4096), *rest)),
        replace(objects, files=(replace(first, nbytes=4097), *rest)),
        replace(objects, files=(replace(first, sha256="0"), *rest)),
        replace(objects, files=tuple(rest)),
        replace(objects, snapshot="snapshot/../x"),
        replace(objects, superseded=("manifest.json",)),
        replace(objects, last_file=manifest.base),
    ]
    assert decode_backup_manifest(encode_backup_manifest(manifest)) == manifest
    for each in wrong:
        with pytest.raises(ValueError, match="invalid backup"):
            decode_backup_manifest(encode_backup_manifest(replace(manifest, objects=each)))


def test_backup_detects_every_altered_object(home: LogHome, bucket: Bucket) -> None:
    filled(home, 60)
    BackupRun(home, bucket).end(NOW_MS)
    intact = dict(bucket.objects)
    for name, content in intact.items():
        for at in range(0, len(content), 61):
            flipped = content[:at] + bytes((content[at] ^ 4,)) + content[at + 1 :]
            zeroed = content[:at].ljust(len(content), b"\0")
            for altered in (flipped, zeroed, content[:at], content + content[: at + 1]):
                bucket.objects[name] = altered
                with pytest.raises(BackupDamaged):
                    entries(bucket)
        bucket.objects[name] = content
    assert entries(bucket) == bodies(60)
