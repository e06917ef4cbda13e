"""Receives plain sends from many clients at once, and puts them into blocks for the log.

There are two forms of a `SendReceiver`: `PythonReceiver`, which is the reference, and `mq.compiled.CompiledReceiver`.
`send_receiver` chooses. Whatever clients send, both give the log the same records in the same order, and clients the
same replies. The compiled form takes fewer sends: it leaves requests that no stock client writes, such as headers with
spaces, to `mq.broker.produce.send.Sends`, as both leave everything else.

A client *produces* while its last chunk consisted of plain sends. The receiver is the only one who knows which clients
do: `take` finds out, `receive` receives from them, and `forget` ends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.batch import BatchSends
from mq.broker.produce.sends_in_flight import SendsOf
from mq.broker.produce.sent_messages import NUMBERED, SentMessages, numbers_in
from mq.broker.write_path.entry_builder import PendingItem
from mq.broker.write_path.send_block import NumberedSends, QueuedSend, SendBlock, give_back_frames
from mq.compiled import CompiledReceiver
from mq.protocol.incoming.chunks import requests_of
from mq.protocol.messages.records import IPV4_HOST_BYTES
from mq.protocol.requests.send import SENT_ALREADY_STORED, SendBatchMessage, SendMessageV2
from mq.protocol.wire.encoding import SendReplyTemplate
from raftlog import Ready
from raftlog.net.reactor import EPOLLIN, EVENTS_MAX, RECEIVE_BYTES

BLOCK_BYTES_MAX: Final = 128 * 1024
"""Bytes of the records of a block: half an entry."""
BLOCK_MESSAGES_MAX: Final = 1024
SENDERS_MAX: Final = EVENTS_MAX
"""Clients that are received from in one call."""
_RECEIVED_BYTES_MAX: Final = 96 * 1024
"""Bytes received in one call, in Python: some milliseconds of work."""

_SENDS: Final = SendMessageV2, SendBatchMessage
_CODE_BYTES_MAX: Final = 32

ReceiveInto = Callable[[int, memoryview], int]
"""Receives from a descriptor into a buffer, without waiting; returns the number of bytes, 0 at the end of the stream.
Raises BlockingIOError if there is nothing; another OSError if the connection is broken.
"""
UnservedFrames = list[tuple[int, ClientConnection, bytes]]
"""The rest of a received chunk: descriptor, client, and the bytes from the first request on that is not a plain send.
"""


class KnownNumbers(Protocol):
    """The sequence numbers that are stored or in flight; implemented by `mq.broker.produce.dedup.Dedup`."""

    def highest(self, producer: str) -> int:
        """Return the highest number of a producer that is stored or in flight; -1 without any."""

    def begin_block(self, highest: Mapping[str, int], sends_of: SendsOf) -> NumberedSends:
        """Mark the numbered sends of a finished block as in flight. See `NumberedBlock`."""


class SendReceiver(Protocol):
    """Receives plain sends from many clients at once. All methods run on the event loop.

    Attributes:
        fast_senders: the descriptors of clients that produce.
        compiled_messages: how many messages were taken in compiled code.
    """

    @property
    def fast_senders(self) -> frozenset[int]: ...
    @property
    def compiled_messages(self) -> int: ...

    def receive(self, ready: Ready, room: int) -> tuple[list[PendingItem], UnservedFrames, Ready]:
        """Receive once from each producing client of ``ready``, and take the plain sends at the start of each chunk.

        A request is taken while those before it have no more than ``room`` bytes: the one that exceeds it is the last.
        A client with anything else in its chunk no longer produces. Returns the blocks of all clients; the rest of each
        chunk that has one; and the events that are left to their handlers: of other descriptors, of clients whose
        connection has ended, and of clients without space for their sends. The order of a client's bytes is kept.
        """

    def take(self, sender: ClientConnection, chunk: bytes, room: int) -> tuple[list[PendingItem], int]:
        """Take the plain sends at the start of a chunk that the connection has received. For ``room``, see `receive`.

        The client produces from now on if these are the whole chunk, and does not otherwise. Returns the blocks, and
        how many bytes of the chunk they have.
        """

    def forget(self, descriptor: int) -> None:
        """Stop receiving from the client with this descriptor, because it is closed, or is read by its handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The settings of the compiled and the Python receiver of sends.

    Attributes:
        is_signed: whether clients are asked for the keys of their requests (`ClientConnection.send_keys`).
        broker_name: the name of the broker group.
        store_host: the broker's address as records store it.
        entry_bytes_max: the maximum of an entry with several items.
        receive_into: receives from simulated sockets; None for sockets of the system.
    """

    is_signed: bool
    broker_name: str
    store_host: bytes
    entry_bytes_max: int
    receive_into: ReceiveInto | None = None

    @property
    def block_bytes_max(self) -> int:
        """The maximum bytes of a block."""
        return min(BLOCK_BYTES_MAX, self.entry_bytes_max)


class PythonReceiver:
    """The `SendReceiver` in Python. Leaves sends that must be signed to `AccessControl.authorize`."""

    compiled_messages = 0

    def __init__(
        self, messages: SentMessages, batches: BatchSends, settings: ReceiverSettings, numbers: KnownNumbers
    ) -> None:
        self._messages = messages
        self._batches = batches
        self._numbers = numbers
        self._is_signed = settings.is_signed
        self._block_bytes_max = settings.block_bytes_max
        self._receive_into = settings.receive_into
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._producers: dict[int, ClientConnection] = {}

    @property
    def fast_senders(self) -> frozenset[int]:
        """The descriptors of producing clients, which `receive` reads."""
        return frozenset(self._producers)

    def receive(self, ready: Ready, room: int) -> tuple[list[PendingItem], UnservedFrames, Ready]:
        """Receive once from each producing client of ``ready``; see `SendReceiver.receive`."""
        senders: list[tuple[int, ClientConnection]] = []
        other_events: Ready = []
        for event in ready:
            descriptor, events = event
            sender = self._producers.get(descriptor) if events == EPOLLIN and len(senders) < SENDERS_MAX else None
            if sender is None:
                other_events.append(event)
            else:
                senders.append((descriptor, sender))
        if not senders:
            return [], [], ready
        blocks = _Blocks(room, self._block_bytes_max, self._numbers)
        leftovers: UnservedFrames = []
        received_bytes = 0
        for descriptor, sender in senders:
            if received_bytes + RECEIVE_BYTES > _RECEIVED_BYTES_MAX:
                other_events.append((descriptor, EPOLLIN))
                continue
            try:
                if self._receive_into is None:
                    nbytes = os.readv(descriptor, (self._buffer,))
                else:
                    nbytes = self._receive_into(descriptor, self._buffer)
            except BlockingIOError:
                continue
            except OSError:
                nbytes = 0
            if nbytes == 0:  # the end of the connection; whoever receives next will see why
                other_events.append((descriptor, EPOLLIN))
                continue
            assert nbytes <= RECEIVE_BYTES, f"{nbytes} bytes were received into {RECEIVE_BYTES}"
            received_bytes += nbytes
            sender.heard = True
            chunk = bytes(self._buffer[:nbytes])
            consumed_bytes = self._take(sender, chunk, blocks)
            if consumed_bytes < nbytes:
                del self._producers[descriptor]
                leftovers.append((descriptor, sender, chunk[consumed_bytes:]))
        return blocks.finish(), leftovers, other_events

    def take(self, sender: ClientConnection, chunk: bytes, room: int) -> tuple[list[PendingItem], int]:
        """Take the plain sends at the start of a chunk; returns their blocks, and their bytes in the chunk."""
        blocks = _Blocks(room, self._block_bytes_max, self._numbers)
        size = self._take(sender, chunk, blocks)
        if size == len(chunk) and sender.descriptor >= 0:
            self._producers[sender.descriptor] = sender
        else:
            self.forget(sender.descriptor)
        return blocks.finish(), size

    def forget(self, descriptor: int) -> None:
        """Stop receiving from the client with this descriptor."""
        self._producers.pop(descriptor, None)

    def _take(self, sender: ClientConnection, chunk: bytes, blocks: _Blocks) -> int:
        """Add the plain sends at the start of a chunk to the blocks; returns how many bytes of it they have."""
        size = 0
        start = chunk[:_CODE_BYTES_MAX]
        if blocks.room < 0 or not (b'"code":310,' in start or b'"code":320,' in start):
            return size  # probably no send, so its first request would be decoded twice
        if self._is_signed and sender.send_keys() is not None:
            return size
        for request, body, end in requests_of(chunk):
            if not isinstance(request, _SENDS):
                break
            call: Call[SendMessageV2 | SendBatchMessage] = Call(sender, request, body, 0)
            tail = self._messages.plain_tail(call)
            if tail is None:
                break
            try:
                if request.ext.batch or isinstance(request, SendBatchMessage):
                    send = self._batches.build_send(call, tail)
                else:
                    numbers = numbers_in(request.ext) if NUMBERED in request.ext.properties else None
                    send = self._messages.build_send(call, tail, needs_key=True, numbers=numbers)
            except RequestRefused:
                break  # `Sends` says why
            if not blocks.add(send):
                break
            size = end
        return size


class _Blocks:
    """The blocks of one call; the last one is being filled."""

    def __init__(self, room: int, block_bytes_max: int, numbers: KnownNumbers) -> None:
        self._block_bytes_max = block_bytes_max
        self._numbers = numbers
        self._open: list[QueuedSend] = []
        self._highest: dict[str, int] = {}
        self._nbytes = self._messages = 0
        self._full: list[PendingItem] = []
        self.room = room

    def add(self, send: QueuedSend) -> bool:
        """Add a request. Returns False if it fits no block, if its numbers may be known, or if no ``room`` is left."""
        nbytes, messages = send.nbytes, len(send.messages)
        if nbytes > self._block_bytes_max or messages > BLOCK_MESSAGES_MAX or self.room < 0:
            return False
        if self._nbytes + nbytes > self._block_bytes_max or self._messages + messages > BLOCK_MESSAGES_MAX:
            self._end_block()
        assert messages > 0, f"a request of {nbytes} bytes without messages"
        if send.numbers is not None:
            producer, first, last = send.numbers
            highest = self._highest.get(producer)
            if first <= (self._numbers.highest(producer) if highest is None else highest):
                return False
            self._highest[producer] = last
        self._open.append(send)
        self._nbytes += nbytes
        self._messages += messages
        self.room -= nbytes
        return True

    def _end_block(self) -> None:
        block = SendBlock(*self._open)
        if self._highest:
            block.in_flight = self._numbers.begin_block(self._highest, block.numbered_sends)
        self._full.append(block)
        self._open, self._highest, self._nbytes, self._messages = [], {}, 0, 0

    def finish(self) -> list[PendingItem]:
        """Finish all sends of the block; called once."""
        if self._open:
            self._end_block()
        return self._full


def send_receiver(
    messages: SentMessages, batches: BatchSends, settings: ReceiverSettings, numbers: KnownNumbers
) -> SendReceiver:
    """Return the compiled receiver if it is installed and the broker has an IPv4 address, else the Python one."""
    if CompiledReceiver is None or len(settings.store_host) != IPV4_HOST_BYTES:
        return PythonReceiver(messages, batches, settings, numbers)
    return CompiledReceiver(
        writable=messages.writable,
        tag_codes=messages.tag_codes,
        suffix=messages.suffix,
        store_host=settings.store_host,
        reply_parts=SendReplyTemplate(settings.store_host).parts,
        numbered_batch=f'","{SENT_ALREADY_STORED}":"0'.encode(),
        body_bytes_max=messages.body_bytes_max,
        block_bytes_max=settings.block_bytes_max,
        broker_name=settings.broker_name.encode(),
        is_signed=settings.is_signed,
        give_back=give_back_frames,
        known=numbers,
        receive_into=settings.receive_into,
    )
