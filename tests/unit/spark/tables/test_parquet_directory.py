"""Commits of a Parquet directory: a process that is killed before any change on disk loses and doubles no file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark.tables.commits import Commit, CommitRefused, Overtaken
from spark.tables.parquet_directory import DirectoryUnusable, Locked, ParquetDirectory

POSITION = {"v": 1, "cluster": "c", "topics": {"T": {"id": {}, "q": {"a:0": 4}}}}


class Killed(BaseException):
    """Not caught by anything."""


def commit(number: int, run: str = "r") -> Commit:
    return Commit("p/T", number, POSITION, POSITION, 1, 0, 0, run, {}, POSITION)


def staged(directory: ParquetDirectory, of: Commit, *names: str) -> Path:
    where = directory.staging_of(of)
    for name in names:
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{of.number} {of.run} {name}")
    return where


def contents(root: Path) -> list[str]:
    return sorted(path.read_text() for path in root.rglob("*.parquet") if "_raftmq" not in path.parts)


def add(directory: ParquetDirectory, number: int, run: str = "r") -> None:
    made = commit(number, run)
    directory.commit(made, staged(directory, made, "day=1/x.parquet", "day=2/y.parquet"))


def test_files_of_a_commit_are_in_their_partitions(tmp_path: Path) -> None:
    directory = ParquetDirectory(tmp_path / "t")
    assert directory.open() is None
    assert directory.folder() is None
    add(directory, 0)
    add(directory, 1)
    assert len(directory.files()) == 4
    assert directory.last() == commit(1)
    assert directory.folder() == "day=1"
    assert sorted(path.parent.name for path in directory.files()) == ["day=1", "day=1", "day=2", "day=2"]
    directory.close()
    again = ParquetDirectory(tmp_path / "t")
    assert again.open() == commit(1)
    again.close()


def test_process_killed_at_any_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    steps: list[str] = []
    counted = ParquetDirectory(tmp_path / "counted", steps.append)
    counted.open()
    add(counted, 0)
    counted.close()
    assert steps == ["create the commit", "move a file", "move a file", "remove staging"]
    for last in range(len(steps)):
        root = tmp_path / f"killed{last}"
        left = [last]

        def die(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        first = ParquetDirectory(root, die)
        first.open()
        with pytest.raises(Killed):
            add(first, 0, "first")
        first.close()
        second = ParquetDirectory(root)
        found = second.open()
        if found is None:
            assert last == 0
            add(second, 0, "second")
        run = "second" if found is None else "first"
        assert contents(root) == [f"0 {run} day=1/x.parquet", f"0 {run} day=2/y.parquet"]
        assert list((root / "_raftmq" / "staging").iterdir()) == []
        second.close()


def test_second_process_that_commits_the_same_number_fails(tmp_path: Path) -> None:
    one, two = ParquetDirectory(tmp_path), ParquetDirectory(tmp_path)
    one.open()
    add(one, 0, "one")
    with pytest.raises(Overtaken):
        add(two, 0, "two")
    assert contents(tmp_path) == ["0 one day=1/x.parquet", "0 one day=2/y.parquet"]
    one.close()


def test_table_is_written_by_one_process(tmp_path: Path) -> None:
    one, two = ParquetDirectory(tmp_path), ParquetDirectory(tmp_path)
    one.open()
    with pytest.raises(Locked, match="another process writes the table"):
        two.open()
    one.close()
    two.open()
    two.close()


def test_files_of_another_program_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_text("x")
    with pytest.raises(CommitRefused, match=r"mine\.parquet was not written by this pipeline"):
        ParquetDirectory(tmp_path).open()


def test_removed_commit_or_file_is_noticed(tmp_path: Path) -> None:
    directory = ParquetDirectory(tmp_path)
    directory.open()
    for number in range(3):
        add(directory, number)
    directory.close()
    commits = tmp_path / "_raftmq" / "commits"
    (commits / "0000000001.json").rename(tmp_path / "saved")
    with pytest.raises(CommitRefused, match="commit 1 is missing"):
        ParquetDirectory(tmp_path).open()
    (tmp_path / "saved").rename(commits / "0000000001.json")
    directory.files()[-1].unlink()
    with pytest.raises(CommitRefused, match="a file of commit 2, is missing"):
        ParquetDirectory(tmp_path).open()


def test_damaged_commit_is_refused(tmp_path: Path) -> None:
    directory = ParquetDirectory(tmp_path)
    directory.open()
    add(directory, 0)
    directory.close()
    path = tmp_path / "_raftmq" / "commits" / "0000000000.json"
    whole = path.read_text()
    other_number = whole.replace('"number": 0', '"number": 7')
    newer = whole.replace('"v": 1, "pipeline"', '"v": 2, "pipeline"')
    for damage in ("", "{", other_number, newer):
        assert damage != whole
        path.write_text(damage)
        with pytest.raises(CommitRefused):
            ParquetDirectory(tmp_path).open()


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere: meanwhile it is somebody else."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_directory_without_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    directory = ParquetDirectory(tmp_path / "t")
    said = "Permission denied; the table needs a directory that this user may write"
    with pytest.raises(DirectoryUnusable, match=said), without_privileges():
        directory.open()


def test_table_that_loses_its_permission_keeps_its_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = ParquetDirectory(tmp_path / "t")
    directory.open()
    add(directory, 0)
    later = commit(1)
    where = staged(directory, later, "x.parquet")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "t"))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", denied)
        with pytest.raises(DirectoryUnusable, match="Permission denied"):
            directory.commit(later, where)
    directory.close()
    again = ParquetDirectory(tmp_path / "t")
    assert again.open() == commit(0)
    assert contents(tmp_path / "t") == ["0 r day=1/x.parquet", "0 r day=2/y.parquet"]
    again.close()


def test_location_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    with pytest.raises(DirectoryUnusable, match="a directory that this user may write"):
        ParquetDirectory(tmp_path / "t").open()
