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
from functools import partial
from typing import Protocol

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.errors import RequestRefused
from mq.broker.write_path.outcome import LeadershipLost, OnOutcome, Refused, Stored, Unknown
from mq.broker.write_path.pending import (
    ALREADY_STORED,
    NO_PLACE,
    InternalRecord,
    Pending,
    PendingBatch,
    PendingCommand,
    PendingGroup,
    PendingSend,
    SendRequest,
)
from mq.broker.write_path.queue_offsets import NextOffset
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import ONEWAY_FLAG, SendReplyTemplate
from mq.protocol.properties import PROPERTIES_BYTES_MAX
from mq.protocol.records import (
    BORN_HOST_IPV6,
    CRC_MASK,
    HEAD,
    MAGIC_V1,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
    encode_record,
)
from mq.protocol.sequencing import SEQUENCE_MARK, SequenceRange
from mq.store.annotation import ANNOTATION_START, RUN_HEAD, Span, join_annotation
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY
from mq.store.queue_store import BuiltRun
from mq.store.sequenced import SequencedRecord, sequenced_record
from raftlog import Refusal

_PROPERTIES_LENGTHS = [struct.pack(">h", length) for length in range(PROPERTIES_BYTES_MAX + 1)]
"""By length of the properties: packed beforehand, which is twice as fast."""
_CLIENT_FLAGS = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK)
"""A sender does not decide how hosts are laid out, nor what a message is to a transaction."""


_DISK_FULL = (
    "DISK_FULL: service not available now. It may be caused by one of the following reasons: the broker's disk is full "
    "[CL: {0:5.2f} CQ: {0:5.2f} INDEX: -1.00], messages are put to the slave, message store has been shut down, etc."
)
"""Worded as by stock brokers, whose users look for it; the figure is the used part of the disk."""


class _Committing:
    """An entry under way, and who waits for it."""

    __slots__ = ("annotation", "callbacks", "framed", "index", "nbytes", "replies", "runs")

    def __init__(self, index: int, nbytes: int) -> None:
        self.index = index
        self.nbytes = nbytes
        self.replies: list[tuple[ClientConnection, list[bytes]]] = []
        self.callbacks: list[tuple[OnOutcome, Stored]] = []
        self.framed: list[Callable[[], None]] = []
        self.annotation = b""
        self.runs: list[BuiltRun] = []


class Log(Protocol):
    """What the appender needs of the replica."""

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal: ...


