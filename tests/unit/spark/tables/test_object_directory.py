"""Commits of Parquet objects in S3 storage: killed, refused or raced, no object is lost, doubled or seen early."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftlog.segment.s3_storage import S3Store, open_s3
from spark.tables import object_files
from spark.tables.commits import Commit, CommitRefused, Overtaken
from spark.tables.object_directory import ObjectDirectory
from spark.tables.object_files import read_objects, split_folders, write_objects
from spark.tables.parquet_directory import DirectoryUnusable
from tests.support.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, object_storage

POSITION = {"v": 1, "cluster": "c", "topics": {"T": {"id": {}, "q": {"a:0": 4}}}}
URL = f"s3://{BUCKET}/lake/orders"


class Killed(BaseException):
    """Not caught by anything."""


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStorage]:
    with object_storage() as opened:
        yield opened


@pytest.fixture
def storage(server: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield server
    server.forget()


def commit(number: int, run: str = "r") -> Commit:
    return Commit("p/T", number, POSITION, POSITION, 1, 0, 0, run, {}, POSITION)


def directory(storage: ObjectStorage, step: Callable[[str], None] = lambda _: None) -> ObjectDirectory:
    return ObjectDirectory(URL, storage.url, step, opened)


@cache
def _bucket(endpoint_url: str | None) -> S3Store:
    return open_s3(f"s3://{BUCKET}", endpoint_url)


def opened(url: str, endpoint_url: str | None) -> S3Store:
    """As `open_s3`, over one client: to make one takes long."""
    return _bucket(endpoint_url).below(url.removeprefix(f"s3://{BUCKET}/"))


def staged(storage: ObjectStorage, where: ObjectDirectory, of: Commit) -> list[tuple[str, int]]:
    """Two objects whose content names their commit."""
    store = opened(where.staging_of(of), storage.url)
    names = ("day=1/x.parquet", "day=2/y.parquet")
    for name in names:
        store.write(name, [f"{of.number} {of.run} {name}".encode()])
    return [(name, 1) for name in names]


def add(storage: ObjectStorage, where: ObjectDirectory, number: int, run: str = "r") -> None:
    made = commit(number, run)
    where.commit(made, staged(storage, where, made))


def contents(storage: ObjectStorage) -> list[str]:
    """What a reader sees."""
    return sorted(
        storage.content(key).decode() for key in storage.names() if key.endswith(".parquet") and "_raftmq" not in key
    )


def expected(*commits: tuple[int, str]) -> list[str]:
    return sorted(
        f"{number} {run} {name}" for number, run in commits for name in ("day=1/x.parquet", "day=2/y.parquet")
    )


def left(storage: ObjectStorage) -> list[str]:
    return [key for key in storage.names() if "/staging/" in key]


def test_objects_of_a_commit_are_in_their_partitions(storage: ObjectStorage) -> None:
    where = directory(storage)
    assert where.open() is None
    assert where.folder() is None
    add(storage, where, 0)
    add(storage, where, 1)
    assert where.folder() == "day=1"
    assert [name.partition("/")[0] for name in where.files()] == ["day=1", "day=1", "day=2", "day=2"]
    assert where.last() == commit(1)
    again = directory(storage)
    assert again.open() == commit(1)
    assert (contents(storage), left(storage)) == (expected((0, "r"), (1, "r")), [])


def begin(storage: ObjectStorage, where: ObjectDirectory) -> None:
    where.open()
    add(storage, where, 0, "killed")


def test_process_killed_at_any_step_loses_and_doubles_nothing(storage: ObjectStorage) -> None:
    steps: list[str] = []
    counted = directory(storage, steps.append)
    counted.open()
    add(storage, counted, 0)
    copies, removals = ["copy an object"] * 2, ["remove a staged object"] * 2
    assert steps == ["check conditional writes", "create the commit", *copies, *removals]
    for last in range(len(steps)):
        storage.forget()
        rest = [last]

        def die(_: str, rest: list[int] = rest) -> None:
            rest[0] -= 1
            if rest[0] < 0:
                raise Killed

        killed = directory(storage, die)
        with pytest.raises(Killed):
            begin(storage, killed)
        assert set(contents(storage)) <= set(expected((0, "killed")))
        again = directory(storage)
        if again.open() is None:
            assert contents(storage) == []
            add(storage, again, 0, "again")
            run = "again"
        else:
            run = "killed"
        assert contents(storage) == expected((0, run))
        directory(storage).open()
        assert left(storage) == []


def test_of_two_processes_one_commits_and_the_other_is_refused(storage: ObjectStorage) -> None:
    one, other = directory(storage), directory(storage)
    one.open()
    other.open()
    add(storage, one, 0, "one")
    with pytest.raises(Overtaken):
        add(storage, other, 0, "other")
    add(storage, other, 1, "other")
    with pytest.raises(Overtaken):
        add(storage, one, 1, "one")
    assert (contents(storage), left(storage)) == (expected((0, "one"), (1, "other")), [])


def test_many_processes_at_once_commit_each_number_once(storage: ObjectStorage) -> None:
    directory(storage).open()
    won: list[tuple[int, str]] = []

    def work(run: str) -> None:
        mine = directory(storage)
        mine.open()
        for number in range(4):
            try:
                add(storage, mine, number, run)
                won.append((number, run))
            except Overtaken:
                continue

    threads = [threading.Thread(target=work, args=(f"run{number}",)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    directory(storage).open()
    assert sorted(number for number, _ in won) == list(range(4))
    assert contents(storage) == expected(*won)


def test_next_commit_completes_a_commit_of_a_killed_process(storage: ObjectStorage) -> None:
    """The one that was overtaken goes on, and the faster one has died before it moved its objects."""

    def die(step: str) -> None:
        if step == "copy an object":
            raise Killed

    slow, fast = directory(storage), directory(storage, die)
    slow.open()
    fast.open()
    with pytest.raises(Killed):
        add(storage, fast, 0, "fast")
    with pytest.raises(Overtaken):
        add(storage, slow, 0, "slow")
    add(storage, slow, 1, "slow")
    assert contents(storage) == expected((0, "fast"), (1, "slow"))


def test_staged_files_of_slow_processes_stay_until_obsolete(storage: ObjectStorage) -> None:
    slow, other = directory(storage), directory(storage)
    slow.open()
    add(storage, slow, 0)
    made = commit(1, "slow")
    objects = staged(storage, slow, made)
    other.open()  # a run of another machine begins meanwhile
    slow.commit(made, objects)
    assert contents(storage) == expected((0, "r"), (1, "slow"))
    staged(storage, slow, commit(1, "late"))
    directory(storage).open()
    assert left(storage) == []


def test_late_process_does_not_change_a_committed_table(storage: ObjectStorage) -> None:
    """It stops after its commit, another one completes that, and it goes on with objects that are gone."""

    def interrupted(step: str) -> None:
        if step == "copy an object" and not seen:
            seen.append(step)
            assert directory(storage).open() == commit(0, "late")

    seen: list[str] = []
    late = directory(storage, interrupted)
    late.open()
    add(storage, late, 0, "late")
    assert (contents(storage), left(storage), len(seen)) == (expected((0, "late")), [], 1)


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_pipeline_without_permission_stops_and_loses_nothing(storage: ObjectStorage, method: str) -> None:
    where = directory(storage)
    where.open()
    add(storage, where, 0)
    made = commit(1)
    objects = staged(storage, where, made)
    storage.fault = lambda verb, path: 403 if verb == method else None
    with pytest.raises(DirectoryUnusable, match="AccessDenied"):
        where.commit(made, objects) if method == "PUT" else directory(storage).open()
    storage.come_back()
    assert where.last() == commit(0)
    where.commit(made, objects)
    assert contents(storage) == expected((0, "r"), (1, "r"))


def test_commit_before_a_store_failure_is_recognized(storage: ObjectStorage) -> None:
    where = directory(storage)
    where.open()
    made = commit(0)
    objects = staged(storage, where, made)
    storage.fault = lambda verb, path: 0 if verb == "HEAD" else None  # the first request after the commit
    with pytest.raises(DirectoryUnusable):
        where.commit(made, objects)
    storage.come_back()
    assert directory(storage).open() == made
    assert contents(storage) == expected((0, "r"))


@pytest.mark.parametrize("name", ["part-0.parquet", "day=1/part-0000000001-0-r.parquet", "x/y.parquet"])
def test_unknown_objects_are_refused(storage: ObjectStorage, name: str) -> None:
    where = directory(storage)
    where.open()
    add(storage, where, 0)
    storage.put(f"lake/orders/{name}", b"")
    with pytest.raises(CommitRefused, match="was not written by this pipeline"):
        directory(storage).open()


def test_removed_and_damaged_commits_and_objects_are_refused(storage: ObjectStorage) -> None:
    where = directory(storage)
    where.open()
    for number in range(2):
        add(storage, where, number)
    key = "lake/orders/_raftmq/commits/0000000001.json"
    content = storage.content(key)
    storage.put(key, content[:-1])
    with pytest.raises(CommitRefused, match="is damaged"):
        directory(storage).open()
    storage.put(key, content)
    storage.remove("lake/orders/day=2/part-0000000001-1-r.parquet")
    with pytest.raises(CommitRefused, match="a file of commit 1, is missing"):
        directory(storage).open()
    storage.remove("lake/orders/_raftmq/commits/0000000000.json")
    with pytest.raises(CommitRefused, match="commit 0 is missing"):
        directory(storage).open()


def test_store_that_ignores_conditions_is_refused(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    where = directory(storage)
    client = where._own._client
    put = client.put_object
    monkeypatch.setattr(client, "put_object", lambda IfNoneMatch=None, **more: put(**more))
    with pytest.raises(CommitRefused, match="the store overwrites objects"):
        where.open()


def test_rows_are_written_by_folder_and_read_back(storage: ObjectStorage) -> None:
    batch = pa.RecordBatch.from_pydict({
        "id": [1, 2, 3, 4],
        "price": pa.array([Decimal("1.50"), None, Decimal("2.00"), Decimal("0.01")], pa.decimal128(10, 2)),
        "at": pa.array([0, 1, None, 3], pa.timestamp("us", tz="UTC")),
        "tags": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
        "day": ["2026-01-31", "2026-02-01", None, "2026-01-31"],
    })  # fmt: skip
    empty = batch.slice(0, 0)
    written = dict(write_objects([empty, batch, empty, batch], URL, storage.url, "00000-7", "day"))
    assert sorted(written) == [
        f"day={value}/00000-7.parquet" for value in ("2026-01-31", "2026-02-01", "__HIVE_DEFAULT_PARTITION__")
    ]
    assert all(len(storage.content(f"lake/orders/{name}")) == nbytes for name, nbytes in written.items())
    schema = pa.schema([*batch.schema, pa.field("added", pa.string())])
    rows = pa.Table.from_batches(read_objects(sorted(written), URL, storage.url, schema, "day"), schema)
    wanted = [{**row, "added": None} for row in batch.to_pylist() for _ in range(2)]
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == wanted
    assert list(write_objects([empty], URL, storage.url, "none", None)) == []
    assert list(split_folders(empty, "day")) == []


def test_task_writes_more_folders_than_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept:
        """Keeps the objects that are written."""

        def __init__(self) -> None:
            self.objects: dict[str, pa.Table] = {}

        def write(self, name: str, pieces: Iterator[bytes]) -> bool:
            assert name not in self.objects
            self.objects[name] = pq.read_table(io.BytesIO(b"".join(pieces)))
            return True

        def close(self) -> None:
            """Nothing is open."""

    kept = Kept()
    monkeypatch.setattr(object_files, "open_s3", lambda *_: kept)
    hours = ["00", "01", "00", "02", "03", "01", "00"]
    batches = [pa.RecordBatch.from_pydict({"id": [at], "hour": [hour]}) for at, hour in enumerate(hours)]
    written = list(write_objects(batches, URL, None, "00000-7", "hour", open_max=2))
    assert sorted(kept.objects) == sorted(name for name, _ in written)
    rows = {(at, name[5:7]) for name, table in kept.objects.items() for at in table["id"].to_pylist()}
    assert rows == set(enumerate(hours))
    assert len(written) == 6  # the first two rows of hour 00 are in one


def test_small_object_is_created_once(storage: ObjectStorage) -> None:
    store = opened(URL, storage.url)
    assert store.create("a", b"one")
    assert store.create("a", b"one")  # as if the answer to the first attempt was lost
    assert not store.create("a", b"two")
    assert not store.create("a", b"one and more")
    assert storage.content("lake/orders/a") == b"one"
