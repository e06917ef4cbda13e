"""Keeps a table of Parquet objects below an S3 prefix, with its own log of commits. Does not use Spark.

    s3://bucket/orders/part-0000000007-0-3f2a….parquet     rows; partitions are prefixes such as day=2026-01-31/
    s3://bucket/orders/_raftmq/commits/0000000007.json      the commit, and the objects of it
    s3://bucket/orders/_raftmq/staging/RUN-7/…              objects that are written, and not committed yet

A commit is one object, created by a conditional write: of two processes that commit the same number, one fails. After
that, its objects are copied out of staging, one after the other and each of them whole. So readers see only committed
rows, and none twice.

A bucket has no locks, so several processes may be at it, and each may stop for any time between two requests:

- Whoever creates a commit has copied the objects of the one before, or has seen that they are copied.
- Staged objects of a commit are removed when another run has committed this number: before, they may be needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from raftlog.segment.backup_store import BackupRefused, NotStored, StoreFailed
from raftlog.segment.s3_storage import S3Store, open_s3
from spark.tables.commits import Commit, CommitRefused, Overtaken, parse_commit
from spark.tables.parquet_directory import OWN, DirectoryUnusable, folder_of

_DIGITS: Final = 10
_COMMITS: Final = "commits"
_STAGING: Final = "staging"
_COMMIT: Final = re.compile(r"(\d{10})\.json")
_ROWS: Final = re.compile(r"(?:.*/)?part-(\d{10})-\d+-[0-9A-Za-z]+\.parquet")
_STAGED: Final = re.compile(r"([0-9A-Za-z]+)-(\d+)")
_COMMIT_BYTES_MAX: Final = 256 * 1024 * 1024


class ObjectDirectory:
    """The commits and objects below ``s3://BUCKET/PREFIX``.

    Args:
        step: called before each change in the bucket with its name; tests kill the process there.
    """

    def __init__(
        self,
        url: str,
        endpoint_url: str | None,
        step: Callable[[str], None] = lambda _: None,
        open_store: Callable[[str, str | None], S3Store] = open_s3,
    ) -> None:
        """Prepare, without sending anything. Raises CommitRefused: boto3 is not installed."""
        self.name = url.rstrip("/")
        self._step = step
        self._whole_number = -1
        """The commit whose objects are all in their places, as far as this process knows."""
        with self._translated_errors():
            self._table = open_store(self.name, endpoint_url)
        self._own = self._table.below(OWN)

    def open(self) -> Commit | None:
        """Complete the commit of a killed process. Returns the last commit, None if there is none.

        Raises:
            DirectoryUnusable: the store refuses something, or does not answer.
            CommitRefused: the store ignores conditions of writes, a commit cannot be read, or one is missing, or there
                are objects of another program.
        """
        with self._translated_errors():
            # In this order: rows appear after their commit, and another process may commit now.
            rows = self._row_files()
            numbers = self._numbers()
            if not numbers:
                self._step("check conditional writes")
                self._own.check_conditions()
            self._check(numbers, rows)
            if not numbers:
                return None
            last, _ = self._read(numbers[-1])
            self._complete(numbers[-1])
            self._clean_staging(last)
            return last

    def last(self) -> Commit | None:
        """Return the last commit. Raises CommitRefused, DirectoryUnusable."""
        with self._translated_errors():
            numbers = self._numbers()
            return self._read(numbers[-1])[0] if numbers else None

    def staging_of(self, commit: Commit) -> str:
        """Return the URL under which the objects of a commit are written: a separate prefix for each commit."""
        return f"{self._own.name}/{_STAGING}/{_staging_name(commit)}"

    def commit(self, commit: Commit, new_files: Sequence[tuple[str, int]]) -> None:
        """Make objects part of the table, with the commit.

        Args:
            new_files: their names below `staging_of`, and their sizes.

        Raises:
            Overtaken: this number is committed already; the staged objects are removed.
            DirectoryUnusable: nothing is committed, or all is and a part is not copied yet: the next `open` decides.
        """
        with self._translated_errors():
            if commit.number and self._whole_number < commit.number - 1:
                self._complete(commit.number - 1)  # of a process that was faster, and may be dead
            content = {
                "commit": json.loads(commit.to_json()),
                "files": [_move_of(name, nbytes, at, commit) for at, (name, nbytes) in enumerate(sorted(new_files))],
            }
            self._step("create the commit")
            if not self._own.create(f"{_COMMITS}/{_file(commit.number)}", json.dumps(content).encode()):
                self._remove_staged(commit)
                raise Overtaken(f"commit {commit.number} of {self.name} was made by another process")
            self._move(content["files"], commit.number)
            self._whole_number = commit.number

    def files(self) -> list[str]:
        """Return the names of the committed objects that exist. Raises DirectoryUnusable."""
        with self._translated_errors():
            return self._row_files()

    def folder(self) -> str | None:
        """The folder of the object committed last, "" if it is outside of folders; None without objects. Raises
        CommitRefused, DirectoryUnusable.
        """
        with self._translated_errors():
            commits = (self._read(number)[1] for number in reversed(self._numbers()))
            return next((folder_of(files[0]) for files in commits if files), None)

    def close(self) -> None:
        """Close connections."""
        self._table.close()

    # -- commits -------------------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        matches = (_COMMIT.fullmatch(name) for name in self._own.names(_COMMITS))
        return sorted(int(each[1]) for each in matches if each is not None)

    def _read(self, number: int) -> tuple[Commit, list[dict[str, Any]]]:
        name = f"{_COMMITS}/{_file(number)}"
        path = self._own.path(name)
        try:
            document = json.loads(self._own.read_range(name, _COMMIT_BYTES_MAX, 0))
            files: list[dict[str, Any]] = [dict(each) for each in document["files"]]
            commit = parse_commit(json.dumps(document["commit"]), path)
        except (ValueError, KeyError, TypeError) as error:
            raise CommitRefused(f"{path} is damaged ({error}); restore it, or write to a new prefix") from error
        if commit.number != number:
            raise CommitRefused(f"{path} has commit {commit.number}: restore it, or write to a new prefix")
        return commit, files

    def _row_files(self) -> list[str]:
        return [
            name for name in self._table.names_below() if name.endswith(".parquet") and not name.startswith(f"{OWN}/")
        ]

    def _check(self, numbers: list[int], rows: list[str]) -> None:
        if gaps := [want for want, number in enumerate(numbers) if number != want]:
            raise CommitRefused(
                f"commit {gaps[0]} is missing in {self._own.name}/{_COMMITS}: it was removed. Restore it, or write "
                f"to a new prefix"
            )
        for name in rows:
            match = _ROWS.fullmatch(name)
            if match is None or int(match[1]) >= len(numbers):
                raise CommitRefused(
                    f"{self._table.path(name)} was not written by this pipeline: its rows would be mixed with "
                    f"those of the topic. Move it away, or write to a new prefix"
                )

    # -- objects -------------------------------------------------------------------------------------------------------

    def _complete(self, number: int) -> None:
        self._move(self._read(number)[1], number)
        self._whole_number = number

    def _move(self, files: list[dict[str, Any]], number: int) -> None:
        """Copy staged objects to their places, and then remove them. Another process may do the same meanwhile."""
        for each in files:
            self._step("copy an object")
            try:
                self._table.copy(self._own, each["from"], each["to"])
            except NotStored:
                if not self._exists(each["to"]):  # it is where it belongs if another process was faster
                    raise CommitRefused(
                        f"{self._table.path(each['to'])}, a file of commit {number}, is missing: it was removed. "
                        f"Restore it, or write to a new prefix"
                    ) from None
        for each in files:
            self._step("remove a staged object")
            self._own.remove(each["from"])

    def _exists(self, name: str) -> bool:
        try:
            self._table.read_range(name, 1, 0)
        except NotStored:
            return False
        return True

    def _remove_staged(self, commit: Commit) -> None:
        folder = f"{_STAGING}/{_staging_name(commit)}"
        for name in list(self._own.names_below(folder)):
            self._own.remove(f"{folder}/{name}")

    def _clean_staging(self, last: Commit) -> None:
        """Remove staged objects that can never be committed. The rest may be of a process that still writes."""
        for name in list(self._own.names_below(_STAGING)):
            match = _STAGED.fullmatch(name.partition("/")[0])
            if match is not None and int(match[2]) <= last.number:
                self._step("remove staging")
                self._own.remove(f"{_STAGING}/{name}")

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except NotStored as error:
            raise CommitRefused(f"{error}; restore it, or write to a new prefix") from error
        except BackupRefused as error:
            raise CommitRefused(f"{error}. Nothing was written") from error
        except StoreFailed as error:
            raise DirectoryUnusable(
                f"{error}. The table needs an S3 bucket in which this user may list, read, write and remove objects. "
                f"What was committed stays, and the next run continues there"
            ) from error


def _staging_name(commit: Commit) -> str:
    return f"{commit.run}-{commit.number}"


def _file(number: int) -> str:
    return f"{number:0{_DIGITS}}.json"


def _move_of(name: str, nbytes: int, index: int, commit: Commit) -> dict[str, Any]:
    """The path of a staged object, relative to our own prefix, and its target, relative to the table."""
    folder, slash, _ = name.rpartition("/")
    target = f"{folder}{slash}part-{commit.number:0{_DIGITS}}-{index}-{commit.run}.parquet"
    return {"from": f"{_STAGING}/{_staging_name(commit)}/{name}", "to": target, "bytes": nbytes}
