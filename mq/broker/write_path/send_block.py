"""Blocks of plain sends of clients, which are stored in one log entry.

This is the reference of the compiled block, `mq.compiled.plain_sends.SendBlock`: both are a `PendingItem`, and for the
same sends both add the same records, queue entries and replies to an entry.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import msgspec

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.write_path.entry_builder import CLIENT_FLAGS, EntryDraft, QueuedMessage
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, Outcome, give_back
from mq.broker.write_path.pending import NO_PLACE, SendRequest
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.messages.sequencing import SequenceRange
from mq.protocol.numbers import NO_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.send import SENT_ALREADY_STORED
from mq.protocol.wire.encoding import ONEWAY_FLAG
from mq.store.sequenced import SequencedRecord


class NumberedSends(Protocol):
    """The numbered sends of a block in flight; see `mq.broker.produce.sends_in_flight`."""

    def end(self) -> list[Call[Any]]:
        """End these sends, whose outcome is known. Returns the repeats that waited for it."""

    def on_outcome(self, outcome: Outcome) -> None:
        """End these sends with the outcome of the block's entry, and answer the repeats that waited for it."""

    def serve(self, repeats: list[Call[Any]]) -> None:
        """Serve the repeats that `end` returned, after the block's senders were told that it is not stored."""


class QueuedSend(msgspec.Struct, gc=False):
    """A send request that was checked. Its messages are stored in one queue.

    Attributes:
        nbytes: bytes of all its records.
        unique_keys: of all messages in the request, joined by commas.
        numbers: the sequence numbers of a plain send.
        parts: the messages of a batch that start a range of sequence numbers, with that range; None without numbers.
        already_stored: how many messages of a numbered batch are left out, because the log has them.
    """

    call: Call[SendRequest]
    tail: QueueTail
    messages: list[QueuedMessage]
    nbytes: int
    unique_keys: bytes
    parts: list[tuple[int, SequenceRange]] | None = None
    already_stored: int = 0
    numbers: SequenceRange | None = None

    def build(self, draft: EntryDraft) -> bytes | None:
        """Add the messages to the draft. Returns the reply, or None if the client wants none."""
        call, tail = self.call, self.tail
        request = call.request
        ext, host = request.ext, call.connection.host
        sys_flag, born_ms, reconsume_times = ext.sys_flag & CLIENT_FLAGS, ext.born_timestamp_ms, ext.reconsume_times
        first, position = tail.next_offset, draft.position
        for message in self.messages:
            born = born_ms if message.born_ms is None else message.born_ms
            draft.add_message(tail, message, sys_flag, born, host, reconsume_times)
        if self.parts is None and len(self.messages) == 1:
            if self.numbers is not None:
                draft.add_sequenced(SequencedRecord(*self.numbers, position, draft.store_ms))
            if request.flag & ONEWAY_FLAG:
                return None
            return draft.reply_template.render(
                request.opaque, tail.queue_id, first, position, self.unique_keys, call.serialization
            )
        return self._finish_batch(draft, first, position)

    def _finish_batch(self, draft: EntryDraft, first: QueueOffset, position: PhysicalOffset) -> bytes | None:
        """Finish a batch, whose first message has this queue offset and physical offset. Returns the reply."""
        call = self.call
        places = [position]
        for message in self.messages[:-1]:
            places.append(places[-1] + message.size)
        more: dict[str, str] | None = None
        if self.parts is not None:
            for at, numbers in self.parts:
                draft.add_sequenced(SequencedRecord(*numbers, places[at], draft.store_ms))
            more = {SENT_ALREADY_STORED: str(self.already_stored)}
        if call.request.flag & ONEWAY_FLAG:
            return None
        if self.already_stored:  # the others are elsewhere
            first, places = NO_OFFSET, [NO_PLACE] * (len(places) + self.already_stored)
        return draft.reply_template.render_batch(
            call.request.opaque, self.tail.queue_id, first, places, self.unique_keys, call.serialization, more
        )


class SendBlock:
    """Sends that are stored in one entry, in this order.

    Attributes:
        in_flight: the sends with sequence numbers, while their outcome is unknown.
    """

    __slots__ = ("in_flight", "nbytes", "request_count", "requests", "sender_count")

    def __init__(self, *requests: QueuedSend) -> None:
        self.requests = requests
        self.in_flight: NumberedSends | None = None
        self.request_count = len(requests)
        self.nbytes = self.sender_count = 0
        last_sender: ClientConnection | None = None
        for request in requests:
            self.nbytes += request.nbytes
            if request.call.connection is not last_sender:
                last_sender = request.call.connection
                self.sender_count += 1

    def numbered_sends(self, producer: str) -> list[tuple[int, int, int]]:
        """Return a producer's numbered sends: first and last number, and place in the block."""
        return [
            (each.numbers.first, each.numbers.last, place)
            for place, each in enumerate(self.requests)
            if each.numbers is not None and each.numbers.producer == producer
        ]

    def build(self, draft: EntryDraft) -> None:
        """Add the records of all sends to the draft, and one reply for each client."""
        if self.in_flight is not None:
            draft.on_outcome(self.in_flight.on_outcome)
        sender: ClientConnection | None = None
        replies: list[bytes] = []
        for request in self.requests:
            if request.call.connection is not sender:
                if sender is not None and replies:
                    draft.reply(sender, b"".join(replies))
                sender, replies = request.call.connection, []
            reply = request.build(draft)
            if reply is not None:
                replies.append(reply)
        if sender is not None and replies:
            draft.reply(sender, b"".join(replies))

    def give_back(self, outcome: DiskFull | LeadershipLost) -> None:
        """Refuse all sends, which were not stored, or serve them again."""
        repeats = [] if self.in_flight is None else self.in_flight.end()
        for request in self.requests:
            give_back(request.call, outcome)
        if self.in_flight is not None:
            self.in_flight.serve(repeats)


def give_back_frames(sender: ClientConnection, frames: bytes, outcome: DiskFull | LeadershipLost) -> None:
    """Refuse the sends in ``frames``, which were not stored, or serve them again."""
    for request, body, serialization in decode_chunk(frames)[0]:
        give_back(Call(sender, cast("SendRequest", request), body, serialization), outcome)
