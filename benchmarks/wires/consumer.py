"""The protocol of a consumer's connection as bytes: first requests, received messages, next requests.

The time at which a message was due is in its body (`DueSlots`), so that consumers of every protocol find it in the same
way, and a message is received as soon as its body is there.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Protocol

from benchmarks.load.frames import QUEUES
from benchmarks.wires.wire import Slots

DUE = re.compile(rb"@DUE(\d{19})")
"""The due time in each body: nanoseconds of CLOCK_MONOTONIC."""
_AT, _DIGITS = len(b"@DUE"), 19
PULLED_MAX = 32
"""Messages per answer, as stock consumers of RocketMQ ask for."""


@dataclass(frozen=True, slots=True)
class DueSlots(Slots):
    """Slots whose bodies begin with the time at which the message was due. It is zero until `stamp` sets it."""

    def body(self, slot: int) -> bytes:
        """Return the body of a slot's messages."""
        return (b"@DUE" + bytes(b"0" * _DIGITS) + Slots.body(self, slot))[: self.body_bytes]


def stamp(request: bytes, due: float) -> bytes:
    """Write ``due``, in seconds of CLOCK_MONOTONIC, into a request with one message of `DueSlots`."""
    at = request.index(b"@DUE") + _AT
    return b"%b%019d%b" % (request[:at], round(due * 1e9), request[at + _DIGITS :])


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a load that consumer ``number`` (from 0) of a group of ``consumers`` reads.

    ``group``: one name for all of the group, and new in each measurement. ``confirms_each``: each message is confirmed
    by itself; otherwise a position, or the last of many. ``joins``: with one request for all that came together, where
    the protocol has that. ``is_late``: only messages sent from now on. ``fan_out``: for servers whose groups read from
    a queue of their own, that messages come from the exchange `FAN_OUT`. ``pulled_max``: messages per answer, where a
    consumer says that.
    """

    group: str
    number: int = 0
    consumers: int = 1
    confirms_each: bool = False
    joins: bool = False
    is_late: bool = False
    fan_out: bool = False
    pulled_max: int = PULLED_MAX

    @property
    def queues(self) -> list[int]:
        """The queues that this consumer reads, a part of `QUEUES`."""
        return list(range(self.number, QUEUES, self.consumers))


class ConsumerWire(Protocol):
    """The protocol of one kind of server for one connection of a consumer."""

    def __init__(self, share: Share) -> None: ...

    def open(self, sock: socket.socket) -> None:
        """Do the handshake, and create the group if the server has groups. ``sock`` still blocks. Raises LoadFailed,
        OSError.
        """

    def initial(self) -> bytes:
        """Return the first requests for messages."""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Read whole messages from ``data``. Returns the number of bytes read, without an incomplete rest, and the
        confirmations and new requests to send. Raises LoadFailed if the server refused a request.
        """
