"""Gives consumers that lag beyond the page cache smaller responses, and sends them to a follower, to save the leader's
disk and CPU.

Stateless: each answer to a pull names the replica for the next one. The leader names a follower while the lag is above
the limit; a follower names itself until the lag is half of it, then the leader.
"""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple

from mq.broker.context import BrokerContext
from mq.protocol.broker_ids import LEADER_ID, broker_id_of
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from raftlog.consensus.types import PeerState, Role
from raftlog.segment import SegmentError

_MEMORY_SHARE = 0.4
_REFRESH_SECONDS = 0.25
_SILENT_SECONDS_MAX = 1.0


class _Follower(NamedTuple):
    """A follower heard recently, and the physical offset up to which it serves."""

    broker_id: int
    applied_pos: PhysicalOffset


def memory_share() -> int:
    """Return the number of bytes of the log that are probably in this machine's page cache."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE)


class FollowerReads:
    """Chooses the replica for a consumer's next pull, and limits the responses to one that lags.

    ``lag_max`` is the distance in bytes from a message to the end of the log above which reading it is slow.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.lag_max = (
            memory_share() if context.settings.slow_consumer_bytes is None else context.settings.slow_consumer_bytes
        )
        self._slow_messages_max = context.settings.slow_pull_messages_max
        self._slow_bytes_max = context.settings.slow_pull_bytes_max
        self.own_id = broker_id_of(context.settings.node_id)
        self._silent_seconds_max = _SILENT_SECONDS_MAX + 2 * context.settings.heartbeat_seconds
        self._replica = context.replica
        self._metadata = context.metadata
        self._clock = context.clock
        self._followers: list[_Follower] = []
        self._refresh_at = 0.0
        self._beginning = context.beginning
        self._leader_begins: tuple[int, PhysicalOffset] = (0, LOG_BEGIN)
        """The base of the leader's log, and the physical offset there."""

    def in_memory(self, physical_offset: PhysicalOffset) -> bool:
        """Return whether a physical offset is probably in memory, so that reading it does not wait for the disk."""
        return self._replica.log.end_pos - physical_offset <= self.lag_max

    def slow_pull(self, messages_max: int) -> tuple[int, int]:
        """Return the maximum messages and bytes of a response to a consumer that lags by more than ``lag_max``."""
        return min(messages_max, self._slow_messages_max), self._slow_bytes_max

    def suggest(self, group: str, topic: str, queue_id: int, behind: PhysicalOffset, lag: int) -> int:
        """Return the broker id of the replica for the next pull.

        Args:
            behind: physical offset after the last message of this answer; the next messages are there or further on.
            lag: bytes from the first message of this answer to the end of the log.
        """
        assert lag >= 0, f"group {group} reads {-lag} bytes beyond the end of the log"
        if not self._replica.is_leader:
            return self.own_id if 2 * lag > self.lag_max else LEADER_ID
        if lag <= self.lag_max:
            return LEADER_ID
        fit = [follower.broker_id for follower in self._followers_now() if follower.applied_pos > behind]
        if not fit:
            return LEADER_ID
        config = self._metadata.groups.get(group)
        if config is not None and config.which_broker_when_consume_slowly in fit:
            return config.which_broker_when_consume_slowly
        return fit[zlib.crc32(f"{group}\n{topic}\n{queue_id}".encode()) % len(fit)]

    def older_replica(self) -> int | None:
        """Return the broker id of a replica that has older messages, or that knows which one has; None if unknown."""
        holder = self._beginning.holder
        if holder is None:
            return None
        return LEADER_ID if holder == self._replica.core.leader_id else broker_id_of(holder)

    def is_only_here(self, behind: PhysicalOffset) -> bool:
        """Return whether this follower has messages from physical offset ``behind`` on that the leader has deleted."""
        core = self._replica.core
        base = core.leader_base
        if base is None or base <= core.base.index or core.role is Role.LEADER:
            return False
        if base > self._replica.log.last_index:
            return True  # this follower lags: the leader has deleted entries that it is still to send
        if base != self._leader_begins[0]:
            try:
                ref = self._replica.log.locate(base)
            except SegmentError:
                return False  # reported when it is read
            self._leader_begins = base, PhysicalOffset(ref.pos + ref.size)
        return behind < self._leader_begins[1]

    def other_replica(self, behind: PhysicalOffset = LOG_BEGIN) -> int | None:
        """Return the broker id of another replica that serves the log up to physical offset ``behind``.

        None if none is known: no follower was heard recently, or this is a follower without a known leader.
        """
        if not self._replica.is_leader:
            return LEADER_ID if self._replica.core.leader_id is not None else None
        return next((follower.broker_id for follower in self._followers_now() if follower.applied_pos >= behind), None)

    def _followers_now(self) -> list[_Follower]:
        now = self._clock()
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_SECONDS
            self._followers = self._find_followers(now)
        return self._followers

    def _find_followers(self, now: float) -> list[_Follower]:
        status = self._replica.core.status()
        followers: list[_Follower] = []
        for peer in status.peers:
            silent = now - peer.contact_at
            if peer.state is not PeerState.REPLICATE or silent > self._silent_seconds_max:
                continue
            if peer.applied <= status.base.index:
                continue
            try:
                ref = self._replica.log.locate(min(peer.applied, status.last.index))
            except SegmentError:
                continue  # reported when it is read; here it only rules out a redirect
            followers.append(_Follower(broker_id_of(peer.peer), PhysicalOffset(ref.pos + ref.size)))
        return sorted(followers)
