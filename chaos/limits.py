"""Limits of the production code, drawn small for the length of a run, so that what lies behind them is common."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_HOLDERS: Final[dict[str, tuple[str, ...]]] = {
    "APPLY_BYTES_MAX": ("raftlog.replica",),
    "UNSYNCED_BYTES_MAX": ("raftlog.replica",),
    "ANCHOR_BYTES": ("raftlog.segment.index", "raftlog.segment.log"),
    "SYNC_BYTES_MAX": (
        "raftlog.segment.codec",
        "raftlog.segment.files",
        "raftlog.segment.group_commit",
        "raftlog.segment.recovery",
    ),
}
"""Each limit with all modules that know it by name."""


@contextmanager
def drawn(limits: Mapping[str, int]) -> Iterator[None]:
    """Let ``limits`` hold until the end of the block. Raises `KeyError` for a limit that nobody has."""
    before: list[tuple[object, str, int]] = []
    try:
        for name, value in limits.items():
            for holder in _HOLDERS[name]:
                module = importlib.import_module(holder)
                before.append((module, name, getattr(module, name)))
                setattr(module, name, value)
        yield
    finally:
        for target, name, value in reversed(before):
            setattr(target, name, value)
