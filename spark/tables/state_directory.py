"""The state directory of a pipeline: data that a repeated commit must repeat, and notes for `status`.

    STATE/plan.json     the range of a commit that has dead letters, before the first of them is sent
    STATE/note.json     the last commit and the figures of the running process, for people and `raftmq table status`

The table alone tells which messages are committed. If these files are lost, no row is lost or doubled; dead letters of
a commit that was killed in between may then be sent twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spark.tables.commits import Commit, CommitRefused, parse_commit
from spark.tables.parquet_directory import DirectoryUnusable, Locked

_ASKING_SECONDS: Final = 0.002
"""Seconds that a process shares the lock while it asks who has it, on a busy machine."""
_TRIES: Final = 1000


class StateDirectory:
    """The state files of one pipeline."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None

    def open(self) -> None:
        """Create the directory and lock it. Raises DirectoryUnusable, Locked."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / "running", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(error) from error
        try:
            is_ours = _try_lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise _unusable(error) from error
        if not is_ours:
            os.close(descriptor)
            raise Locked(
                f"this pipeline is already running, with its state in {self.root}. Nothing was written; stop that "
                f"process first, or leave it running"
            )
        self._lock = descriptor

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_running(self) -> bool:
        """Whether a process of this machine holds the lock; to find out, this one takes a shared lock for a moment."""
        try:
            descriptor = os.open(self.root / "running", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locks(descriptor, fcntl.LOCK_SH)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def plan(self) -> Commit | None:
        """The commit whose dead letters may have been sent. Raises CommitRefused, DirectoryUnusable."""
        text = self._read("plan.json")
        return None if text is None else parse_commit(text, str(self.root / "plan.json"))

    def keep_plan(self, commit: Commit) -> None:
        """Remember a commit before its dead letters are sent. Raises DirectoryUnusable."""
        self._write("plan.json", commit.to_json())

    def last_note(self) -> dict[str, Any] | None:
        """The last note, None if there is none. Raises CommitRefused, DirectoryUnusable."""
        text = self._read("note.json")
        if text is None:
            return None
        try:
            note: dict[str, Any] = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise CommitRefused(f"{self.root / 'note.json'} is damaged ({error}): remove it") from error
        return note

    def keep_note(self, commit: Commit, figures: Mapping[str, Any]) -> None:
        """Replace the note. Raises DirectoryUnusable."""
        self._write("note.json", json.dumps({"commit": json.loads(commit.to_json()), "figures": dict(figures)}))

    def _read(self, name: str) -> str | None:
        try:
            return (self.root / name).read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(error) from error

    def _write(self, name: str, content: str) -> None:
        scratch = self.root / f".{name}.new"
        try:
            with scratch.open("w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.root / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise _unusable(error) from error


def _try_lock(descriptor: int) -> bool:
    """Lock a file; returns False if another run has it. Waits for a process that shares it briefly, only to ask."""
    for _ in range(_TRIES):
        if _locks(descriptor, fcntl.LOCK_EX):
            return True
        if not _locks(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_ASKING_SECONDS)
    return False


def _locks(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _unusable(error: OSError) -> DirectoryUnusable:
    return DirectoryUnusable(
        f"{error.filename}: {error.strerror}; set state, or for Parquet table.location, to a directory that this user "
        f"may write"
    )
