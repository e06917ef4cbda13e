"""Writes small files that survive a power cut once a function returns. POSIX promises that only after a sync of the
file, of its directory, and of each new directory above it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make a directory and those above it, and sync them. The directory may exist already. Raises OSError."""
    path = path.absolute()
    if path.is_dir():
        return
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):  # another process may be faster
        path.mkdir()
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable. Raises OSError.

    Windows syncs no directories, and does nothing here.
    """
    if sys.platform == "win32":
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_new(path: Path, data: bytes) -> None:
    """Write a file and sync its content. Its name is durable only once its directory is synced.

    Raises OSError; then the file does not exist.
    """
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, and make its directory if needed. A power cut leaves the old file or the new one.

    Raises OSError; then it is one of these as well.
    """
    make_directory(path.parent)
    fresh = path.with_name(path.name + ".new")
    write_new(fresh, data)
    fresh.replace(path)
    sync_directory(path.parent)
