"""Builds log entries from pending items: the records, the additions to queues, and the replies.

The queue offset, physical offset and store time of a message are known only when its entry is framed. So records are
built then, once, and also the replies, which wait in one list per entry for the commit.

`EntryBuilder` gives each item an `EntryDraft`, to which the item adds its messages and commands. So this module knows
no kinds of items, and the items do not know how an entry is put together.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from mq.broker.net.connection import ClientConnection
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Stored
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol.messages.records import (
    BORN_HOST_IPV6,
    CRC_MASK,
    HEAD,
    IN_LITE_TOPIC,
    IPV4_HOST_BYTES,
    MAGIC_V1,
    NO_HOST,
    STORE_HOST_IPV6,
    TRANSACTION_MASK,
    encode_record,
    head_of_broker,
)
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.protocol.properties import PROPERTIES_BYTES_MAX
from mq.protocol.wire.encoding import SendReplyTemplate
from mq.store.annotation import ANNOTATION_START, RUN_HEAD, Span, join_annotation, sequenced_row
from mq.store.built_runs import BuiltRun
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.sequenced import SequencedRecord, SequencedRun, join_runs

_PROPERTIES_LENGTHS = [struct.pack(">h", length) for length in range(PROPERTIES_BYTES_MAX + 1)]
"""The packed length, by length of the properties: twice as fast as packing it for each message."""
CLIENT_FLAGS = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK | IN_LITE_TOPIC)
"""All bits that a sender may set: not the layout of hosts, the role of the message in a transaction, nor whether it is
in a lite topic.
"""


class PendingItem(Protocol):
    """A message, command or group of them that waits for its round. It is stored in one entry as a whole, or not at
    all.

    Attributes:
        nbytes: bytes of its records.
        request_count: how many requests of clients it has; 1 for messages and commands of the broker itself.
        sender_count: how many clients sent them.
    """

    @property
    def nbytes(self) -> int: ...
    @property
    def request_count(self) -> int: ...
    @property
    def sender_count(self) -> int: ...

    def build(self, draft: EntryDraft) -> None:
        """Add the records, queue entries and replies of this item to the draft; called once."""

    def give_back(self, outcome: DiskFull | LeadershipLost) -> None:
        """Refuse the requests of this item, which was not stored, or serve them again."""


class QueuedMessage(msgspec.Struct, gc=False):
    """A message whose record is built together with its entry. ``size`` is the size of the record in bytes.

    ``born_ms`` is the time of its birth, if it differs from that of its request.
    """

    size: int
    flag: int
    body: bytes
    properties: bytes
    tag_code: int
    born_ms: int | None = None


class Entry:
    """An entry in flight, with its replies and callbacks.

    Attributes:
        nbytes: bytes of its records.
        messages: how many messages and commands it has.
        replies: replies by connection, to be sent when it is committed.
        callbacks: callbacks with the places of messages and commands, to be called when it is committed.
        on_framed: callbacks to be called when it is framed.
        annotation: its additions to queues and its sequenced records, encoded for other replicas.
        runs, sequences: the same as objects for this one.
    """

    __slots__ = ("annotation", "callbacks", "index", "messages", "nbytes", "on_framed", "replies", "runs", "sequences")

    def __init__(self, nbytes: int) -> None:
        self.index = 0
        self.nbytes = nbytes
        self.messages = 0
        self.replies: list[tuple[ClientConnection, list[bytes]]] = []
        self.callbacks: list[tuple[OnOutcome, Stored]] = []
        self.on_framed: list[Callable[[], None]] = []
        self.annotation = b""
        self.runs: list[BuiltRun] = []
        self.sequences: list[SequencedRun] = []


class EntryDraft:
    """An entry to which items add their records, in this order.

    Attributes:
        position: physical offset of the next record.
        store_ms: the store time of all records.
        reply_template: renders the replies to sends.
    """

    __slots__ = (
        "_begin",
        "_commands",
        "_head",
        "_last_replies",
        "_last_sender",
        "_records",
        "_rows",
        "_store_flag",
        "_store_host",
        "_tails",
        "entry",
        "position",
        "reply_template",
        "store_ms",
    )

    def __init__(self, entry: Entry, position: PhysicalOffset, store_ms: int, builder: EntryBuilder) -> None:
        self.entry = entry
        self.position = self._begin = position
        self.store_ms = store_ms
        self.reply_template = builder.reply_template
        self._head, self._store_flag, self._store_host = builder.head, builder.store_flag, builder.store_host
        self._records: list[bytes] = []
        self._tails: list[QueueTail] = []
        self._commands: list[Span] = []
        self._rows: list[bytes] = []
        self._last_sender: ClientConnection | None = None
        self._last_replies: list[bytes] = []

    def add_message(
        self,
        tail: QueueTail,
        message: QueuedMessage,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_offset: PhysicalOffset = LOG_BEGIN,
    ) -> QueueOffset:
        """Add a message, whose record begins at ``position``, to the queue of ``tail``; returns its queue offset."""
        size, body, properties = message.size, message.body, message.properties
        position = self.position
        # As `add_to_queue`, without a call for each message.
        offset = tail.next_offset
        tail.next_offset = offset + 1
        queue_entry = QUEUE_ENTRY.pack(position, size, message.tag_code)
        if (run := tail.run) is None:
            tail.run = [queue_entry]
            self._tails.append(tail)
        else:
            run.append(queue_entry)
        self._records += (
            self._head.pack(
                size,
                MAGIC_V1,
                zlib.crc32(body) & CRC_MASK,
                tail.queue_id,
                message.flag,
                offset,
                position,
                sys_flag | self._store_flag,
                born_ms,
                born_host,
                self.store_ms,
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
        self.position = position + size
        self.entry.messages += 1
        return offset

    def add_to_queue(self, tail: QueueTail, queue_entries: bytes, count: int) -> QueueOffset:
        """Add ``count`` entries to the end of a queue; returns the queue offset of the first one."""
        first = tail.next_offset
        tail.next_offset = first + count
        if (run := tail.run) is None:
            tail.run = [queue_entries]
            self._tails.append(tail)
        else:
            run.append(queue_entries)
        return first

    def add_records(self, records: bytes, count: int) -> None:
        """Add records that were built for ``position``. Their ``count`` messages were added to their queues before."""
        self._records.append(records)
        self.position += len(records)
        self.entry.messages += count

    def add_command(self, body: bytes) -> None:
        """Add a metadata command."""
        position, store_ms = self.position, self.store_ms
        # Records of one size, whatever the broker's address: clients never see them.
        host = self._store_host if len(self._store_host) == IPV4_HOST_BYTES else NO_HOST
        record = encode_record(
            topic=META_TOPIC,
            queue_id=0,
            body=body,
            properties="",
            queue_offset=FIRST_OFFSET,
            physical_offset=position,
            born_timestamp_ms=store_ms,
            born_host=host,
            store_timestamp_ms=store_ms,
            store_host=host,
        )
        self._commands.append((position - self._begin + HEAD.size, len(body)))
        self._records.append(record)
        self.position = position + len(record)
        self.entry.messages += 1

    def add_sequenced(self, record: SequencedRecord) -> None:
        """Add the sequence numbers of a record to the annotation."""
        producer, first, last, position, store_ms = record
        self.add_sequenced_runs(sequenced_row(record), [(producer, [first], [last], [position], store_ms)])

    def add_sequenced_runs(self, rows: bytes, runs: list[SequencedRun]) -> None:
        """Add the sequence numbers of several records; ``rows`` are their rows of the annotation."""
        self._rows.append(rows)
        join_runs(self.entry.sequences, runs)

    def on_outcome(self, callback: OnOutcome) -> None:
        """Call ``callback`` with the outcome of the entry, after the replies that were added before are sent."""
        self.entry.callbacks.append((callback, Stored(FIRST_OFFSET, self.position)))

    def reply(self, connection: ClientConnection, frames: bytes) -> None:
        """Send one or more replies to a client when the entry is committed, after its earlier replies."""
        if connection is not self._last_sender:
            self._last_sender, self._last_replies = connection, []
            self.entry.replies.append((connection, self._last_replies))
        self._last_replies.append(frames)

    def finish(self) -> tuple[bytes, bytes]:
        """Return the records of the finished entry, and its annotation."""
        entry = self.entry
        nbytes = self.position - self._begin
        assert nbytes == entry.nbytes, f"{nbytes} bytes of records at {self._begin}, {entry.nbytes} were announced"
        # As `encode_runs`, without a run in between: with thousands of queues there is one for nearly every message.
        pieces, pack_run = [ANNOTATION_START], RUN_HEAD.pack
        for tail in self._tails:
            run, name = tail.run, tail.topic_bytes
            assert run, f"{tail.topic}/{tail.queue_id}: a run without entries"
            entries = run[0] if len(run) == 1 else b"".join(run)
            count = len(entries) // QUEUE_ENTRY_BYTES
            first_offset = tail.next_offset - count
            pieces += (pack_run(len(name), tail.queue_id, first_offset, count), name, entries)
            entry.runs.append((tail, first_offset, count, entries))
            tail.run = None
        annotation = entry.annotation = join_annotation(b"".join(pieces), self._rows, self._commands)
        return b"".join(self._records), annotation


class EntryBuilder:
    """Builds log entries from the messages and commands of a round.

    Attributes:
        reply_template: renders the replies to sends.
        head, store_flag, store_host: the fields that are equal in the records of all messages.
    """

    def __init__(self, store_host: bytes, reply_template: SendReplyTemplate, wall_clock_ms: Callable[[], int]) -> None:
        self.store_host = store_host
        self.head, self.store_flag = head_of_broker(store_host)
        self.reply_template = reply_template
        self._wall_clock_ms = wall_clock_ms

    def build(self, items: Sequence[PendingItem], entry: Entry, pos: int) -> tuple[bytes, bytes]:
        """Return the records of an entry that starts at physical offset ``pos``, and its annotation."""
        draft = EntryDraft(entry, PhysicalOffset(pos), self._wall_clock_ms(), self)
        for item in items:
            item.build(draft)
        return draft.finish()
