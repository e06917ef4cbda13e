"""Limits of a log and of the replica that has it, as a value: production uses the defaults, tests and simulations less.

A directory must always be opened with the same ones: an index that was written with distant anchors is not read with
near ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog.segment.codec import SYNC_BYTES_MAX
from raftlog.segment.index import ANCHOR_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Limits of a log and of its replica."""

    sync_bytes_max: int = SYNC_BYTES_MAX
    """Bytes that are written before they are synced, unless a single entry is larger; no more than `SYNC_BYTES_MAX`."""
    anchor_bytes: int = ANCHOR_BYTES
    """Distance of anchors in the index; a read of one entry reads as much."""
    apply_bytes_max: int = 1024 * 1024
    """Entries that are applied in one turn, in bytes; the rest follows in the next, so that sockets do not wait."""
    unsynced_bytes_max: int = 64 * 1024 * 1024
    """Entries that a follower keeps in memory for a stalled disk; above it, it accepts no further ones."""
    gap_bytes_max: int = 32 * 1024
    """A disk read costs about as much as copying this from the page cache: so much between two pieces is read, too."""
    pieces_bytes_max: int = 1024 * 1024
    """Bytes that are read at once for several pieces."""
    pieces_kept_min: int = 32 * 1024
    """Bytes of a run that is cached; reading a shorter one again costs about as much as finding it."""
    verified_bytes_max: int = 64 * 1024 * 1024
    """Verified bytes of one log cached in memory; a single read may temporarily exceed it."""
    verified_run_bytes: int = 512 * 1024
    """Size of a run for sequential readers. It ends with an entry, so none is read twice."""
    piece_bytes: int = 1024 * 1024
    """Bytes that are fetched at once of a log or snapshot that replaces this one, or is put in front of it."""
    repair_bytes_max: int = 256 * 1024
    """Bytes that are requested at once for the repair of this log."""

    def __post_init__(self) -> None:
        assert 0 < self.sync_bytes_max <= SYNC_BYTES_MAX, f"{self.sync_bytes_max} of {SYNC_BYTES_MAX} bytes per sync"
        assert self.piece_bytes > 0, f"pieces of {self.piece_bytes} bytes"
        assert self.repair_bytes_max > 0, f"requests of {self.repair_bytes_max} bytes for repair"


DEFAULT: Final = LogLimits()

TEST_MIN: Final = LogLimits(
    sync_bytes_max=600,
    anchor_bytes=200,
    apply_bytes_max=1,
    unsynced_bytes_max=2000,
    gap_bytes_max=0,
    pieces_bytes_max=700,
    pieces_kept_min=100,
    verified_bytes_max=1000,
    verified_run_bytes=1,
    piece_bytes=4096,
    repair_bytes_max=700,
)
"""For tests and simulations."""
