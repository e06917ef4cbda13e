"""The instrument itself: what it says about code that syncs too little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.watched_files import UnsyncedRest, WatchedFiles, watch_files


def write(path: Path, data: bytes, *, sync: bool = True) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def left(files: WatchedFiles, target: Path, kind: UnsyncedRest) -> dict[str, bytes]:
    files.leave(target, kind)
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "kept").mkdir(parents=True)
    (root / "kept" / "old").write_bytes(b"old")
    return root


def test_new_file_needs_a_sync_of_content_and_directory(root: Path, tmp_path: Path) -> None:
    with watch_files(root) as files:
        assert files.undurable() == []
        write(root / "a", b"1", sync=False)
        assert files.undurable() == ["a: its name may be lost"]
        sync_directory(root)
        assert files.undurable() == ["a: its content may be lost"]
        assert left(files, tmp_path / "cut", UnsyncedRest.NOTHING) == {"a": b"", "kept/old": b"old"}
        write(root / "a", b"2")
        assert files.undurable() == []
        assert left(files, tmp_path / "later", UnsyncedRest.NOTHING) == {"a": b"2", "kept/old": b"old"}


def test_rename_needs_a_sync_of_the_directory(root: Path, tmp_path: Path) -> None:
    with watch_files(root) as files:
        write(root / "kept" / "new", b"new")
        (root / "kept" / "new").replace(root / "kept" / "old")
        assert files.undurable() == ["kept/old: its name may be lost"]
        assert left(files, tmp_path / "0", UnsyncedRest.NOTHING) == {"kept/old": b"old"}
        assert left(files, tmp_path / "1", UnsyncedRest.NAMES) == {"kept/old": b"new"}
        sync_directory(root / "kept")
        assert files.undurable() == []
        assert left(files, tmp_path / "2", UnsyncedRest.NOTHING) == {"kept/old": b"new"}


def test_renamed_file_without_a_sync_may_be_empty(root: Path, tmp_path: Path) -> None:
    with watch_files(root) as files:
        write(root / "kept" / "new", b"new", sync=False)
        (root / "kept" / "new").replace(root / "kept" / "old")
        assert left(files, tmp_path / "0", UnsyncedRest.NAMES) == {"kept/old": b""}
        assert left(files, tmp_path / "1", UnsyncedRest.ALL) == {"kept/old": b"new"}


def test_new_directory_needs_a_sync_of_its_parent(root: Path) -> None:
    with watch_files(root) as files:
        (root / "a" / "b").mkdir(parents=True)
        write(root / "a" / "b" / "c", b"c")
        sync_directory(root / "a" / "b")
        sync_directory(root / "a")
        assert files.undurable() == ["a: its name may be lost"]
        sync_directory(root)
        assert files.undurable() == []


def test_removed_file_is_read_again_when_it_reappears(root: Path) -> None:
    with watch_files(root) as files:
        (root / "kept" / "old").unlink()
        assert files.undurable() == ["kept/old: comes back"]
        sync_directory(root / "kept")
        assert files.undurable() == []


def test_synced_write_does_not_make_other_parts_of_the_file_durable(root: Path, tmp_path: Path) -> None:
    with watch_files(root) as files:
        fd = os.open(root / "kept" / "old", os.O_RDWR)
        os.pwritev(fd, [b"AB"], 0)
        os.pwritev(fd, [b"C"], 2, os.RWF_DSYNC)
        os.close(fd)
        assert files.undurable() == ["kept/old: its content may be lost"]
        assert left(files, tmp_path / "0", UnsyncedRest.NOTHING) == {"kept/old": b"olC"}


def test_each_step_is_reported_before_it_happens(root: Path) -> None:
    seen: list[tuple[str, bool]] = []
    with watch_files(root) as files:
        files.at_each_step = lambda what: seen.append((what.split()[0], (root / "b").exists()))
        write(root / "a", b"1")
        (root / "a").rename(root / "b")
        sync_directory(root)
    assert seen == [("fsync", False), ("rename", False), ("fsync", True)]
