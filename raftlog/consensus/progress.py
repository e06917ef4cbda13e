"""A leader's knowledge of one peer: its entries, the messages in flight, and when it was last heard.

``PROBE``: the logs may differ. One request is outstanding; its answer says where to continue. ``REPLICATE``: the logs
agree up to ``next - 1`` as far as is known. Requests are pipelined, within a window of messages and bytes that the
peer's ``accepted`` frees. ``SNAPSHOT``: the peer's next entry was deleted from the log, or it lacks so much that it
should fetch whole segments. No entries are sent; now and then an empty request asks whether the log can serve the peer
again.

Every change of state begins a new *epoch* of request numbers. Rejections of earlier requests are obsolete and dropped.
"""

from __future__ import annotations

from collections import deque

from raftlog.consensus.types import CoreConfig, NodeId, PeerState, Span
from raftlog.log_numbers import FIRST_INDEX, NO_INDEX, LogIndex


class Progress:
    """The state of replication to ``peer``.

    ``match`` is the last index there that is used for the commit index; ``next`` the first one not sent yet.
    ``contact_at`` is the send time of the newest message that the peer has certainly received; ``silent_since`` is the
    same time, moved forward by every stall of this process since then (`record_stall`). ``read_round`` is the newest
    round of reads that the peer has answered; ``offered_at`` the time of the last offer of segments, ``beats`` the
    heartbeats since its fetching began. ``by_entries`` says that there are no files for it to fetch. Answers to
    messages before ``trusted_from`` do not tell what it has. ``has_answered`` says that it has answered a heartbeat of
    this leader, and ``base`` and ``began_early`` what it said about the beginning of its log.
    """

    __slots__ = (
        "_epoch_seq",
        "_inflight",
        "_stamp_at",
        "_stamp_seq",
        "_stamp_silent_since",
        "append_seq",
        "applied",
        "base",
        "beats",
        "began_early",
        "by_entries",
        "commit_sent",
        "contact_at",
        "disk_ok",
        "fetch_first",
        "has_answered",
        "inflight_bytes",
        "match",
        "next",
        "offered_at",
        "peer",
        "priority",
        "read_round",
        "seq",
        "silent_since",
        "state",
        "trusted_from",
        "waits",
    )

    def __init__(self, peer: NodeId, next_index: LogIndex = FIRST_INDEX, now: float = 0.0) -> None:
        self.peer = peer
        self.seq = 0
        self._inflight: deque[tuple[LogIndex, int]] = deque()
        self.reset(next_index, now)

    def reset(self, next_index: LogIndex, now: float) -> None:
        """Reset all state of the peer. Assumes that its log ends where the leader's does."""
        self.match = NO_INDEX
        self.commit_sent = NO_INDEX
        self.disk_ok = True
        self.applied = NO_INDEX
        self.priority: int | None = None
        self.base: LogIndex | None = None
        self.has_answered = self.began_early = False
        self.offered_at = float("-inf")
        self.contact_at = self.silent_since = now
        self.read_round = 0
        self._stamp_seq = 0
        self._stamp_at = self._stamp_silent_since = now
        self.append_seq = 0
        self.trusted_from = 0
        self.by_entries = False
        self.beats = 0
        self.become_probe(next_index)

    def become_probe(self, next_index: LogIndex, *, waits: bool = False) -> None:
        """Probe the entry before ``next_index``; with ``waits``, not before the peer answers any message."""
        assert next_index > self.match, f"{self.peer} holds {self.match}, probing from {next_index} tells nothing"
        self.state = PeerState.PROBE
        self.next = next_index
        self.waits = waits
        self._begin_epoch()

    def become_replicate(self, next_index: LogIndex) -> None:
        """Stream from ``next_index`` on."""
        self.state = PeerState.REPLICATE
        self.next = next_index
        self.waits = False
        self._begin_epoch()

    def become_snapshot(self, next_index: LogIndex) -> None:
        """Stop sending entries until the peer has fetched everything before ``next_index`` from elsewhere."""
        self.state = PeerState.SNAPSHOT
        self.next = next_index
        self.waits = False
        self.beats = 0
        self._begin_epoch()

    def on_loss(self, index: LogIndex) -> None:
        """Note that the peer has entries up to ``index`` at most, whatever it reported before. Answers in flight to
        earlier messages may refer to entries that it has lost since.
        """
        self.match = min(self.match, index)
        self.trusted_from = self.seq + 1

    def _begin_epoch(self) -> None:
        self._epoch_seq = self.seq + 1
        self._inflight.clear()
        self.inflight_bytes = 0
        self.fetch_first = 0

    def may_send(self, config: CoreConfig) -> bool:
        """Whether the window has room for another message."""
        if self.state is PeerState.PROBE:
            return not self.waits
        if self.state is PeerState.SNAPSHOT:
            return False
        return self.inflight_bytes < config.inflight_bytes_max and len(self._inflight) < config.inflight_messages_max

    def stamp(self, now: float) -> int:
        """Assign the next sequence number to a message that is sent at ``now``."""
        self.seq += 1
        if not self._stamp_seq:
            self._stamp_seq = self.seq
            self._stamp_at = self._stamp_silent_since = now
        return self.seq

    def on_receipt(self, seq: int) -> None:
        """Record that the peer has received message ``seq``."""
        if self._stamp_seq and seq >= self._stamp_seq:
            self.contact_at = self._stamp_at
            self.silent_since = self._stamp_silent_since
            self._stamp_seq = 0

    def record_stall(self, seconds: float, now: float) -> None:
        """Exclude ``seconds`` until ``now`` from the peer's silence, since this process read no messages then."""
        self.silent_since = min(self.silent_since + seconds, now)
        self._stamp_silent_since = min(self._stamp_silent_since + seconds, now)

    def is_current(self, seq: int) -> bool:
        """Whether message ``seq`` was sent since the last change of state."""
        return seq >= self._epoch_seq

    def on_send(self, seq: int, spans: tuple[Span, ...]) -> None:
        """Record that request ``seq`` with ``spans`` was sent."""
        self.append_seq = seq
        if self.state is PeerState.PROBE:
            self.waits = True
        elif spans:
            nbytes = sum([span.nbytes for span in spans])
            self.next = spans[-1].last + 1
            self._inflight.append((self.next - 1, nbytes))
            self.inflight_bytes += nbytes

    def free_inflight(self, index: LogIndex) -> None:
        """Free the part of the window up to ``index``, which the peer has received."""
        inflight = self._inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]

    def check_invariants(self) -> None:
        """Assert that match < next, and that bytes in flight add up."""
        assert self.match < self.next, f"{self.peer}: match {self.match} is not below next {self.next}"
        nbytes = sum(size for _, size in self._inflight)
        assert nbytes == self.inflight_bytes, f"{self.peer}: {nbytes} bytes under way, counted {self.inflight_bytes}"
        assert self.state is PeerState.REPLICATE or not self._inflight, (
            f"{self.peer}: a window in state {self.state.value}"
        )
