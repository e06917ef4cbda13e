"""Starts writing the changed pages of a file to the disk, without waiting for the disk."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_WRITE = 2
"""SYNC_FILE_RANGE_WRITE."""


def _find_call() -> Callable[[int, int, int, int], Any] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _find_call()


def begin_write_back(fd: int) -> None:
    """Start to write what of a file is only in the page cache. Makes nothing durable, and reports no error.

    A later fsync of the file waits for these writes and reports their errors. Does nothing if the system cannot.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _WRITE)
