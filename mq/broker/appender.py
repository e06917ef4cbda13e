"""Gathers messages into log entries, and answers their senders when the entries are committed.

Theory of operation. While one *round* of entries is being written and replicated, everything that arrives is kept in a
list. When the round is committed, the list becomes the next round: one entry per 256 KiB, each with one header, one
checksum and one step of the replicated log, however many messages and senders it holds. So a busy broker makes large
rounds and an idle one answers at once, with no timer in between.

A message's queue offset, physical offset and store time are known only when its entry is framed, therefore the record
is built there, once; so is the reply, which then waits in one list per entry. There is no task, event or future per
message.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from mq.protocol.codes import ResponseCode
from mq.protocol.headers import SendMessage, SendMessageV2, SendReplyTemplate, encode_response
from mq.protocol.records import (
    BORN_HOST_IPV6,
    CRC_MASK,
    FIXED,
    HEAD,
    MAGIC_V1,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
    encode_record,
)
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QueueRun, encode_runs
from raftlog import Refusal

_PROPERTIES_LENGTH = struct.Struct(">h")
_CLIENT_FLAGS = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK)
"""A sender does not decide how hosts are laid out, nor what a message is to a transaction."""

_ONEWAY = 2

_DISK_FULL = (
    "DISK_FULL: service not available now. It may be caused by one of the following reasons: the broker's disk is full "
    "[CL: {0:5.2f} CQ: {0:5.2f} INDEX: -1.00], messages are put to the slave, message store has been shut down, etc."
)
"""Worded as by stock brokers, whose users look for it; the figure is the used part of the disk."""

OnCommitted = Callable[[bool], None]
SendRequest = SendMessage | SendMessageV2


class Sender(Protocol):
    """The connection a message came from."""

    host: bytes

    def send(self, data: bytes) -> None: ...
    def close(self, reason: str) -> None: ...


class QueueTail:
    """The writing end of one queue, on the leader: where the next message goes."""

    __slots__ = ("entries", "first_offset", "fixed_bytes", "next_offset", "queue_id", "topic", "topic_field")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        name = topic.encode()
        self.topic = topic
        self.topic_field = bytes([len(name)]) + name
        self.fixed_bytes = FIXED + len(name)
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.first_offset = 0
        self.entries: list[bytes] = []


PendingMessage = tuple[int, Sender, SendRequest, int, QueueTail, bytes, bytes, int, bytes]
"""A message that was checked and waits for its round: bytes of its record, sender, request, how the request's header
was encoded, queue, body, properties, tag code, unique key. A plain tuple: there is one per message."""


class PendingCommand(NamedTuple):
    """A change of replicated metadata that waits for its round."""

    nbytes: int
    body: bytes
    on_committed: OnCommitted | None


class _Committing:
    """An entry under way, and who waits for it."""

    __slots__ = ("callbacks", "index", "nbytes", "replies")

    def __init__(self, index: int, nbytes: int) -> None:
        self.index = index
        self.nbytes = nbytes
        self.replies: list[tuple[Sender, list[bytes]]] = []
        self.callbacks: list[OnCommitted] = []


class Log(Protocol):
    """What the appender needs of the replica."""

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal: ...


class Appender:
    """See the module's theory of operation.

    Args:
        disk_used: which part of the disk is in use, 0 to 1; asked when a message is refused for it.

    Attributes:
        is_open: whether this broker leads its group and may take messages; set by `open` and `close`.
        pending: what waits for its round. The send handler appends to it, and adds to ``pending_bytes``, itself.
        pending_bytes: bytes of all records that are not committed yet.
        messages: how many messages and commands were put into entries.
    """

    def __init__(
        self,
        *,
        log: Log,
        store_host: bytes,
        reply_template: SendReplyTemplate,
        entry_bytes_max: int,
        rounds_in_flight: int,
        wall_clock_ms: Callable[[], int],
        disk_used: Callable[[], float],
    ) -> None:
        self._log = log
        self._disk_used = disk_used
        self._store_host = store_host
        self._reply_template = reply_template
        self._entry_bytes_max = entry_bytes_max
        self._rounds_in_flight = rounds_in_flight
        self._wall_clock_ms = wall_clock_ms
        self.pending: list[PendingMessage | PendingCommand] = []
        self.pending_bytes = 0
        self._committing: deque[_Committing] = deque()
        self._round_ends: deque[int] = deque()
        self.is_open = False
        self.messages = 0

    def open(self) -> None:
        """Take messages from now on: this replica leads and everything older is dispatched."""
        self.is_open = True

    def close(self, reason: str) -> None:
        """Take nothing more; what was not framed yet is refused, certainly unstored."""
        self.is_open = False
        pending, self.pending = self.pending, []
        self._refuse(pending, reason)

    def _refuse(self, pending: list[PendingMessage | PendingCommand], reason: str) -> None:
        for item in pending:
            self.pending_bytes -= item[0]
            if isinstance(item, PendingCommand):
                if item.on_committed is not None:
                    item.on_committed(False)
                continue
            _, sender, request, serialization, *_ = item
            if not request.flag & _ONEWAY:
                code = ResponseCode.SERVICE_NOT_AVAILABLE
                sender.send(encode_response(request.opaque, code, remark=reason, serialization=serialization))

    def add_command(self, command: bytes, on_committed: OnCommitted | None = None) -> None:
        """Replicate a metadata command.

        ``on_committed`` gets True once it was applied, and False when it was not stored or nobody knows.
        """
        record = PendingCommand(FIXED + len(META_TOPIC) + len(command), command, on_committed)
        self.pending.append(record)
        self.pending_bytes += record.nbytes

    def start_round(self) -> bool:
        """Frame what is pending, if the rounds under way leave room; returns whether anything was framed."""
        if not self.pending or not self.is_open or len(self._round_ends) >= self._rounds_in_flight:
            return False
        pending, self.pending = self.pending, []
        start = 0
        last_index = 0
        while start < len(pending):
            nbytes = pending[start][0]
            end = start + 1
            while end < len(pending) and nbytes + pending[end][0] <= self._entry_bytes_max:
                nbytes += pending[end][0]
                end += 1
            committing = _Committing(0, nbytes)
            batch = pending[start:end]
            index = self._log.append(nbytes, lambda pos, b=batch, c=committing: self._build(b, c, pos))  # type: ignore[misc]
            if index is Refusal.DISK_FULL:
                self._refuse(pending[start:], _DISK_FULL.format(self._disk_used()))
                break
            if isinstance(index, Refusal):
                self.pending = pending[start:] + self.pending
                break
            committing.index = last_index = index
            self._committing.append(committing)
            start = end
        if last_index:
            self._round_ends.append(last_index)
        return last_index > 0

    def committed(self, index: int) -> None:
        """Answer everybody whose entry has an index up to ``index``."""
        waiting = self._committing
        while waiting and waiting[0].index <= index:
            entry = waiting.popleft()
            self.pending_bytes -= entry.nbytes
            for sender, replies in entry.replies:
                sender.send(replies[0] if len(replies) == 1 else b"".join(replies))
            for callback in entry.callbacks:
                callback(True)
        while self._round_ends and self._round_ends[0] <= index:
            self._round_ends.popleft()

    def outcome_unknown(self, first_index: int) -> None:
        """Nobody knows what becomes of entries from ``first_index`` on.

        Their senders' connections are closed: on the wire that is the one answer which promises nothing.
        """
        waiting = self._committing
        while waiting and waiting[-1].index >= first_index:
            entry = waiting.pop()
            self.pending_bytes -= entry.nbytes
            for sender, _ in entry.replies:
                sender.close("leadership was lost while a message was being stored")
            for callback in entry.callbacks:
                callback(False)
        self._round_ends.clear()

    def _build(
        self, batch: list[PendingMessage | PendingCommand], committing: _Committing, pos: int
    ) -> tuple[bytes, bytes]:
        """The records of one entry whose body starts at physical offset ``pos``, and its queue runs."""
        parts: list[bytes] = []
        touched: list[QueueTail] = []
        store_host = self._store_host
        store_ms = self._wall_clock_ms()
        render = self._reply_template.render
        pack_head, pack_cq, crc32 = HEAD.pack, QUEUE_ENTRY.pack, zlib.crc32
        pack_length = _PROPERTIES_LENGTH.pack
        sender: Sender | None = None
        replies: list[bytes] = []
        commands = False
        for item in batch:
            if isinstance(item, PendingCommand):
                commands = True
                parts.append(self._command_record(item.body, pos, store_ms))
                if item.on_committed is not None:
                    committing.callbacks.append(item.on_committed)
                pos += item.nbytes
                continue
            size, item_sender, request, serialization, tail, body, properties, tag_code, unique_key = item
            ext = request.ext
            offset = tail.next_offset
            tail.next_offset = offset + 1
            if not tail.entries:
                tail.first_offset = offset
                touched.append(tail)
            tail.entries.append(pack_cq(pos, size, tag_code))
            parts += (
                pack_head(
                    size,
                    MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    tail.queue_id,
                    ext.flag,
                    offset,
                    pos,
                    ext.sys_flag & _CLIENT_FLAGS,
                    ext.born_timestamp_ms,
                    item_sender.host,
                    store_ms,
                    store_host,
                    ext.reconsume_times,
                    0,
                    len(body),
                ),
                body,
                tail.topic_field,
                pack_length(len(properties)),
                properties,
            )
            if not request.flag & _ONEWAY:
                if item_sender is not sender:
                    sender = item_sender
                    replies = []
                    committing.replies.append((sender, replies))
                replies.append(render(request.opaque, tail.queue_id, offset, pos, unique_key, serialization))
            pos += size
        self.messages += len(batch)
        runs: list[QueueRun] = []
        for tail in touched:
            runs.append(QueueRun(tail.topic, tail.queue_id, tail.first_offset, b"".join(tail.entries)))
            tail.entries = []
        # Without an annotation every replica reads the records themselves, and finds the commands there.
        return b"".join(parts), b"" if commands else encode_runs(runs)

    def _command_record(self, body: bytes, pos: int, store_ms: int) -> bytes:
        return encode_record(
            topic=META_TOPIC,
            queue_id=0,
            body=body,
            properties="",
            queue_offset=0,
            physical_offset=pos,
            born_timestamp_ms=store_ms,
            born_host=self._store_host,
            store_timestamp_ms=store_ms,
            store_host=self._store_host,
        )
