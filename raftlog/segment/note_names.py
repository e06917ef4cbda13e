"""Names of the notes that log and node leave for their next start; see `SegmentLog.notes`."""

from __future__ import annotations

from typing import Final

CONF: Final = "conf"
"""The configuration in force at the base, which is no longer in the log itself."""

DAMAGED: Final = "damaged"
"""Verify every entry: a running node found damage at this position, in decimal, or a repair was not finished."""

REPLACING: Final = "replacing"
"""First position and end, in decimal, of bytes that a repair is replacing: they may be only in the cache."""

ABSTAINING: Final = "abstaining"
"""Entries that this replica acknowledged may be missing: it must not vote before it has caught up."""

UNSYNCED: Final = "unsynced"
"""The process that has the log open acknowledges entries before they are durable."""

EARLY: Final = "early"
"""Entries before the base were deleted earlier than retention allows; the content is the application's."""

EARLY_ELSEWHERE: Final = b""
"""The content of `EARLY` if not this replica deleted them, but perhaps the one from which it fetched its log."""

COPIED: Final = "copied"
"""Notes of another replica's application about the files of the log that were copied from it."""

REFILLED: Final = "refilled"
"""The beginning of the log was fetched from a peer: the application has not read those entries yet."""

STORES: Final = "stores"
"""The directory of each member."""

MEMBERS: Final = "members"
"""The newest configuration in force and the entry that set it, for a node whose log cannot be read, and for a backup.

With entry 0 it is the one from the settings at the last start; that node uses its current settings all the same.
"""
