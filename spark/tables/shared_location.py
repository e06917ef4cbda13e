"""Checks that the executors of a cluster see the driver's directory: a table format does not notice if they do not.

Then each machine has some of the files, and the commit names all of them. Executors import this module.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from spark.tables.parquet_directory import DirectoryUnusable

_TASKS_MIN: Final = 8
_TASK_SECONDS: Final = 0.05
"""Seconds of a task: long enough that no executor takes the tasks of another one."""


def local_path(location: str, default_scheme: str) -> str | None:
    """The path of a location on this machine; None if it is in another storage.

    Args:
        default_scheme: of locations without one, such as file or hdfs.
    """
    parts = urlsplit(location)
    if (parts.scheme or default_scheme) != "file":
        return None
    return unquote(parts.path) if parts.scheme else location


def check_shared(context: Any, location: Callable[[], str]) -> None:
    """Raise DirectoryUnusable if a present executor does not see the files that this process writes at a location.

    Nothing is asked if the executors are in this process, or the location is none of a machine's own file system.

    Args:
        context: of Spark.
        location: says where the files of the table are; empty if that is not known.
    """
    if context.master.startswith("local"):
        return
    default = str(context._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///"))
    path = local_path(location(), urlsplit(default).scheme)
    if not path:
        return
    tasks = max(_TASKS_MIN, 2 * context.defaultParallelism)
    ask_executors(Path(path), lambda see: context.parallelize(range(tasks), tasks).map(see).collect())


def ask_executors(directory: Path, ask: Callable[[Callable[[int], str | None]], Iterable[str | None]]) -> None:
    """Raise DirectoryUnusable if a machine does not see a file that this process writes into a directory.

    Args:
        ask: calls a function on all machines; it returns the name of one that does not see the file.
    """
    probe = directory / f"_raftmq-{uuid.uuid4().hex}"  # no format takes such a file for one of the table
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise DirectoryUnusable(
            f"{error.filename}: {error.strerror}; the table needs a directory that this user may write"
        ) from error
    try:
        blind = sorted({host for host in ask(_sees(str(probe))) if host is not None})
    finally:
        probe.unlink(missing_ok=True)
    if blind:
        raise DirectoryUnusable(
            f"the executor on {blind[0]} does not see what the driver writes into {directory}: nothing of this commit "
            f"is in the table. On a cluster, that must be the same directory on all machines, such as one of NFS; or "
            f"write to HDFS or into a bucket"
        )


def _sees(path: str) -> Callable[[int], str | None]:
    def see(_: int) -> str | None:
        time.sleep(_TASK_SECONDS)
        return None if os.path.exists(path) else socket.gethostname()

    return see
