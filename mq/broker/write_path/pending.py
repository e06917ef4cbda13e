"""The items that wait for their log entry: internal messages, metadata commands, and groups of both. Plain sends are in
`mq.broker.write_path.send_block`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mq.broker.net.call import Call
from mq.broker.write_path.entry_builder import CLIENT_FLAGS, EntryDraft, QueuedMessage
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Stored, give_back
from mq.broker.write_path.queue_tails import QueueTail, QueueTails
from mq.protocol.messages.records import FIXED, IN_LITE_TOPIC, IPV4_HOST_BYTES
from mq.protocol.messages.sequencing import SEQUENCE_MARK, SequenceRange
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset
from mq.protocol.properties import PROPERTIES_BYTES_MAX
from mq.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from mq.protocol.wire.encoding import ONEWAY_FLAG
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, LitePlace
from mq.store.sequenced import SequencedRecord, sequenced_record

NO_PLACE: Final = PhysicalOffset(2**64 - 1)
"""Stands for an unknown physical offset."""

SendRequest = SendMessage | SendMessageV2 | SendBatchMessage


@dataclass(slots=True, kw_only=True, eq=False)
class InternalRecord:
    """A message that is not a client's plain send: a delayed or redelivered one, or one of the broker itself.

    ``tag_code`` is ignored in queues of delayed messages, where the due time takes its place.
    """

    tail: QueueTail
    body: bytes
    properties: bytes
    tag_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int
    born_host: bytes
    """Four bytes of an IPv4 address and four of the port."""
    reconsume_times: int = 0
    prepared_offset: PhysicalOffset = LOG_BEGIN
    on_outcome: OnOutcome | None = None
    nbytes: int = field(init=False)
    """Bytes of the record."""

    def __post_init__(self) -> None:
        assert len(self.born_host) == IPV4_HOST_BYTES, f"a sender's host of {len(self.born_host)} bytes"
        assert len(self.properties) <= PROPERTIES_BYTES_MAX, f"properties of {len(self.properties)} bytes"
        self.nbytes = self.tail.fixed_bytes + len(self.body) + len(self.properties)

    def build(self, draft: EntryDraft) -> None:
        """Add the record and its queue entry to the draft."""
        tail, position = self.tail, draft.position
        code = _tag_code(self.tag_code, tail, draft, self.properties)
        message = QueuedMessage(self.nbytes, self.flag, self.body, self.properties, code)
        offset = draft.add_message(
            tail,
            message,
            self.sys_flag,
            self.born_timestamp_ms,
            self.born_host,
            self.reconsume_times,
            self.prepared_offset,
        )
        _add_sequence(None, self.properties, draft, position)
        if self.on_outcome is not None:
            draft.entry.callbacks.append((self.on_outcome, Stored(offset, position)))

    def give_back(self, outcome: DiskFull | LeadershipLost) -> None:
        """Call ``on_outcome`` with the outcome of this message, which was not stored."""
        if self.on_outcome is not None:
            self.on_outcome(outcome)


class LiteTail(NamedTuple):
    """The queue of a lite topic, to which a message is added besides the queue of its parent topic."""

    queue: str
    tails: QueueTails

    def add(self, draft: EntryDraft, size: int, tag_code: int) -> bytes:
        """Add the record at the draft's position to the lite topic's queue; returns properties for the record."""
        tail, position = self.tails.of_lite(self.queue), draft.position
        offset = draft.add_to_queue(tail, QUEUE_ENTRY.pack(position, size, tag_code), 1)
        return LitePlace(self.queue, offset).encode(position)

    @property
    def nbytes(self) -> int:
        """The number of bytes that `add` returns."""
        return len(LitePlace(self.queue, FIRST_OFFSET).encode(LOG_BEGIN))


@dataclass(slots=True, eq=False)
class PendingSend:
    """A client's message that is stored in another queue or with other properties than it was sent."""

    nbytes: int
    """Bytes of its record."""
    call: Call[SendRequest]
    tail: QueueTail
    properties: bytes
    tag_code: int
    unique_key: bytes
    queue_id: int
    """The queue id in the reply."""
    sequence: SequenceRange | None = None
    """The sequence numbers in its properties, if they are decoded already."""
    more: Callable[[Stored, str], dict[str, str]] | None = None
    """Returns additional fields of the reply, from the place of the message and its unique key."""
    lite: LiteTail | None = None
    """The tail of the lite topic, for a message of one. ``nbytes`` includes the properties that it adds."""

    def build(self, draft: EntryDraft) -> None:
        """Add the record, its queue entries and the reply to the draft."""
        call, tail, position = self.call, self.tail, draft.position
        ext = call.request.ext
        code = _tag_code(self.tag_code, tail, draft, self.properties)
        properties, sys_flag = self.properties, ext.sys_flag & CLIENT_FLAGS
        if self.lite is not None:
            properties += self.lite.add(draft, self.nbytes, code)
            sys_flag |= IN_LITE_TOPIC
        message = QueuedMessage(self.nbytes, ext.flag, call.body, properties, code)
        offset = draft.add_message(
            tail,
            message,
            sys_flag,
            ext.born_timestamp_ms,
            call.connection.host,
            ext.reconsume_times,
        )
        _add_sequence(self.sequence, self.properties, draft, position)
        if not call.request.flag & ONEWAY_FLAG:
            more = None if self.more is None else self.more(Stored(offset, position), self.unique_key.decode())
            template, opaque, serialization = draft.reply_template, call.request.opaque, call.serialization
            if more is None:
                reply = template.render(opaque, self.queue_id, offset, position, self.unique_key, serialization)
            else:
                reply = template.render_batch(
                    opaque, self.queue_id, offset, [position], self.unique_key, serialization, more
                )
            draft.reply(call.connection, reply)

    def give_back(self, outcome: DiskFull | LeadershipLost) -> None:
        """Refuse the send, which was not stored, or serve it again."""
        give_back(self.call, outcome)


