"""Damages the log of a stopped broker as disks do. Each object knows whether its damage still exists."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from jepsen.derived_messages import PROPERTY
from mq.protocol.messages.records import MAGIC_V1, StoredMessage, decode_record

TAIL_BYTES_MAX = 5000
SLOT_BYTES, SLOTS, SLOT_USED_BYTES = 4096, 2, 200
"""The vote file has two slots; the second is used while the first is written."""

BLOCK_BYTES = 4096
ENTRY_BYTES_MAX = 96 * 1024
"""Larger than any entry of a log in a run."""
STRETCH_BYTES = 64 * 1024

SIZE_BYTES = 4
"""The length of a record's size, before its magic number."""
_MAGIC = MAGIC_V1.to_bytes(4, signed=True)
_PROPERTY = re.compile(f"{PROPERTY}\x01".encode())

BALLAST = "ballast"


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A damaged file, with its original content. ``returns``: whether a broker must restore exactly these bytes."""

    path: Path
    before: bytes
    returns: bool

    @property
    def is_changed(self) -> bool:
        """Whether the file exists and differs from the original."""
        now = self._now()
        return now is not None and now != self.before

    @property
    def changed_bytes(self) -> int:
        """The number of bytes that differ from the original, or are missing."""
        now = self._now() or b""
        longer = abs(len(now) - len(self.before))
        return longer + sum(a != b for a, b in zip(now, self.before, strict=False))

    def _now(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None  # deleted by retention


def closed_files(commitlog: Path) -> list[Path]:
    """Return the complete files of a log, oldest first.

    The next file is prepared in advance: the active one may be followed by an empty one.
    """
    if not commitlog.is_dir():
        return []
    paths = sorted(path for path in commitlog.iterdir() if path.name.isdigit())
    while paths and not any(paths[-1].read_bytes()):
        paths.pop()
    return paths[:-1]


def forget_sidecars(commitlog: Path) -> None:
    """Remove the indexes of closed files, so that the next start has to read these files."""
    for path in commitlog.glob("*.index"):
        path.unlink()


def flip(path: Path, at: int, bit: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def flip_bits(rng: Random, paths: Sequence[Path], *, bits_max: int) -> list[DamagedFile]:
    """Flip up to ``bits_max`` different bits in the written part of each file.

    Not after its last entry: the unused rest of a closed file is never read, and so never repaired.
    """
    files = []
    for path in paths:
        before = path.read_bytes()
        files.append(DamagedFile(path, before, returns=True))
        for at in {rng.randrange(len(before.rstrip(b"\0"))) for _ in range(rng.randrange(1, bits_max + 1))}:
            flip(path, at, rng.randrange(8))
    return files


def flip_property(rng: Random, paths: Sequence[Path]) -> tuple[DamagedFile, StoredMessage] | None:
    """Flip a bit in a property of a client's message. Returns the file and the message; None if no file has one."""
    for path in rng.sample(list(paths), len(paths)):
        before = path.read_bytes()
        ends = [match.end() for match in _PROPERTY.finditer(before)]
        rng.shuffle(ends)
        for at in ends:
            begin = before.rfind(_MAGIC, 0, at) - SIZE_BYTES
            message = decode_record(memoryview(before), offset=begin) if begin >= 0 else None
            if message is not None and message.topic.isalnum():  # no internal topic
                flip(path, at, 0)
                return DamagedFile(path, before, returns=True), message
    return None


def break_block(rng: Random, path: Path, *, misdirected: bool) -> list[DamagedFile]:
    """Replace a written block by zeros, or by another block of the file."""
    before = path.read_bytes()
    blocks = len(before.rstrip(b"\0")) // BLOCK_BYTES
    if blocks < 2:
        return flip_bits(rng, [path], bits_max=1)
    source, target = rng.sample(range(blocks), 2)
    block = before[source * BLOCK_BYTES : (source + 1) * BLOCK_BYTES] if misdirected else bytes(BLOCK_BYTES)
    with path.open("r+b") as file:
        file.seek(target * BLOCK_BYTES)
        file.write(block)
    return [DamagedFile(path, before, returns=True)]


