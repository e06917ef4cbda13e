"""Frames that are well-formed and say what no correct replica says, drawn at random."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import cbor2
import msgspec

from raftlog import ConfState, NodeId
from raftlog.consensus.confchange import encode_conf
from raftlog.consensus.messages import (
    Denial,
    Heartbeat,
    HeartbeatResp,
    PreVoteReq,
    PreVoteResp,
    ReadIndexReq,
    ReadIndexResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.types import LogId
from raftlog.log_numbers import LogIndex, Term
from raftlog.net import frames
from raftlog.net.frames import InstallOffer, Kind, RangeReq, RangeResp
from raftlog.replica import Replica
from raftlog.segment.codec import CONFIG, HEADER_BYTES, NOOP, NORMAL, frame, place

U64_MAX = 2**64 - 1
EDGES = (0, 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, U64_MAX)
STRANGE: tuple[object, ...] = (
    -1,
    -(2**63),
    -(2**64),
    1.5,
    None,
    True,
    "",
    "x" * 5000,
    b"\xff" * 100,
    [],
    {},
    list(range(300)),
)
_APPENDED = struct.Struct(">QQBQQQQ")
_APPEND = struct.Struct(">QQQQQIIH")


class HostilePeer:
    """Makes frames for one replica, from ``source``, that are near to what it would expect or far from it."""

    def __init__(self, rng: random.Random, source: NodeId, replica: Replica) -> None:
        self._rng = rng
        self._source = source
        self._replica = replica

    def frame(self) -> bytes:
        """The next frame."""
        make = self._rng.choice((self._cold, self._cold, self._appended, self._append, self._append, self._noise))
        return make()

    # -- numbers -------------------------------------------------------------------------------------------------

    def _near(self, number: int) -> int:
        return min(U64_MAX, max(0, number + self._rng.choice((-2, -1, 0, 0, 0, 1, 2))))

    def _term(self) -> Term:
        rng, term = self._rng, self._replica.core.term
        return Term(rng.choice(EDGES) if rng.random() < 0.1 else self._near(term))

    def _index(self) -> LogIndex:
        rng, core, log = self._rng, self._replica.core, self._replica.log
        known = (core.last_index, core.commit, core.durable, log.base[0], 0)
        return LogIndex(rng.choice(EDGES) if rng.random() < 0.1 else self._near(rng.choice(known)))

    def _id(self) -> LogId:
        core = self._replica.core
        if self._rng.random() < 0.5:
            index = min(max(self._index(), self._replica.log.base[0]), core.last_index)
            return core._log.id_at(index)
        return LogId(self._index(), self._term())

    # -- frames --------------------------------------------------------------------------------------------------

    def _cold(self) -> bytes:
        rng, ends = self._rng, (self._source, self._replica.core.node_id, self._term())
        value: Any = rng.choice(
            (
                lambda: PreVoteReq(*ends, self._term() + 1, self._id()),
                lambda: PreVoteResp(*ends, rng.random() < 0.8, self._id(), rng.choice((None, *Denial))),
                lambda: VoteReq(*ends, self._id(), rng.random() < 0.5),
                lambda: VoteResp(*ends, rng.random() < 0.8, rng.choice((None, *Denial))),
                lambda: Heartbeat(*ends, self._index(), self._index(), self._index(), rng.choice((None, 0, 7))),
                lambda: HeartbeatResp(*ends, self._index(), self._index(), self._index(), True, self._index(), 3),
                lambda: TimeoutNow(*ends),
                lambda: ReadIndexReq(*ends, self._index()),
                lambda: ReadIndexResp(*ends, self._index(), rng.choice((None, self._index())), self._index()),
                lambda: InstallOffer(self._term(), rng.randbytes(20)),
                lambda: RangeReq("log", self._index(), self._index()),
                lambda: RangeResp("log", self._index(), self._index(), b"x"),
            )
        )()
        kind = frames._KIND_OF[type(value)]
        fields = msgspec.to_builtins(value, builtin_types=(bytes,))
        if rng.random() < 0.2:
            fields[rng.choice(list(fields))] = rng.choice((*EDGES, *STRANGE))
        if rng.random() < 0.02:
            fields |= {f"more{number}": number for number in range(300)}
        if rng.random() < 0.02:
            del fields[rng.choice(list(fields))]
        return self._framed(kind, cbor2.dumps(fields))

    def _noise(self) -> bytes:
        return self._framed(self._rng.choice(list(Kind)), self._rng.randbytes(self._rng.randrange(60)))

    def _framed(self, kind: Kind, payload: bytes) -> bytes:
        return frames._frame(kind, payload, 0, zlib.crc32(payload, kind))

    def _appended(self) -> bytes:
        last = self._id()
        numbers = (self._term(), self._index(), self._rng.choice((0, 1, 1)), self._index(), self._index())
        return self._framed(Kind.APPENDED, _APPENDED.pack(*numbers, last.index, last.term))

    def _append(self) -> bytes:
        """Entries that continue the log at some place, or nearly do."""
        rng, log = self._rng, self._replica.log
        prev = self._id()
        term = self._term() if rng.random() < 0.7 else max(prev.term, self._replica.core.term)
        chain, end = rng.getrandbits(32), rng.randrange(2**20)
        if log.base[0] <= prev.index <= log.last_index:
            last = log._last_before(prev.index)
            chain, end = last.chain, last.pos + last.size
        entries: list[bytes] = []
        index = prev.index
        entry_term = min(prev.term, U64_MAX)
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            index += 1 if rng.random() < 0.97 else 2
            entry_term = rng.choice((entry_term, entry_term, term, self._term()))
            kind, body = self._body()
            pos = place(end, HEADER_BYTES + len(body), log.files.segment_bytes)
            if rng.random() < 0.05:
                pos = rng.choice((pos + 8, *EDGES))
            pos = min(pos, U64_MAX)
            header, chain = frame(kind, LogIndex(min(index, U64_MAX)), Term(entry_term), pos, body, chain)
            entries.append(header + body)
            end = pos + HEADER_BYTES + len(body)
        data = b"".join(entries)
        fixed = self._fixed(term, prev, data, len(entries))
        head = fixed + bytes(4 * len(entries))
        return frames._frame(Kind.APPEND, head, len(data), zlib.crc32(head, Kind.APPEND)) + data

    def append_at(self, pos: int) -> bytes:
        """The next entry of the log, with everything right but its position."""
        core, log = self._replica.core, self._replica.log
        header, _ = frame(NORMAL, LogIndex(log.last_index + 1), log.last_term, pos, b"good", log.chain)
        data = header + b"good"
        fixed = _APPEND.pack(core.term, log.last_index, log.last_term, core.commit, 1, log.chain, len(data), 1)
        head = fixed + bytes(4)
        return frames._frame(Kind.APPEND, head, len(data), zlib.crc32(head, Kind.APPEND)) + data

    def _fixed(self, term: int, prev: LogId, data: bytes, count: int) -> bytes:
        log = self._replica.log
        chain = self._rng.getrandbits(32)
        if log.base[0] <= prev.index <= log.last_index and self._rng.random() < 0.95:
            chain = log._last_before(prev.index).chain
        return _APPEND.pack(term, prev.index, prev.term, self._index(), self._index(), chain, len(data), count)

    def _body(self) -> tuple[int, bytes]:
        rng = self._rng
        names = [NodeId(name) for name in ("n0", "n1", "n2", "n3", "n" * 400)]
        draw = rng.random()
        if draw < 0.6:
            return NORMAL, b"good" * rng.randrange(1, 20)
        if draw < 0.7:
            return NORMAL, rng.randbytes(rng.choice((0, 1, 50, 5000)))
        if draw < 0.8:
            return NOOP, b""
        if draw < 0.85:
            return CONFIG, rng.randbytes(30)
        voters = tuple(rng.sample(names[:4], rng.choice((0, 1, 2, 3, 3, 4))))
        outgoing = tuple(names[:3]) if rng.random() < 0.5 else ()
        learners = tuple(name for name in names if name not in (*voters, *outgoing) and rng.random() < 0.2)
        address = rng.choice(("h:1", "h:1", "h:1", "no address", "h:99999"))
        conf = ConfState(voters, outgoing, learners, tuple((name, address) for name in voters))
        return CONFIG, encode_conf(conf)