@dataclass(slots=True, eq=False)
class PendingCommand:
    """A metadata command that waits for its entry."""

    body: bytes
    on_outcome: OnOutcome | None = None
    on_framed: Callable[[], None] | None = None
    """Called when the command has its place in the log: everything that is framed later follows it."""

    @property
    def nbytes(self) -> int:
        """The bytes of its record."""
        return FIXED + len(META_TOPIC) + len(self.body)

    def build(self, draft: EntryDraft) -> None:
        """Add the command to the draft."""
        entry = draft.entry
        if self.on_outcome is not None:
            entry.callbacks.append((self.on_outcome, Stored(FIRST_OFFSET, draft.position)))
        if self.on_framed is not None:
            entry.on_framed.append(self.on_framed)
        draft.add_command(self.body)

    def give_back(self, outcome: DiskFull | LeadershipLost) -> None:
        """Call ``on_outcome`` with the outcome of this command, which was not stored."""
        if self.on_outcome is not None:
            self.on_outcome(outcome)


PendingGroup = list[InternalRecord | PendingCommand | PendingSend]
"""Messages and commands that are stored in one entry, or not at all."""


class AtomicGroup:
    """A `PendingItem` of several messages and commands that are stored together, or not at all."""

    __slots__ = ("_members", "nbytes")

    request_count = 1
    sender_count = 1

    def __init__(self, members: Sequence[InternalRecord | PendingCommand | PendingSend]) -> None:
        assert members, "nothing is to be stored together"
        self._members = members
        self.nbytes = members[0].nbytes if len(members) == 1 else sum([member.nbytes for member in members])

    def adds_to(self, tail: QueueTail) -> bool:
        """Whether a message of this group is stored in the queue of ``tail``."""
        return any(not isinstance(member, PendingCommand) and member.tail is tail for member in self._members)

    def build(self, draft: EntryDraft) -> None:
        """Add all members to the draft."""
        for member in self._members:
            member.build(draft)

    def give_back(self, outcome: DiskFull | LeadershipLost) -> None:
        """Give back all members, since the group was not stored."""
        for member in self._members:
            member.give_back(outcome)


def _tag_code(code: int, tail: QueueTail, draft: EntryDraft, properties: bytes) -> int:
    """Return the code for the queue entry: the due time in a queue of delayed messages, else the tag code."""
    return code if tail.turn_ms is None else tail.turn_ms(draft.store_ms, tail.queue_id, properties)


def _add_sequence(
    sequence: SequenceRange | None, properties: bytes, draft: EntryDraft, position: PhysicalOffset
) -> None:
    """Add the sequence numbers of a message to the draft: ``sequence``, or those in its properties."""
    if sequence is not None:
        draft.add_sequenced(SequencedRecord(*sequence, position, draft.store_ms))
    elif SEQUENCE_MARK in properties and (record := sequenced_record(properties, position, draft.store_ms)):
        draft.add_sequenced(record)
