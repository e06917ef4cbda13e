"""Serves bytes of the log and of snapshots to peers that repair their log or fetch all of it.

Segment files are equal byte by byte on all replicas, so a physical offset means the same everywhere. Requests wait in a
short queue and are answered one after the other, with a rate limit, so that the group's own traffic keeps its share of
disk and network. If the queue is full, a request is dropped; the peer retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from raftlog.consensus.types import NodeId
from raftlog.log_numbers import LogIndex
from raftlog.net import frames
from raftlog.net.frames import RANGE_BYTES_MAX, RangeReq, RangeResp
from raftlog.net.machine import this_machine
from raftlog.net.transport import Lane, Transport
from raftlog.segment.errors import EntryGone
from raftlog.segment.log import SegmentLog

ANSWER_SECONDS_MAX: Final = 2.0
"""A peer without an answer by then retries, here or at another replica."""

GONE: Final = "gone: retention has deleted it"
NOT_HERE: Final = "not here: the log ends before it"
NOT_YET: Final = "not yet: it is not known to be committed"
DAMAGED_HERE: Final = "damaged here, too"
NO_SNAPSHOT: Final = "gone: this snapshot does not exist any more"

_QUEUED_MAX = 64


class RangeRefused(Exception):
    """The bytes cannot be served. The text is sent to the peer."""


Read = Callable[[RangeReq], Awaitable[bytes]]


class RangeServer:
    """Serves peers' requests for byte ranges of the log, up to a rate.

    Args:
        read: returns the bytes, or fewer, or raises `RangeRefused`.
        bytes_per_second: limit over all peers.
    """

    def __init__(self, transport: Transport, wake: Callable[[], None], read: Read, bytes_per_second: float) -> None:
        assert bytes_per_second > 0, f"{bytes_per_second} bytes per second never get anywhere"
        self._transport = transport
        self._wake = wake
        self._read = read
        self._bytes_per_second = bytes_per_second
        self._send, self._receive = trio.open_memory_channel[tuple[NodeId, RangeReq]](_QUEUED_MAX)

    def ask(self, peer: NodeId, request: RangeReq) -> None:
        """Queue a request."""
        try:
            self._send.send_nowait((peer, request))
        except trio.WouldBlock:
            return

    async def run(self) -> None:
        """Answer requests until cancelled. Raises `SegmentError` if our own disk failed."""
        async for peer, request in self._receive:
            try:
                data, refusal = await self._read(request), None
            except RangeRefused as error:
                data, refusal = b"", str(error)
            frame = frames.encode_cold(RangeResp(request.source, request.pos, request.nbytes, data, refusal))
            self._transport.send(peer, Lane.BULK, [frame], len(frame))
            self._wake()
            await trio.sleep(len(data) / self._bytes_per_second)


async def read_log(log: SegmentLog, committed_index: LogIndex, request: RangeReq) -> bytes:
    """Bytes of an open log, for a worker thread, as far as they are durable here and, unless the request waives that,
    known to be committed.

    Raises:
        RangeRefused: there are none.
        StorageCorrupt, StorageFailed: the disk cannot read them.
    """
    nbytes = granted_bytes(log, committed_index, request)
    try:
        return await this_machine().in_thread(partial(log.read_range, request.pos, nbytes))
    except EntryGone as error:
        raise RangeRefused(GONE) from error


def granted_bytes(log: SegmentLog, committed_index: LogIndex, request: RangeReq) -> int:
    """Return the number of bytes that `read_log` would return. Raises `RangeRefused` if none."""
    pos = request.pos
    if pos < log.base_pos:
        raise RangeRefused(GONE)
    if pos >= log.durable_pos:
        raise RangeRefused(NOT_HERE)
    end = min(pos + min(request.nbytes, RANGE_BYTES_MAX), log.durable_pos)
    if not request.uncommitted:
        end = min(end, _end_of(log, committed_index))
    if end <= pos:
        raise RangeRefused(NOT_YET)
    return end - pos


def _end_of(log: SegmentLog, index: LogIndex) -> int:
    if index < log.first_index:
        return log.base_pos
    ref = log.locate(index)
    return ref.pos + ref.size
