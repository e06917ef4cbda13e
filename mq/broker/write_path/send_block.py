"""Sends of clients that wait for their round together.

This is the reference of the compiled block, `mq.compiled.plain_sends.SendBlock`: both are a `PendingItem`, and for the
same sends both add the same records, queue entries and replies to an entry.
"""

from __future__ import annotations

from typing import cast

import msgspec

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.write_path.entry_builder import CLIENT_FLAGS, EntryDraft, QueuedMessage
from mq.broker.write_path.outcome import LeadershipLost, Refused, give_back
from mq.broker.write_path.pending import NO_PLACE, SendRequest
from mq.broker.write_path.queue_offsets import NextOffset
from mq.protocol.chunks import decode_chunk
from mq.protocol.headers import ONEWAY_FLAG
from mq.protocol.numbers import NO_OFFSET, PhysicalOffset
from mq.protocol.replies import SENT_ALREADY_STORED
from mq.protocol.sequencing import SequenceRange
from mq.store.sequenced import SequencedRecord


class QueuedSend(msgspec.Struct, gc=False):
    """A request to send, whose messages are valid and go to one queue.

    Attributes:
        unique_keys: of all messages in the request, joined by commas.
        parts: the messages that start a range of sequence numbers, with that range; None without numbers.
        already_stored: how many messages of a numbered batch are left out, because the log has them.
    """

    call: Call[SendRequest]
    tail: NextOffset
    messages: list[QueuedMessage]
    unique_keys: bytes
    parts: list[tuple[int, SequenceRange]] | None = None
    already_stored: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all its records."""
        messages = self.messages
        return messages[0].size if len(messages) == 1 else sum([message.size for message in messages])

    def build(self, draft: EntryDraft) -> None:
        """Add its messages and the reply; see `PendingItem`."""
        call, tail = self.call, self.tail
        request, sender = call.request, call.connection
        ext, host = request.ext, sender.host
        sys_flag, born_ms, reconsume_times = ext.sys_flag & CLIENT_FLAGS, ext.born_timestamp_ms, ext.reconsume_times
        first, places = tail.next_offset, list[PhysicalOffset]()
        for message in self.messages:
            places.append(draft.position)
            draft.add_message(tail, message, sys_flag, born_ms, host, reconsume_times)
        more: dict[str, str] | None = None
        if self.parts is not None:
            for at, numbers in self.parts:
                draft.add_sequenced(SequencedRecord(*numbers, places[at], draft.store_ms))
            more = {SENT_ALREADY_STORED: str(self.already_stored)}
        if request.flag & ONEWAY_FLAG:
            return
        template, opaque, queue_id = draft.reply_template, request.opaque, tail.queue_id
        if self.already_stored:  # the others are elsewhere
            first, places = NO_OFFSET, [NO_PLACE] * (len(places) + self.already_stored)
        if len(places) == 1 and more is None:
            reply = template.render(opaque, queue_id, first, places[0], self.unique_keys, call.serialization)
        else:
            reply = template.render_batch(opaque, queue_id, first, places, self.unique_keys, call.serialization, more)
        draft.reply(sender, reply)


class SendBlock:
    """Sends that are stored in one entry, in this order; see `PendingItem`."""

    __slots__ = ("_last_sender", "nbytes", "requests", "sender_count")

    def __init__(self, *requests: QueuedSend) -> None:
        self.nbytes = 0
        self.sender_count = 0
        self.requests: list[QueuedSend] = []
        self._last_sender: ClientConnection | None = None
        for request in requests:
            self.add(request)

    @property
    def request_count(self) -> int:
        """See `PendingItem`."""
        return len(self.requests)

    def add(self, request: QueuedSend) -> None:
        """Add a request behind the others. The block must not wait for its round yet."""
        self.requests.append(request)
        self.nbytes += request.nbytes
        if request.call.connection is not self._last_sender:
            self._last_sender = request.call.connection
            self.sender_count += 1

    def build(self, draft: EntryDraft) -> None:
        """See `PendingItem`."""
        for request in self.requests:
            request.build(draft)

    def give_back(self, outcome: Refused | LeadershipLost) -> None:
        """See `PendingItem`."""
        for request in self.requests:
            give_back(request.call, outcome)


def give_back_frames(sender: ClientConnection, frames: bytes, outcome: Refused | LeadershipLost) -> None:
    """Give back the requests in ``frames``, which are sends, to the client that sent them; see `PendingItem`."""
    for request, body, serialization in decode_chunk(frames)[0]:
        give_back(Call(sender, cast("SendRequest", request), body, serialization), outcome)
