"""Keeps a table of Parquet files in a directory, with its own log of commits. Does not use Spark.

    orders/part-00000007-0-3f2a….parquet    rows; partitions are directories such as _day=2026-01-31
    orders/_raftmq/commits/00000007.json    the commit, and the files of it
    orders/_raftmq/staging/RUN-7/…          files that are written, and not committed yet
    orders/_raftmq/lock                     locked by the running pipeline

A commit is one file that is created with its whole content under a name that did not exist: a second process that
commits the same number fails. After that, its files are moved out of staging, and a pipeline that starts completes the
moves of the last commits. So readers see only committed rows, and none twice.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from spark.tables.commits import Commit, CommitRefused, Overtaken, parse_commit

OWN: Final = "_raftmq"
_DIGITS: Final = 10


class DirectoryUnusable(Exception):
    """The operating system refuses an operation in the table's directory. The text has the path and the reason."""


class Locked(Exception):
    """Another process of this machine writes the table."""


class ParquetDirectory:
    """The commits and files of one directory.

    Args:
        step: called before each change on disk with its name; tests kill the process there.
    """

    def __init__(self, root: Path, step: Callable[[str], None] = lambda _: None) -> None:
        self.root = root
        self._own = root / OWN
        self._commits = self._own / "commits"
        self._staging = self._own / "staging"
        self._step = step
        self._lock: int | None = None

    def open(self) -> Commit | None:
        """Lock the table, and complete the commit of a killed process. Returns the last commit or None.

        Raises:
            Locked: it is written by another process.
            DirectoryUnusable: a directory cannot be created or written.
            CommitRefused: a commit cannot be read, or one is missing, or there are files of another program.
        """
        try:
            self._commits.mkdir(parents=True, exist_ok=True)
            self._staging.mkdir(exist_ok=True)
            self._take_lock()
            last = self._check()
            self._complete()
            self._clean_staging()
        except OSError as error:
            self.close()
            raise _unusable(error, self.root) from error
        except CommitRefused:
            self.close()
            raise
        return last

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def last(self) -> Commit | None:
        """Return the last commit, without a lock. Raises CommitRefused, DirectoryUnusable."""
        numbers = self._numbers()
        return None if not numbers else self._read(numbers[-1])[0]

    def staging_of(self, commit: Commit) -> Path:
        """Return a new directory for the files of a commit. An existing one is removed first."""
        path = self._staging / f"{commit.run}-{commit.number}"
        try:
            shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            raise _unusable(error, path) from error
        return path

    def commit(self, commit: Commit, staging: Path) -> None:
        """Make the Parquet files below ``staging`` part of the table, with the commit.

        Raises:
            Overtaken: this number is committed already; the files are removed.
            DirectoryUnusable: nothing is committed, or all is and a part is not moved yet: the next `open` decides.
        """
        try:
            files = sorted(path for path in staging.rglob("*.parquet") if path.is_file()) if staging.is_dir() else []
            content = {
                "commit": json.loads(commit.to_json()),
                "files": [self._move_of(path, staging, index, commit) for index, path in enumerate(files)],
            }
            for path in files:
                _sync(path)
            self._step("create the commit")
            if not self._create(commit.number, json.dumps(content)):
                shutil.rmtree(staging, ignore_errors=True)
                raise Overtaken(f"commit {commit.number} of {self.root} was made by another process")
            self._move(content["files"])
            self._step("remove staging")
            shutil.rmtree(staging, ignore_errors=True)
        except OSError as error:
            raise _unusable(error, self.root) from error

    def files(self) -> list[Path]:
        """Return the committed files that exist. Raises CommitRefused, DirectoryUnusable."""
        paths = [self.root / each["to"] for number in self._numbers() for each in self._read(number)[1]]
        return [path for path in paths if path.exists()]

    def folder(self) -> str | None:
        """Return the folder of the last committed file, "" if outside; None without files. Raises as `files`."""
        commits = (self._read(number)[1] for number in reversed(self._numbers()))
        return next((folder_of(files[0]) for files in commits if files), None)

    # -- commits -------------------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._commits)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(error, self._commits) from error
        return sorted(int(name[:_DIGITS]) for name in names if name[:_DIGITS].isdigit() and name.endswith(".json"))

    def _path(self, number: int) -> Path:
        return self._commits / f"{number:0{_DIGITS}}.json"

    def _read(self, number: int) -> tuple[Commit, list[dict[str, Any]]]:
        path = self._path(number)
        try:
            document = json.loads(path.read_text())
            files: list[dict[str, Any]] = [dict(each) for each in document["files"]]
            commit = parse_commit(json.dumps(document["commit"]), str(path))
        except OSError as error:
            raise _unusable(error, path) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CommitRefused(f"{path} is damaged ({error}); restore it, or write to a new directory") from error
        if commit.number != number:
            raise CommitRefused(f"{path} has commit {commit.number}: restore it, or write to a new directory")
        return commit, files

    def _check(self) -> Commit | None:
        numbers = self._numbers()
        if gaps := [want for want, number in enumerate(numbers) if number != want]:
            raise CommitRefused(
                f"commit {gaps[0]} is missing in {self._commits}: it was removed. Restore it, or write to a new "
                f"directory"
            )
        names = {each["to"] for number in numbers for each in self._read(number)[1]}
        for path in sorted(self.root.rglob("*.parquet")):
            name = path.relative_to(self.root)
            if name.parts[0] != OWN and name.as_posix() not in names:
                raise CommitRefused(
                    f"{path} was not written by this pipeline: its rows would be mixed with "
                    f"those of the topic. Move it away, or write to a new directory"
                )
        return self._read(numbers[-1])[0] if numbers else None

    def _create(self, number: int, content: str) -> bool:
        """Create a commit, whole; returns False if it exists."""
        path = self._path(number)
        scratch = self._commits / f".{number}-{os.getpid()}.new"
        with scratch.open("w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, path)  # fails if there is one; a rename would replace it
        except FileExistsError:
            return False
        finally:
            scratch.unlink()
        _sync(self._commits)
        return True

    # -- files ---------------------------------------------------------------------------------------------------------

    def _move_of(self, path: Path, staging: Path, index: int, commit: Commit) -> dict[str, Any]:
        """The path of a staged file, relative to our own directory, and its target, relative to the table."""
        name = f"part-{commit.number:0{_DIGITS}}-{index}-{commit.run}.parquet"
        target = path.parent.relative_to(staging) / name
        nbytes = path.stat().st_size
        return {"from": path.relative_to(self._own).as_posix(), "to": target.as_posix(), "bytes": nbytes}

    def _move(self, files: list[dict[str, Any]]) -> None:
        for each in files:
            source, target = self._own / each["from"], self.root / each["to"]
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                self._step("move a file")
                source.rename(target)
        for parent in sorted({(self.root / each["to"]).parent for each in files}):
            if parent.exists():
                _sync(parent)

    def _complete(self) -> None:
        numbers = self._numbers()
        if numbers:
            _, files = self._read(numbers[-1])
            self._move(files)
            for each in files:
                if not (self.root / each["to"]).exists():
                    raise CommitRefused(
                        f"{self.root / each['to']}, a file of commit {numbers[-1]}, is missing: it was removed. "
                        f"Restore it, or write to a new directory"
                    )

    def _clean_staging(self) -> None:
        for path in self._staging.iterdir():
            shutil.rmtree(path, ignore_errors=True)
        for path in self._commits.glob(".*.new"):
            path.unlink()

    def _take_lock(self) -> None:
        descriptor = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise Locked(
                f"another process writes the table {self.root}: a pipeline runs once. Nothing was written; stop that "
                f"one first, or leave it running"
            ) from None
        self._lock = descriptor


def folder_of(file: Mapping[str, Any]) -> str:
    """Return the partition folder of a committed file."""
    return str(file["to"]).rpartition("/")[0]


def directory_url(path: Path) -> str:
    """Return the URL of a local directory: Spark's default may be another file system. Escapes special characters."""
    return f"file://{path}"


def directory_pattern(path: Path) -> str:
    """Quote a directory for Spark's readers, which treat paths as patterns."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", directory_url(path))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(error: OSError, path: Path) -> DirectoryUnusable:
    where = error.filename or path
    return DirectoryUnusable(f"{where}: {error.strerror}; the table needs a directory that this user may write")
