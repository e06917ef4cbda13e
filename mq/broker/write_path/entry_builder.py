"""Builds a log entry from pending items: its records, its additions to queues, and the replies.

The queue offset, physical offset and store time of a message are known only when its entry is framed. So this module
builds the record, once, and also the reply, which waits in one list per entry for the commit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

from mq.broker.net.connection import ClientConnection
from mq.broker.write_path.outcome import OnOutcome, Stored
from mq.broker.write_path.pending import (
    NO_PLACE,
    InternalRecord,
    Pending,
    PendingBatch,
    PendingCommand,
    PendingSend,
)
from mq.broker.write_path.queue_offsets import NextOffset
from mq.compiled import SendBlock
from mq.protocol.headers import ONEWAY_FLAG, SendReplyTemplate
from mq.protocol.properties import PROPERTIES_BYTES_MAX
from mq.protocol.records import (
    BORN_HOST_IPV6,
    CRC_MASK,
    HEAD,
    IPV4_HOST_BYTES,
    MAGIC_V1,
    NO_HOST,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
    encode_record,
    head_of_broker,
)
from mq.protocol.replies import SENT_ALREADY_STORED
from mq.protocol.sequencing import SEQUENCE_MARK, SequenceRange
from mq.store.annotation import ANNOTATION_START, RUN_HEAD, Span, join_annotation
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.queue_store import BuiltRun
from mq.store.sequenced import SequencedRecord, sequenced_record

_PROPERTIES_LENGTHS = [struct.pack(">h", length) for length in range(PROPERTIES_BYTES_MAX + 1)]
"""The packed length, by length of the properties: twice as fast as packing it for each message."""
CLIENT_FLAGS = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK)
"""All bits that a sender may set: not the layout of hosts, nor the role of the message in a transaction."""


class Entry:
    """An entry in flight, and its callbacks and replies.

    Attributes:
        nbytes: bytes of its records.
        messages: how many messages and commands it has.
        compiled_messages: how many of them are plain sends that the compiled send path has taken.
        replies: replies by connection, to be sent when it is committed.
        callbacks: callbacks with the places of messages and commands, to be called when it is committed.
        framed: callbacks to be called when it is framed.
        annotation, runs: its additions to queues, encoded for other replicas, and as objects for this one.
    """

    __slots__ = (
        "annotation",
        "callbacks",
        "compiled_messages",
        "framed",
        "index",
        "messages",
        "nbytes",
        "replies",
        "runs",
    )

    def __init__(self, nbytes: int) -> None:
        self.index = 0
        self.nbytes = nbytes
        self.messages = 0
        self.compiled_messages = 0
        self.replies: list[tuple[ClientConnection, list[bytes]]] = []
        self.callbacks: list[tuple[OnOutcome, Stored]] = []
        self.framed: list[Callable[[], None]] = []
        self.annotation = b""
        self.runs: list[BuiltRun] = []


class EntryBuilder:
    """Builds the entries of a broker."""

    def __init__(self, store_host: bytes, reply_template: SendReplyTemplate, wall_clock_ms: Callable[[], int]) -> None:
        self._store_host = store_host
        self._head, self._store_flag = head_of_broker(store_host)
        # Commands have a layout of one size: clients never see them.
        self._command_host = store_host if len(store_host) == IPV4_HOST_BYTES else NO_HOST
        self._reply_template = reply_template
        self._wall_clock_ms = wall_clock_ms

    def build(self, items: Sequence[Pending], entry: Entry, pos: int) -> tuple[bytes, bytes]:
        """The records of an entry whose body starts at physical offset ``pos``, and its annotation."""
        parts: list[bytes] = []
        touched: list[NextOffset] = []
        store_host = self._store_host
        store_ms = self._wall_clock_ms()
        render = self._reply_template.render
        pack_head, pack_cq, crc32 = self._head.pack, QUEUE_ENTRY.pack, zlib.crc32
        store_flag = self._store_flag
        lengths = _PROPERTIES_LENGTHS
        sender: ClientConnection | None = None
        replies: list[bytes] = []
        commands: list[Span] = []
        sequenced: list[SequencedRecord] = []
        begin = pos
        for item in items:
            if len(item) == 2:
                nbytes, other = item
                if isinstance(other, SendBlock):
                    parts.append(other.build(pos, store_ms, touched, entry.replies))
                    entry.messages += other.count - 1
                    entry.compiled_messages += other.count
                    pos += nbytes
                elif isinstance(other, PendingBatch):
                    self._build_batch(other, parts, touched, entry, sequenced, pos, store_ms)
                    pos += nbytes
                else:
                    for one in other:
                        if isinstance(one, PendingCommand):
                            commands.append((pos - begin + HEAD.size, len(one.body)))
                            self._build_command(one, parts, entry, pos, store_ms)
                        else:
                            self._build_record(one, parts, touched, entry, sequenced, pos, store_ms)
                        pos += one.nbytes
                sender = None  # replies leave in the order of the entry
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
                    ext.sys_flag & CLIENT_FLAGS | store_flag,
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
                    entry.replies.append((sender, replies))
                replies.append(render(request.opaque, tail.queue_id, offset, pos, unique_key, call.serialization))
            pos += size
        entry.messages += len(items)
        # As `encode_runs`, without a run in between: with thousands of queues there is one for nearly every message.
        shipped, pack_run = [ANNOTATION_START], RUN_HEAD.pack
        runs = entry.runs
        for tail in touched:
            run, name = tail.run, tail.topic_bytes
            assert run, f"{tail.topic}/{tail.queue_id}: a run without entries"
            entries = run[0] if len(run) == 1 else b"".join(run)
            count = len(entries) // QUEUE_ENTRY_BYTES
            first_offset = tail.next_offset - count
            shipped += (pack_run(len(name), tail.queue_id, first_offset, count), name, entries)
            runs.append((tail, first_offset, count, entries))
            tail.run = None
        annotation = entry.annotation = join_annotation(b"".join(shipped), sequenced, commands)
        return b"".join(parts), annotation

    def _build_batch(
        self,
        batch: PendingBatch,
        parts: list[bytes],
        touched: list[NextOffset],
        entry: Entry,
        sequenced: list[SequencedRecord],
        pos: int,
        store_ms: int,
    ) -> None:
        call, tail, store_host = batch.call, batch.tail, self._store_host
        ext, host = call.request.ext, call.connection.host
        topic_field, queue_id, first = tail.topic_field, tail.queue_id, tail.next_offset
        pack_head, pack_cq, lengths, crc32 = self._head.pack, QUEUE_ENTRY.pack, _PROPERTIES_LENGTHS, zlib.crc32
        sys_flag = ext.sys_flag & CLIENT_FLAGS | self._store_flag
        born_ms, reconsume_times = ext.born_timestamp_ms, ext.reconsume_times
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
        entry.messages += len(places) - 1
        more: dict[str, str] | None = None
        if batch.parts is not None:
            sequenced += [SequencedRecord(*numbers, places[at], store_ms) for at, numbers in batch.parts]
            more = {SENT_ALREADY_STORED: str(batch.already_stored)}
        if not call.request.flag & ONEWAY_FLAG:
            if batch.already_stored:  # the others are elsewhere
                first, places = -1, [NO_PLACE] * (len(places) + batch.already_stored)
            reply = self._reply_template.render_batch(
                call.request.opaque, queue_id, first, places, batch.unique_keys, call.serialization, more
            )
            entry.replies.append((call.connection, [reply]))

    def _build_record(
        self,
        record: InternalRecord | PendingSend,
        parts: list[bytes],
        touched: list[NextOffset],
        entry: Entry,
        sequenced: list[SequencedRecord],
        pos: int,
        store_ms: int,
    ) -> None:
        tail, properties, tag_code = record.tail, record.properties, record.tag_code
        offset = tail.next_offset
        tail.next_offset = offset + 1
        if tail.turn_ms is not None:
            tag_code = tail.turn_ms(store_ms, tail.queue_id, properties)
        if (run := tail.run) is None:
            tail.run = [QUEUE_ENTRY.pack(pos, record.nbytes, tag_code)]
            touched.append(tail)
        else:
            run.append(QUEUE_ENTRY.pack(pos, record.nbytes, tag_code))
        sequence: SequenceRange | None = None
        if isinstance(record, PendingSend):
            call, sequence = record.call, record.sequence
            ext, body = call.request.ext, call.body
            flag, sys_flag, reconsume_times = ext.flag, ext.sys_flag & CLIENT_FLAGS, ext.reconsume_times
            born_ms, born_host, prepared_offset = ext.born_timestamp_ms, call.connection.host, 0
            if not call.request.flag & ONEWAY_FLAG:
                entry.replies.append((call.connection, [self._reply(record, offset, pos)]))
        else:
            body = record.body
            flag, sys_flag, reconsume_times = record.flag, record.sys_flag, record.reconsume_times
            born_ms, born_host, prepared_offset = record.born_timestamp_ms, record.born_host, record.prepared_offset
            if record.on_outcome is not None:
                entry.callbacks.append((record.on_outcome, Stored(offset, pos)))
        parts += (
            self._head.pack(
                record.nbytes,
                MAGIC_V1,
                zlib.crc32(body) & CRC_MASK,
                tail.queue_id,
                flag,
                offset,
                pos,
                sys_flag | self._store_flag,
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

    def _reply(self, record: PendingSend, offset: int, pos: int) -> bytes:
        call, unique_key, template = record.call, record.unique_key, self._reply_template
        opaque, serialization = call.request.opaque, call.serialization
        if record.more is None:
            return template.render(opaque, record.queue_id, offset, pos, unique_key, serialization)
        more = record.more(Stored(offset, pos), unique_key.decode())
        return template.render_batch(opaque, record.queue_id, offset, [pos], unique_key, serialization, more)

    def _build_command(
        self, command: PendingCommand, parts: list[bytes], entry: Entry, pos: int, store_ms: int
    ) -> None:
        parts.append(self._command_record(command.body, pos, store_ms))
        if command.on_outcome is not None:
            entry.callbacks.append((command.on_outcome, Stored(0, pos)))
        if command.on_framed is not None:
            entry.framed.append(command.on_framed)

    def _command_record(self, body: bytes, pos: int, store_ms: int) -> bytes:
        return encode_record(
            topic=META_TOPIC,
            queue_id=0,
            body=body,
            properties="",
            queue_offset=0,
            physical_offset=pos,
            born_timestamp_ms=store_ms,
            born_host=self._command_host,
            store_timestamp_ms=store_ms,
            store_host=self._command_host,
        )
