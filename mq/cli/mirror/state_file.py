"""Reads, writes and locks the file with the state of a mirror."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mq.cli.errors import CommandFailed
from mq.cli.mirror.state import FORMAT, MirrorState
from mq.durable_files import replace_file


def load(path: Path) -> MirrorState | None:
    """Read the state from a file; None without a file. Raises CommandFailed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from error
    try:
        version = json.loads(data).get("format")
        if version != FORMAT:
            raise CommandFailed(f"{path} has format {version}, this version of raftmq reads format {FORMAT}")
        return msgspec.json.decode(data, type=MirrorState)
    except (ValueError, AttributeError, msgspec.ValidationError) as error:
        raise CommandFailed(
            f"{path} is not a state file of a mirror: {error}. Without it, `raftmq mirror` finds out from the "
            "target what was copied: move it away"
        ) from error


def save(path: Path, state: MirrorState) -> None:
    """Replace the file. A crash leaves the old or the new content. Raises CommandFailed."""
    try:
        replace_file(path, msgspec.json.encode(state))
    except OSError as error:
        raise CommandFailed(
            f"{path}: {error.strerror}; the mirror stops, and goes on when it is started again"
        ) from error


@contextlib.contextmanager
def lock_state(path: Path) -> Iterator[None]:
    """Keep other processes from using the state file during the block. Raises CommandFailed."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandFailed(f"{lock}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CommandFailed(
                f"another mirror runs with the state {path}: stop it first, or name another file with --state"
            ) from error
        yield
    finally:
        os.close(descriptor)
