"""Stores the key-value configuration of a name server in ``kvConfig.json``, with the previous state as ``.bak``.

A change is on disk before its sender gets an answer. Concurrent changes are written together.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio

from mq.durable_files import make_directory, sync_directory, write_new
from mq.namesrv.kv_config import KvConfig
from mq.protocol.errors import BodyError

FILE_NAME = "kvConfig.json"


class KvFileDamaged(Exception):
    """Neither the file nor the previous one can be read. Both are left unchanged."""


class KvFile:
    """Stores one configuration in a file. Without a directory nothing is stored."""

    def __init__(self, config: KvConfig, directory: Path | None) -> None:
        self._config = config
        self._path = None if directory is None else directory / FILE_NAME
        self._saved_version = config.version
        self._lock = trio.Lock()
        # Then the previous file is the only good one, and must not be replaced by the damaged one.
        self._newest_is_damaged = False

    def load(self) -> str | None:
        """Load the file. Returns the error in the newest file if the previous one was used.

        Raises KvFileDamaged, OSError.
        """
        if self._path is None:
            return None
        faults: list[str] = []
        for path in (self._path, _backup(self._path)):
            try:
                self._config.restore(path.read_bytes())
                self._newest_is_damaged = bool(faults)
                return faults[0] if faults else None
            except FileNotFoundError:
                continue
            except BodyError as error:
                faults.append(f"{path}: {error}")
        if faults:
            raise KvFileDamaged("; ".join(faults))
        return None

    async def save(self) -> None:
        """Write all changes so far to disk, and return when they are there. Raises OSError."""
        await trio.lowlevel.checkpoint()
        if self._path is None:
            return
        async with self._lock:
            version = self._config.version
            if version != self._saved_version:
                keeps_previous = not self._newest_is_damaged
                await trio.to_thread.run_sync(
                    partial(_write, self._path, self._config.encode(), keeps_previous=keeps_previous)
                )
                self._saved_version = version
                self._newest_is_damaged = False


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _write(path: Path, data: bytes, *, keeps_previous: bool) -> None:
    make_directory(path.parent)
    fresh = path.with_name(path.name + ".new")
    write_new(fresh, data)
    if keeps_previous and path.exists():
        path.replace(_backup(path))
    fresh.replace(path)
    sync_directory(path.parent)
