"""Several processes at one table in a bucket, stopped between any two requests, killed, and with answers that are lost.

Each process is a thread, and only one of them runs: a seeded choice says whose next request is made.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from raftlog.segment.backup_store import NotStored, StoreFailed
from raftlog.segment.s3_storage import S3Store
from spark.tables.commits import Commit, Overtaken
from spark.tables.object_directory import ObjectDirectory
from spark.tables.parquet_directory import DirectoryUnusable

URL = "s3://b/t"
POSITION = {"v": 1, "cluster": "c", "topics": {"T": {"id": {}, "q": {"a:0": 4}}}}
COMMITS = 5
OBJECTS = 2


class Killed(BaseException):
    """Not caught by anything but the process itself."""


class Bucket:
    """Objects by name."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def visible(self) -> list[str]:
        """What a reader finds: the content of each object that is not our own."""
        return sorted(
            content.decode()
            for name, content in self.objects.items()
            if name.endswith(".parquet") and "_raftmq" not in name
        )


class MemoryStore:
    """As `S3Store`. ``turn`` is called with each request, which it may do or not, before it says that it failed."""

    def __init__(self, bucket: Bucket, url: str, turn: Callable[[Callable[[], Any]], Any]) -> None:
        self.name = url
        self._bucket = bucket
        self._prefix = url.removeprefix("s3://b/") + "/"
        self._turn = turn

    def below(self, folder: str) -> MemoryStore:
        return MemoryStore(self._bucket, f"{self.name}/{folder}", self._turn)

    def path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def names(self, folder: str = "") -> list[str]:
        return [name for name in self.names_below(folder) if "/" not in name]

    def names_below(self, folder: str = "") -> list[str]:
        prefix = self._prefix + (folder and f"{folder}/")
        return cast(
            "list[str]",
            self._turn(
                lambda: [name[len(prefix) :] for name in sorted(self._bucket.objects) if name.startswith(prefix)]
            ),
        )

    def read_range(self, name: str, length: int, offset: int) -> bytes:
        return self._got(self._turn(lambda: self._bucket.objects.get(self._prefix + name)), name)

    def write(self, name: str, content: bytes) -> None:
        self._turn(lambda: self._bucket.objects.__setitem__(self._prefix + name, content))

    def create(self, name: str, content: bytes) -> bool:
        return bool(self._turn(lambda: self._bucket.objects.setdefault(self._prefix + name, content) == content))

    def copy(self, source: MemoryStore, name: str, target: str) -> None:
        def do() -> bytes | None:
            content = self._bucket.objects.get(source._prefix + name)
            if content is not None:
                self._bucket.objects[self._prefix + target] = content
            return content

        self._got(self._turn(do), name)

    def remove(self, name: str) -> None:
        self._turn(lambda: self._bucket.objects.pop(self._prefix + name, None))

    def check_conditions(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _got(self, content: bytes | None, name: str) -> bytes:
        if content is None:
            raise NotStored(self.path(name))
        return content


class Process(threading.Thread):
    """Commits until there are enough, and begins again as another run when it was killed or has failed."""

    def __init__(self, number: int, bucket: Bucket, chance: random.Random, faults: float) -> None:
        super().__init__(daemon=True)
        self.number = number
        self._bucket = bucket
        self._chance = chance
        self._faults = faults
        self._may_run = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self.is_done = False
        self.error: BaseException | None = None

    def next_request(self) -> None:
        """Let it run up to its next request."""
        self._may_run.release()
        self._has_stopped.acquire()

    def run(self) -> None:
        self._may_run.acquire()
        try:
            run = 0
            while True:
                run += 1
                try:
                    if self._work(f"p{self.number}r{run}"):
                        break
                except (Killed, DirectoryUnusable):
                    continue
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._has_stopped.release()

    def _work(self, run: str) -> bool:
        directory = ObjectDirectory(URL, None, open_store=lambda url, _: cast("S3Store", self._store(url)))
        last = directory.open()
        while True:
            number = 0 if last is None else last.number + 1
            if number == COMMITS:
                return True
            made = Commit("p/T", number, POSITION, POSITION, 1, 0, 0, run, {}, POSITION)
            staging = self._store(directory.staging_of(made))
            names = [f"day={each}/x.parquet" for each in range(OBJECTS)]
            for name in names:
                try:
                    staging.write(name, f"{number} {run} {name}".encode())
                except StoreFailed as error:
                    raise DirectoryUnusable(str(error)) from error
            try:
                directory.commit(made, [(name, 1) for name in names])
                last = made
            except Overtaken:
                last = directory.last()

    def _store(self, url: str) -> MemoryStore:
        return MemoryStore(self._bucket, url, self._turn)

    def _turn(self, do: Callable[[], Any]) -> Any:
        self._has_stopped.release()
        self._may_run.acquire()
        fate = self._chance.random()
        if fate < self._faults:
            raise Killed
        if fate < 2 * self._faults:
            raise StoreFailed(URL, "a request", "the store is gone")
        answer = do()
        if fate < 3 * self._faults:
            raise StoreFailed(URL, "a request", "the answer is lost")
        return answer


def committed(bucket: Bucket) -> dict[int, str]:
    """The run of each commit."""
    prefix = "t/_raftmq/commits/"
    found = (json.loads(content) for name, content in bucket.objects.items() if name.startswith(prefix))
    return {each["commit"]["number"]: each["commit"]["run"] for each in found}


def expected(commits: dict[int, str]) -> list[str]:
    return sorted(f"{number} {run} day={each}/x.parquet" for number, run in commits.items() for each in range(OBJECTS))


def interleaved(seed: int, processes: int, faults: float) -> Iterator[Bucket]:
    """The bucket after each request, and at the end."""
    chance = random.Random(seed)
    bucket = Bucket()
    running = [Process(number, bucket, chance, faults) for number in range(processes)]
    for each in running:
        each.start()
    while left := [each for each in running if not each.is_done]:
        # One of them may stop for long.
        chosen = chance.choice(left if chance.random() < 0.5 else left[:1])
        for _ in range(chance.choice((1, 1, 2, 10))):
            if not chosen.is_done:
                chosen.next_request()
                yield bucket
    assert [each.error for each in running] == [None] * processes


@pytest.mark.parametrize(("processes", "faults"), [(1, 0.05), (2, 0.0), (3, 0.02)])
def test_each_row_is_stored_once_across_stops_and_kills(processes: int, faults: float) -> None:
    for seed in range(60):
        before: dict[int, str] = {}
        for bucket in interleaved(seed, processes, faults):
            commits = committed(bucket)
            assert {number: commits.get(number) for number in before} == before, f"seed {seed}: a commit changed"
            seen = bucket.visible()
            assert len(seen) == len(set(seen)), f"seed {seed}: a row is there twice"
            assert set(seen) <= set(expected(commits)), f"seed {seed}: a row is seen that is not committed"
            whole = {number: run for number, run in commits.items() if number < len(commits) - 1}
            assert set(expected(whole)) <= set(seen), f"seed {seed}: the next commit was made too early"
            before = commits
        assert sorted(before) == list(range(COMMITS))
        assert bucket.visible() == expected(before), f"seed {seed}: rows are missing at the end"
