"""Logs that a replica fetches from another one."""

from __future__ import annotations

import random
import zlib

import msgspec

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, NORMAL, SegmentLog
from raftlog.segment.limits import LogLimits
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall
from tests.unit.segment.log_home import LogHome

PIECE_BYTES = 500
LIMITS = LogLimits(piece_bytes=PIECE_BYTES)
SNAPSHOT = random.Random(1).randbytes(1700)


def fill(home: LogHome, count: int, committed: int = 1000) -> SegmentLog:
    log = home.open()
    rng = random.Random(5)
    for index in range(1, count + 1):
        log.append(
            CONFIG if index % 20 == 0 else NORMAL,
            LogIndex(index),
            Term(1 + index // 33),
            rng.randbytes(330 + index % 7),
        )
        home.submit(log, term=9, commit_hint=min(index, committed))
    if count > 30:
        log.drop_prefix(2 * 4096, b"conf at the base")
        home.submit(log)
    return log


def manifest_of(log: SegmentLog, committed: int = 1000, snapshot: bytes = SNAPSHOT) -> Manifest:
    manifest = log.manifest(LogIndex(committed), conf=b"conf at the base")
    return msgspec.structs.replace(manifest, snapshot_bytes=len(snapshot), snapshot_crc=zlib.crc32(snapshot))


def pull(staging: SnapshotInstall, log: SegmentLog, pieces: int = 10_000, rng: random.Random | None = None) -> int:
    """Answer requests from a log's files, some of them out of order; returns how many were answered."""
    done = 0
    while done < pieces and (wanted := staging.next_request()) is not None:
        in_flight = {wanted[:2]}
        while (rng or random).random() < 0.5 and (another := staging.next_request(in_flight)) is not None:
            wanted = another
            in_flight.add(wanted[:2])
        what, pos, nbytes = wanted
        assert 0 < nbytes <= PIECE_BYTES
        assert staging.accept(what, pos, log.read_range(pos, nbytes) if what == "log" else SNAPSHOT[pos : pos + nbytes])
        done += 1
    return done
