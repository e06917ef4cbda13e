"""The items that wait for their log entry: messages of clients, batches, internal messages, metadata commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mq.broker.net.call import Call
from mq.broker.write_path.outcome import OnOutcome, Stored
from mq.broker.write_path.queue_offsets import NextOffset
from mq.compiled import SendBlock
from mq.protocol.headers import SendBatchMessage, SendMessage, SendMessageV2
from mq.protocol.records import FIXED
from mq.protocol.sequencing import SequenceRange
from mq.store.dispatch import META_TOPIC

NO_PLACE = 2**64 - 1
"""In place of an unknown physical offset."""

SendRequest = SendMessage | SendMessageV2 | SendBatchMessage


PendingMessage = tuple[int, Call[SendRequest], NextOffset, bytes, int, bytes]
"""A valid message that waits for its round: bytes of its record, request, queue, properties, tag code, unique key. A
plain tuple, since there is one per message."""


@dataclass(slots=True, kw_only=True, eq=False)
class InternalRecord:
    """A message that is not a client's plain send: delayed, retried, or from the broker itself.

    ``tag_code`` is ignored in queues of delayed messages, where the due time takes its place.
    """

    tail: NextOffset
    body: bytes
    properties: bytes
    tag_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int
    born_host: bytes
    """Four bytes of an IPv4 address and four of the port."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    on_outcome: OnOutcome | None = None
    nbytes: int = field(init=False)
    """Bytes of the record."""

    def __post_init__(self) -> None:
        self.nbytes = self.tail.fixed_bytes + len(self.body) + len(self.properties)


@dataclass(slots=True, eq=False)
class PendingSend:
    """A client's message that is stored in another queue, or with other properties, than in the request."""

    nbytes: int
    """Bytes of its record."""
    call: Call[SendRequest]
    tail: NextOffset
    properties: bytes
    tag_code: int
    unique_key: bytes
    queue_id: int
    """The queue id in the reply."""
    sequence: SequenceRange | None = None
    """The sequence numbers in its properties, if they are decoded already."""
    more: Callable[[Stored, str], dict[str, str]] | None = None
    """Returns additional fields of the reply, from the place of the message and its unique key."""


@dataclass(slots=True, eq=False)
class PendingCommand:
    """A change of replicated metadata that waits for its round."""

    body: bytes
    on_outcome: OnOutcome | None = None
    on_framed: Callable[[], None] | None = None
    """Called when the command has its place in the log: everything that is framed later follows it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the record."""
        return FIXED + len(META_TOPIC) + len(self.body)


class BatchElement(NamedTuple):
    """One message of a batch."""

    size: int
    """Bytes of its record."""
    flag: int
    body: bytes
    properties: bytes
    tag_code: int


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Messages to one queue that are stored together and answered with one reply."""

    call: Call[SendRequest]
    tail: NextOffset
    elements: list[BatchElement]
    unique_keys: bytes
    """Unique keys of all messages in the request, joined by commas."""
    parts: list[tuple[int, SequenceRange]] | None = None
    """The elements that start a range of sequence numbers, with that range; None without numbers."""
    already_stored: int = 0
    """Number of messages of a numbered batch that are left out, because the log has them."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its records."""
        return sum(element.size for element in self.elements)


PendingGroup = list[InternalRecord | PendingCommand | PendingSend]
"""Items that are stored in one entry, or not at all."""

Pending = PendingMessage | tuple[int, SendBlock] | tuple[int, PendingBatch] | tuple[int, PendingGroup]
"""Each starts with its size in bytes; the length of the tuple tells the kinds apart."""
