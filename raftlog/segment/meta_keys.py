"""Names of the notes by which log and node tell their next start what it must know; see `SegmentLog.notes`."""

from __future__ import annotations

from typing import Final

CONF: Final = "conf"
"""The configuration in force at the base, which the log itself does not say any more."""

DAMAGED: Final = "damaged"
"""Look at every entry: a running node found damage at this position, in decimal, or a repair was not finished."""

REPLACING: Final = "replacing"
"""First position and end, in decimal, of bytes that a repair is replacing: they may be in the cache only."""

ABSTAINING: Final = "abstaining"
"""Entries that this replica acknowledged may be missing: it must not vote before it has caught up."""

UNSYNCED: Final = "unsynced"
"""The process that has the log open acknowledges entries before they are durable."""

STORES: Final = "stores"
"""Which directory each member has."""

MEMBERS: Final = "members"
"""The newest configuration in force and the entry that set it, for a node whose log cannot be read, and for a backup.

With entry 0 it is the one that the settings gave at the last start; its node goes by its settings all the same."""
