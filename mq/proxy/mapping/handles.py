"""The texts by which clients refer to a message: receipt handles and transaction ids. Pure.

Both say everything that a proxy needs to know, so any proxy can serve them, also one that has been started since. They
are client input: brokers verify what is in them.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final, NamedTuple

from mq.protocol.names import NameRefused, check_lite_topic
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.pop import PopTimes
from mq.protocol.requests.receipts import ORDERED_REVIVE_QUEUE, Receipt, ReceiptError
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.wire import messaging_pb2 as pb

_OFFSETS: Final = struct.Struct(">qq")
_HANDLE_LENGTH_MAX: Final = 1024


class Handle(NamedTuple):
    """A popped message: its receipt, its position in the log of its broker group, and its lite topic, if any."""

    receipt: Receipt
    physical_offset: PhysicalOffset
    lite_topic: str = ""

    def encode(self) -> str:
        """Encode the handle for clients, as RocketMQ's proxy does, followed by the lite topic, if there is one."""
        text = f"{self.receipt.encode()} {self.physical_offset}"
        return f"{text} {self.lite_topic}" if self.lite_topic else text

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Parse a handle. Raises CodedError."""
        try:
            if len(text) > _HANDLE_LENGTH_MAX:
                raise ReceiptError(f"the receipt handle has {len(text)} characters; maximum: {_HANDLE_LENGTH_MAX}")
            receipt = Receipt.decode(text)
        except ReceiptError as error:
            raise CodedError(pb.INVALID_RECEIPT_HANDLE, str(error)) from error
        last = text.split(" ")[8:]
        if not last or not last[0].isascii() or not last[0].isdecimal() or len(last[0]) > 18:
            raise CodedError(pb.INVALID_RECEIPT_HANDLE, "the receipt handle does not name a position in the log")
        lite_topic = " ".join(last[1:])
        if lite_topic:
            try:
                check_lite_topic(lite_topic)
            except NameRefused as error:
                raise CodedError(pb.INVALID_RECEIPT_HANDLE, str(error)) from error
        return cls(receipt, PhysicalOffset(int(last[0])), lite_topic)

    @property
    def hidden_until_ms(self) -> int:
        """The time at which the message becomes visible again, by its broker's clock."""
        return self.receipt.pop_time_ms + self.receipt.invisible_ms

    def with_times(self, times: PopTimes) -> Handle:
        """Return the handle that is valid after the invisible time was changed."""
        in_order = times.revive_queue == ORDERED_REVIVE_QUEUE
        receipt = self.receipt._replace(
            # In order a message stays in its pop; otherwise it has a checkpoint of its own, that begins with it.
            start=self.receipt.start if in_order else self.receipt.offset,
            pop_time_ms=times.pop_time_ms,
            invisible_ms=times.invisible_ms,
            revive_queue=times.revive_queue,
        )
        return self._replace(receipt=receipt)


class TransactionId(NamedTuple):
    """A half message: its position and its unique key."""

    broker_name: str
    half_queue_offset: QueueOffset
    half_physical_offset: PhysicalOffset
    unique_key: str

    def encode(self) -> str:
        """Encode the transaction id for clients."""
        offsets = _OFFSETS.pack(self.half_queue_offset, self.half_physical_offset)
        names = f"{self.broker_name} {self.unique_key}".encode()
        return base64.urlsafe_b64encode(offsets + names).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> TransactionId:
        """Parse a transaction id. Raises CodedError."""
        try:
            if len(text) > _HANDLE_LENGTH_MAX:
                raise ValueError("it is too long")
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            queue_offset, physical_offset = _OFFSETS.unpack_from(data)
            broker_name, unique_key = data[_OFFSETS.size :].decode().split(" ", 1)
        except (ValueError, binascii.Error, struct.error) as error:
            raise CodedError(pb.INVALID_TRANSACTION_ID, f"the transaction id is invalid: {error}") from error
        return cls(broker_name, QueueOffset(queue_offset), PhysicalOffset(physical_offset), unique_key)
