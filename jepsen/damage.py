"""Damage to the files of a stopped broker's log, as disks do it; each knows whether it is still there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

TAIL_BYTES_MAX = 5000
SLOT_BYTES, SLOTS, SLOT_USED_BYTES = 4096, 2, 200
"""The vote file has two slots; the second is used while the first is written."""

BALLAST = "ballast"


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file, as it was before. ``returns``: a broker must bring these very bytes back."""

    path: Path
    before: bytes
    returns: bool

    @property
    def is_changed(self) -> bool:
        """Whether it is there and differs from what it was."""
        now = self._now()
        return now is not None and now != self.before

    @property
    def changed_bytes(self) -> int:
        """In how many bytes it differs, those that are missing included."""
        now = self._now() or b""
        longer = abs(len(now) - len(self.before))
        return longer + sum(a != b for a, b in zip(now, self.before, strict=False))

    def _now(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None  # removed, because it had its time


def closed_files(commitlog: Path) -> list[Path]:
    """The files of a log that are written no more, the oldest first."""
    if not commitlog.is_dir():
        return []
    return sorted(path for path in commitlog.iterdir() if path.name.isdigit())[:-1]


def forget_sidecars(commitlog: Path) -> None:
    """Remove what would spare the next start from reading closed files."""
    for path in commitlog.glob("*.index"):
        path.unlink()


def flip(path: Path, at: int, bit: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def flip_bits(rng: Random, paths: Sequence[Path], *, bits_max: int) -> list[Damaged]:
    """Flip up to so many different bits in what was written to each file.

    Not behind its last entry: nobody reads the unused rest of a closed file, so nobody repairs it.
    """
    damaged = []
    for path in paths:
        before = path.read_bytes()
        damaged.append(Damaged(path, before, returns=True))
        for at in {rng.randrange(len(before.rstrip(b"\0"))) for _ in range(rng.randrange(1, bits_max + 1))}:
            flip(path, at, rng.randrange(8))
    return damaged


def break_end(rng: Random, commitlog: Path) -> list[Damaged]:
    """Flip a bit in the last bytes that were written, or zero them, cut them off, or write rubbish over them.

    The newest file may be prepared and empty; then the end is in the one before. An empty log is left alone.
    """
    newest_first = sorted((path for path in commitlog.iterdir() if path.name.isdigit()), reverse=True)
    written = ((path, path.read_bytes()) for path in newest_first)
    path, before = next(((path, data) for path, data in written if any(data)), (commitlog, b""))
    if not before:
        return []
    used = len(before.rstrip(b"\0"))
    keep = max(0, used - rng.randrange(1, TAIL_BYTES_MAX))
    match rng.choice(("flip", "zero", "truncate", "rubbish")):
        case "flip":
            flip(path, rng.randrange(max(0, used - 200), used), rng.randrange(8))
        case "truncate":
            with path.open("r+b") as file:
                file.truncate(keep)
        case how:
            with path.open("r+b") as file:
                file.seek(keep)
                file.write(bytes(used - keep) if how == "zero" else rng.randbytes(used - keep))
    return [Damaged(path, before, returns=False)]


def break_vote(rng: Random, commitlog: Path) -> list[Damaged]:
    """Flip a bit in one of the two slots of the file with term and vote."""
    path = commitlog / "meta"
    before = path.read_bytes()
    flip(path, rng.randrange(SLOTS) * SLOT_BYTES + rng.randrange(SLOT_USED_BYTES), rng.randrange(8))
    return [Damaged(path, before, returns=False)]


def fill(directory: Path, used: float) -> int:
    """Write a file until so large a part of the file system is in use; returns how many bytes are free then."""
    usage = shutil.disk_usage(directory)
    nbytes = int(usage.total * used) - usage.used
    with (directory / BALLAST).open("wb") as file:
        try:
            while nbytes > 0:
                nbytes -= os.write(file.fileno(), bytes(min(nbytes, 65536)))
        except OSError:
            pass  # full is full
    return shutil.disk_usage(directory).free