def damage_all_copies(rng: Random, logs: Mapping[str, Path]) -> dict[str, list[DamagedFile]]:
    """Damage every replica, each at a place where the others are intact. Returns the damaged files by replica.

    Files that all replicas have closed, and that are equal, are damaged in turns: in each stretch of a file one replica
    gets a flipped bit in each block; the gap between stretches is longer than any entry.
    """
    common = set.intersection(*({path.name for path in closed_files(log)} for log in logs.values()))
    files: dict[str, list[DamagedFile]] = {node: [] for node in logs}
    nodes = sorted(logs)
    turn = rng.randrange(len(nodes))
    for name in sorted(common):
        contents = {node: (logs[node] / name).read_bytes() for node in nodes}
        whole = contents[nodes[0]]
        if any(content != whole for content in contents.values()):
            continue
        used_bytes = len(whole.rstrip(b"\0"))
        for begin in range(0, used_bytes, STRETCH_BYTES + ENTRY_BYTES_MAX):
            node = nodes[turn % len(nodes)]
            turn += 1
            for block in range(begin, min(begin + STRETCH_BYTES, used_bytes), BLOCK_BYTES):
                flip(logs[node] / name, rng.randrange(block, min(block + BLOCK_BYTES, used_bytes)), rng.randrange(8))
            if not any(each.path.name == name for each in files[node]):
                files[node].append(DamagedFile(logs[node] / name, whole, returns=True))
    return files


def break_end(rng: Random, commitlog: Path) -> list[DamagedFile]:
    """Damage the last written bytes: flip a bit, zero them, cut them off, or overwrite them with garbage.

    The newest file may be prepared and empty; then the end is in the previous one. An empty log is left unchanged.
    """
    newest_first = sorted((path for path in commitlog.iterdir() if path.name.isdigit()), reverse=True)
    paths_and_data = ((path, path.read_bytes()) for path in newest_first)
    path, before = next(((path, data) for path, data in paths_and_data if any(data)), (commitlog, b""))
    if not before:
        return []
    used_bytes = len(before.rstrip(b"\0"))
    keep = max(0, used_bytes - rng.randrange(1, TAIL_BYTES_MAX))
    match rng.choice(("flip", "zero", "truncate", "rubbish")):
        case "flip":
            flip(path, rng.randrange(max(0, used_bytes - 200), used_bytes), rng.randrange(8))
        case "truncate":
            with path.open("r+b") as file:
                file.truncate(keep)
        case how:
            with path.open("r+b") as file:
                file.seek(keep)
                file.write(bytes(used_bytes - keep) if how == "zero" else rng.randbytes(used_bytes - keep))
    return [DamagedFile(path, before, returns=False)]


def break_vote(rng: Random, commitlog: Path) -> list[DamagedFile]:
    """Flip a bit in one of the two slots of the file that stores the term and the vote."""
    path = commitlog / "meta"
    before = path.read_bytes()
    flip(path, rng.randrange(SLOTS) * SLOT_BYTES + rng.randrange(SLOT_USED_BYTES), rng.randrange(8))
    return [DamagedFile(path, before, returns=False)]


def fill(directory: Path, used_part: float) -> int:
    """Fill the file system up to the fraction ``used_part`` by writing a file. Returns the free bytes that remain."""
    usage = shutil.disk_usage(directory)
    nbytes = int(usage.total * used_part) - usage.used
    with (directory / BALLAST).open("wb") as file:
        try:
            while nbytes > 0:
                nbytes -= os.write(file.fileno(), bytes(min(nbytes, 65536)))
        except OSError:
            pass  # the disk is full
    return shutil.disk_usage(directory).free
