"""A directory that is another one on some machine of a cluster is found before rows are written into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark.tables.parquet_directory import DirectoryUnusable
from spark.tables.shared_location import ask_executors, check_shared, local_path

See = Callable[[int], str | None]


@pytest.mark.parametrize(
    ("location", "default", "path"),
    [
        ("/data/my t%20", "file", "/data/my t%20"),
        ("file:/data/my%20t", "hdfs", "/data/my t"),
        ("file:///data/t", "file", "/data/t"),
        ("/data/t", "hdfs", None),
        ("hdfs://h/data/t", "file", None),
        ("s3a://bucket/t", "file", None),
    ],
)
def test_only_paths_of_this_machine_are_checked(location: str, default: str, path: str | None) -> None:
    assert local_path(location, default) == path


def test_machines_that_see_the_directory_are_enough(tmp_path: Path) -> None:
    ask_executors(tmp_path / "new" / "t", lambda see: map(see, range(2)))
    assert list((tmp_path / "new" / "t").iterdir()) == []


def test_machine_that_does_not_see_the_directory_is_named(tmp_path: Path) -> None:
    def ask(see: See) -> Iterable[str | None]:
        yield see(0)
        (probe,) = tmp_path.iterdir()
        probe.rename(tmp_path.parent / probe.name)  # as on a machine with a directory of its own
        yield see(1)

    with pytest.raises(DirectoryUnusable, match=r"the executor on \S+ does not see what the driver writes into"):
        ask_executors(tmp_path, ask)


def test_uncreatable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryUnusable, match=r"file/t: Not a directory"):
        ask_executors(tmp_path / "file" / "t", lambda _: [])


def test_shared_location_is_not_checked_for_local_executors() -> None:
    def location() -> str:
        raise AssertionError("nobody has to know")

    check_shared(SimpleNamespace(master="local[2]"), location)


def test_unknown_location_is_not_checked() -> None:
    java = SimpleNamespace(hadoopConfiguration=lambda: {"fs.defaultFS": "file:///"})
    check_shared(SimpleNamespace(master="spark://h:7077", _jsc=java), lambda: "")


def test_each_slot_of_a_cluster_is_asked_twice(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Context:
        master = "spark://h:7077"
        defaultParallelism = 5
        _jsc = SimpleNamespace(hadoopConfiguration=lambda: {"fs.defaultFS": "file:///"})

        def parallelize(self, numbers: range, tasks: int) -> Context:
            asked.append((numbers, tasks))
            return self

        def map(self, see: See) -> Context:
            asked.append(see(0))
            return self

        def collect(self) -> list[None]:
            return []

    check_shared(Context(), lambda: str(tmp_path))
    assert asked == [(range(10), 10), None]