class Appender:
    """See the module's theory of operation.

    Args:
        disk_used: which part of the disk is in use, 0 to 1; asked when a message is refused for it.
        pending_bytes_max: with so much pending, messages are refused; see `check_room` for commands.

    Attributes:
        is_open: whether this broker leads its group and may take messages; set by `open` and `close`, or taken back
            before.
        pending: what waits for its round. The send handler appends to it, and adds to ``pending_bytes``, itself.
        pending_bytes: bytes of all records that are not committed yet.
        messages: how many messages and commands were put into entries.
        entry_bytes_max: what fits one entry together with others.
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
        pending_bytes_max: int,
    ) -> None:
        self._log = log
        self._disk_used = disk_used
        self._commands_bytes_max = 2 * pending_bytes_max
        self._store_host = store_host
        self._reply_template = reply_template
        self.entry_bytes_max = entry_bytes_max
        self._rounds_in_flight = rounds_in_flight
        self._wall_clock_ms = wall_clock_ms
        self.pending: list[Pending] = []
        self.pending_bytes = 0
        self._committing: deque[_Committing] = deque()
        self._round_ends: deque[int] = deque()
        self.is_open = False
        self.messages = 0

    def open(self) -> None:
        """Take messages from now on: this replica leads and everything older is dispatched."""
        assert not self.pending, f"{len(self.pending)} messages and groups were added while this replica did not lead"
        self.is_open = True

    def close(self) -> None:
        """Take nothing more; what was not framed yet was certainly not stored.

        Requests of clients are served once more, by whoever serves them now; others are told that it was refused.
        """
        self.is_open = False
        pending, self.pending = self.pending, []
        for item in pending:
            self.pending_bytes -= item[0]
            if len(item) == 2:
                if isinstance(batch := item[1], PendingBatch):
                    batch.call.dispatch()
                else:
                    _settle(batch, LeadershipLost())
            else:
                item[1].dispatch()

    @property
    def has_room(self) -> bool:
        """Whether commands are taken, see `check_room`."""
        return self.pending_bytes <= self._commands_bytes_max

    def check_room(self) -> None:
        """Raises RequestRefused if so much is pending that even commands must wait.

        They may take as much as messages on top of them: producers that are too fast keep no consumer from committing.
        """
        if not self.has_room:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, {self.pending_bytes} bytes of messages are pending",
            )

    def _refuse(self, pending: list[Pending], remark: str) -> None:
        for item in pending:
            self.pending_bytes -= item[0]
            if len(item) != 2:
                _refuse_call(item[1], remark)
            elif isinstance(batch := item[1], PendingBatch):
                _refuse_call(batch.call, remark)
            else:
                _settle(batch, Refused(remark))

    def add_command(
        self,
        command: bytes,
        on_outcome: OnOutcome | None = None,
        on_framed: Callable[[], None] | None = None,
    ) -> None:
        """Replicate a metadata command.

        ``on_outcome`` is told what became of it, `Stored` once it was applied. ``on_framed`` is called before that, as
        soon as an entry with the command is in the log: whatever comes later comes behind that.
        """
        self.add_atomically([PendingCommand(command, on_outcome, on_framed)])

    def add_record(self, record: InternalRecord) -> None:
        """Store a message that is not a client's plain send."""
        self.add_atomically([record])

    def add_atomically(self, group: PendingGroup) -> None:
        """Store messages and commands in one entry, in this order: after any failure all are there, or none is.

        Together they must fit an entry; see `Appender.entry_bytes_max`. Only while this broker leads.
        """
        nbytes = group[0].nbytes if len(group) == 1 else sum([item.nbytes for item in group])
        self.pending.append((nbytes, group))
        self.pending_bytes += nbytes

    def add_batch(self, batch: PendingBatch) -> None:
        """Store a client's batch, in one entry."""
        nbytes = batch.nbytes
        self.pending.append((nbytes, batch))
        self.pending_bytes += nbytes

    @property
    def may_start(self) -> bool:
        """Whether a round could begin now."""
        return len(self._round_ends) < self._rounds_in_flight

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
            while end < len(pending) and nbytes + pending[end][0] <= self.entry_bytes_max:
                nbytes += pending[end][0]
                end += 1
            committing = _Committing(0, nbytes)
            batch = pending[start:end]
            index = self._log.append(nbytes, partial(self._build, batch, committing))
            if index is Refusal.DISK_FULL:
                self._refuse(pending[start:], _DISK_FULL.format(self._disk_used()))
                break
            if isinstance(index, Refusal):
                self.pending = pending[start:] + self.pending
                break
            committing.index = last_index = index
            for framed in committing.framed:
                framed()
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
            for on_outcome, stored in entry.callbacks:
                on_outcome(stored)
        while self._round_ends and self._round_ends[0] <= index:
            self._round_ends.popleft()

    def runs_of(self, index: int, annotation: bytes) -> list[BuiltRun] | None:
        """What the annotation says of an entry that is being applied, if it was made here and is not answered yet."""
        waiting = self._committing
        if waiting:
            number = index - waiting[0].index
            if 0 <= number < len(waiting) and (entry := waiting[number]).annotation is annotation:
                return entry.runs
        return None

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
            for on_outcome, _ in entry.callbacks:
                on_outcome(Unknown())
        self._round_ends.clear()

    def _build(self, batch: list[Pending], committing: _Committing, pos: int) -> tuple[bytes, bytes]:
        """The records of one entry whose body starts at physical offset ``pos``, and its queue runs."""
        parts: list[bytes] = []
        touched: list[NextOffset] = []
        store_host = self._store_host
        store_ms = self._wall_clock_ms()
        render = self._reply_template.render
        pack_head, pack_cq, crc32 = HEAD.pack, QUEUE_ENTRY.pack, zlib.crc32
        lengths = _PROPERTIES_LENGTHS
        sender: ClientConnection | None = None
        replies: list[bytes] = []
        commands: list[Span] = []
        sequenced: list[SequencedRecord] = []
        begin = pos
        for item in batch:
            if len(item) == 2:
                nbytes, other = item
                if isinstance(other, PendingBatch):
                    self._build_batch(other, parts, touched, committing, sequenced, pos, store_ms)
                else:
                    at = pos
                    for one in other:
                        size = one.nbytes
                        if isinstance(one, PendingCommand):
                            commands.append((at - begin + HEAD.size, len(one.body)))
                            self._build_command(one, parts, committing, at, store_ms)
                        else:
                            self._build_made(one, size, parts, touched, committing, sequenced, at, store_ms)
                        at += size
                sender = None  # replies leave in the order of the entry
                pos += nbytes
                continue
            size, call, tail, properties, tag_code, unique_key = item
            request = call.request
            body = call.body
            item_sender = call.connection
            ext = request.ext
            offset = tail.next_offset
            tail.next_offset = offset + 1
            if (run := tail.run) is None:
                tail.run = [pack_cq(pos, size, tag_code)]
                touched.append(tail)
            else:
                run.append(pack_cq(pos, size, tag_code))
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
                lengths[len(properties)],
                properties,
            )
            if not request.flag & ONEWAY_FLAG:
                if item_sender is not sender:
                    sender = item_sender
                    replies = []
                    committing.replies.append((sender, replies))
                replies.append(render(request.opaque, tail.queue_id, offset, pos, unique_key, call.serialization))
            pos += size
        self.messages += len(batch)
        # As `encode_runs`, without a run in between: with thousands of queues there is one for nearly every message.
        shipped, pack_run = [ANNOTATION_START], RUN_HEAD.pack
        runs = committing.runs
        for tail in touched:
            run, name = tail.run, tail.topic_bytes
            assert run, f"{tail.topic}/{tail.queue_id}: a run without entries"
            count = len(run)
            first_offset = tail.next_offset - count
            entries = run[0] if count == 1 else b"".join(run)
            shipped += (pack_run(len(name), tail.queue_id, first_offset, count), name, entries)
            runs.append((tail, first_offset, count, entries))
            tail.run = None
        annotation = committing.annotation = join_annotation(b"".join(shipped), sequenced, commands)
        return b"".join(parts), annotation

    def _build_batch(
        self,
        batch: PendingBatch,
        parts: list[bytes],
        touched: list[NextOffset],
        committing: _Committing,
        sequenced: list[SequencedRecord],
        pos: int,
        store_ms: int,
    ) -> None:
        call, tail, store_host = batch.call, batch.tail, self._store_host
        ext, host = call.request.ext, call.connection.host
        topic_field, queue_id, first = tail.topic_field, tail.queue_id, tail.next_offset
        pack_head, pack_cq, lengths, crc32 = HEAD.pack, QUEUE_ENTRY.pack, _PROPERTIES_LENGTHS, zlib.crc32
        sys_flag, born_ms, reconsume_times = ext.sys_flag & _CLIENT_FLAGS, ext.born_timestamp_ms, ext.reconsume_times
        if tail.run is None:
            tail.run = []
            touched.append(tail)
        run = tail.run
        places: list[int] = []
        for offset, (size, flag, body, properties, tag_code) in enumerate(batch.elements, first):
            parts += (
                pack_head(
                    size,
                    MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    offset,
                    pos,
                    sys_flag,
                    born_ms,
                    host,
                    store_ms,
                    store_host,
                    reconsume_times,
                    0,
                    len(body),
                ),
                body,
                topic_field,
                lengths[len(properties)],
                properties,
            )
            run.append(pack_cq(pos, size, tag_code))
            places.append(pos)
            pos += size
        tail.next_offset = first + len(places)
        self.messages += len(places) - 1
        more: dict[str, str] | None = None
        if batch.parts is not None:
            sequenced += [SequencedRecord(*numbers, places[at], store_ms) for at, numbers in batch.parts]
            more = {ALREADY_STORED: str(batch.already_stored)}
        if not call.request.flag & ONEWAY_FLAG:
            if batch.already_stored:  # the others are elsewhere
                first, places = -1, [NO_PLACE] * (len(places) + batch.already_stored)
            reply = self._reply_template.render_batch(
                call.request.opaque, queue_id, first, places, batch.unique_keys, call.serialization, more
            )
            committing.replies.append((call.connection, [reply]))

    def _build_made(
        self,
        made: InternalRecord | PendingSend,
        size: int,
        parts: list[bytes],
        touched: list[NextOffset],
        committing: _Committing,
        sequenced: list[SequencedRecord],
        pos: int,
        store_ms: int,
    ) -> None:
        tail, properties, tag_code = made.tail, made.properties, made.tag_code
        offset = tail.next_offset
        tail.next_offset = offset + 1
        if tail.turn_ms is not None:
            tag_code = tail.turn_ms(store_ms, tail.queue_id, properties)
        if (run := tail.run) is None:
            tail.run = [QUEUE_ENTRY.pack(pos, size, tag_code)]
            touched.append(tail)
        else:
            run.append(QUEUE_ENTRY.pack(pos, size, tag_code))
        sequence: SequenceRange | None = None
        if isinstance(made, PendingSend):
            call, sequence = made.call, made.sequence
            ext, body = call.request.ext, call.body
            flag, sys_flag, reconsume_times = ext.flag, ext.sys_flag & _CLIENT_FLAGS, ext.reconsume_times
            born_ms, born_host, prepared_offset = ext.born_timestamp_ms, call.connection.host, 0
            if not call.request.flag & ONEWAY_FLAG:
                committing.replies.append((call.connection, [self._reply(made, offset, pos)]))
        else:
            body = made.body
            flag, sys_flag, reconsume_times = made.flag, made.sys_flag, made.reconsume_times
            born_ms, born_host, prepared_offset = made.born_timestamp_ms, made.born_host, made.prepared_offset
            if made.on_outcome is not None:
                committing.callbacks.append((made.on_outcome, Stored(offset, pos)))
        parts += (
            HEAD.pack(
                size,
                MAGIC_V1,
                zlib.crc32(body) & CRC_MASK,
                tail.queue_id,
                flag,
                offset,
                pos,
                sys_flag,
                born_ms,
                born_host,
                store_ms,
                self._store_host,
                reconsume_times,
                prepared_offset,
                len(body),
            ),
            body,
            tail.topic_field,
            _PROPERTIES_LENGTHS[len(properties)],
            properties,
        )
        if sequence is not None:
            sequenced.append(SequencedRecord(*sequence, pos, store_ms))
        elif SEQUENCE_MARK in properties and (found := sequenced_record(properties, pos, store_ms)):
            sequenced.append(found)

    def _reply(self, made: PendingSend, offset: int, pos: int) -> bytes:
        call, unique_key = made.call, made.unique_key
        opaque, serialization = call.request.opaque, call.serialization
        if made.more is None:
            return self._reply_template.render(opaque, made.queue_id, offset, pos, unique_key, serialization)
        more = made.more(Stored(offset, pos), unique_key.decode())
        return self._reply_template.render_batch(opaque, made.queue_id, offset, [pos], unique_key, serialization, more)

    def _build_command(
        self, command: PendingCommand, parts: list[bytes], committing: _Committing, pos: int, store_ms: int
    ) -> None:
        parts.append(self._command_record(command.body, pos, store_ms))
        if command.on_outcome is not None:
            committing.callbacks.append((command.on_outcome, Stored(0, pos)))
        if command.on_framed is not None:
            committing.framed.append(command.on_framed)

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


def _refuse_call(call: Call[SendRequest], remark: str) -> None:
    call.answer(call.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark))


def _settle(group: PendingGroup, outcome: Refused | LeadershipLost) -> None:
    for item in group:
        if isinstance(item, PendingSend):
            if isinstance(outcome, Refused):
                _refuse_call(item.call, outcome.remark)
            else:
                item.call.dispatch()
        elif item.on_outcome is not None:
            item.on_outcome(outcome)
