"""The requests of a node with a damaged log to its peers, the handling of their answers, and its own answers to them.

Pure: the caller sends requests and passes the answers. Peers are queried one after the other, repeatedly, each for the
next piece as long as it has some. At first only committed bytes are requested; if none arrive for a while, perhaps
nothing can be committed without this replica, and uncommitted bytes are accepted, too. They are safe: they must connect
to the intact part behind the damage, or this replica abstains until it has heard of a leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.consensus.types import NodeId
from raftlog.net.frames import RANGE_BYTES_MAX, RangeReq, RangeResp
from raftlog.node_limits import DEFAULT
from raftlog.range_server import DAMAGED_HERE, GONE, NOT_HERE, NOT_YET, RangeRefused
from raftlog.segment.repair import Repair


class RepairDialogue:
    """Makes the requests of one `Repair`, in rounds: ask every reachable peer, then call `end_round`.

    Args:
        now: seconds, on any clock that the caller keeps using.
        patience_seconds: see `NodeLimits.repair_patience_seconds`.

    Attributes:
        last_responses: the last answer of each peer.
        has_moved: whether this round has made progress.
    """

    def __init__(self, repair: Repair, now: float, patience_seconds: float = DEFAULT.repair_patience_seconds) -> None:
        self.repair = repair
        self.last_responses: dict[NodeId, str] = {}
        self._moved_at = now
        self._patience_seconds = patience_seconds
        self.has_moved = False
        self._uncommitted = False

    def begin_round(self, peers: Iterable[NodeId]) -> None:
        """Ask ``peers``, all other members, from now on; the log may be cut when all of them have refused."""
        self.last_responses = dict.fromkeys(peers, "not connected")
        self.repair.peers = set(self.last_responses)
        self.has_moved = False

    def request(self, peer: NodeId) -> RangeReq | None:
        """Return the next request to ``peer``; None if nothing is missing."""
        span = self.repair.next_request()
        if span is None:
            return None
        self.last_responses[peer] = "no answer"
        return RangeReq("log", *span, uncommitted=self._uncommitted)

    def process_response(self, peer: NodeId, response: RangeResp) -> bool:
        """Process an answer to the last request; returns whether to ask ``peer`` for more. Raises `StorageFailed`."""
        self.last_responses[peer] = response.refusal or f"{len(response.data)} bytes"
        if response.refusal is None:
            goes_on = self.repair.offer(response.pos, response.data, peer)
            self.has_moved |= goes_on
            return goes_on
        if response.refusal != NOT_YET:
            self.repair.on_refusal(response.pos, peer, damaged=response.refusal == DAMAGED_HERE)
        return False

    def end_round(self, now: float) -> bool:
        """End a round in which all peers were asked; returns whether the lack of progress should be logged."""
        if self.has_moved:
            self._moved_at = now
            return False
        if now - self._moved_at <= self._patience_seconds or self.repair.done:
            return False
        self._uncommitted = True
        return True


def damaged_log_bytes(repair: Repair, request: RangeReq) -> bytes:
    """Return the bytes that a node with a damaged log serves to a peer. Raises `RangeRefused`, StorageFailed."""
    pos = request.pos
    if request.source != "log":
        raise RangeRefused(NOT_YET)
    if (data := repair.serve(pos, min(request.nbytes, RANGE_BYTES_MAX))) is not None:
        return data
    # If the range is restored, it comes from a replica that the requester will reach, too.
    if repair.lacks(pos):
        raise RangeRefused(DAMAGED_HERE)
    raise RangeRefused(GONE if pos < repair.meta.starts_at.pos else NOT_HERE)
