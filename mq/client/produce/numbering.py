"""Numbers the messages of a producer, so that brokers store each message once, however often it is sent.

Theory of operation. A number is given once, when a message or a batch goes to the `SendPipeline`; all attempts have it.
A broker group knows its own numbers only, so once a group may have a message, it gets all further attempts. It
remembers the last `REMEMBERED_SENDS` sends of a producer. So that it still knows a message when that is sent again, no
more sends than that may begin while the outcome of one is unknown (`SendPipeline.span`).

A producer without a name gets a new one each time it is opened; brokers see that nobody has chosen it. One with a name
begins above all numbers that it, or an earlier process, has used: at the microseconds of the clock, since nobody sends
a million messages in a second.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence

import msgspec

from mq.client.errors import MessageRefused
from mq.client.message import Message
from mq.client.produce.outgoing_message import OutgoingMessage
from mq.protocol import properties as props
from mq.protocol.messages.sequencing import (
    GENERATED_MARK,
    PRODUCER_ID_LENGTH_MAX,
    SEQUENCE_MAX,
    SequenceRange,
    is_generated,
    range_properties,
)
from mq.protocol.requests.send import SENT_ALREADY_STORED, SENT_UNIQUE_KEY

REMEMBERED_SENDS = 1024
"""The number of sends of a producer that every broker remembers at least."""
_FIRST_MAX = 2**62
"""The limit of first numbers, so that no producer reaches the last number, 2**63 - 1."""
_FORGOTTEN = "SEQUENCE_FORGOTTEN"
"""The begin of the remark of a broker that does not know whether it has stored a number."""

_ELSEWHERE = "a sequence number is used for one message only"
"""The remark about a number of a message in another topic."""


def numbering_of(numbered: bool | str, first_number: int | None, in_flight_max: int) -> Numbering | None:
    """Return the numbering that a producer's options ask for; None without one. Raises ValueError and TypeError."""
    if numbered is False:
        if first_number is not None:
            raise ValueError(f"first_number={first_number} needs numbered=True or a producer id")
        return None
    if numbered is not True and not isinstance(numbered, str):
        raise TypeError(f"numbered is True, False or a producer id, not {numbered!r}")
    if in_flight_max > REMEMBERED_SENDS:
        raise ValueError(
            f"in_flight_max is {in_flight_max}; maximum for numbered messages: {REMEMBERED_SENDS}, the number of sends "
            "that brokers remember of a producer"
        )
    if first_number is not None and not 0 <= first_number <= _FIRST_MAX:
        raise ValueError(f"first_number is {first_number}; allowed: 0 to 2**62")
    producer_id = None if numbered is True else numbered
    if producer_id is not None and not (
        1 <= len(producer_id) <= PRODUCER_ID_LENGTH_MAX and producer_id.isprintable() and producer_id.strip()
    ):
        raise ValueError(
            f"the producer id {producer_id[: PRODUCER_ID_LENGTH_MAX + 1]!r} must have 1 to {PRODUCER_ID_LENGTH_MAX} "
            "printable characters"
        )
    if producer_id is not None and is_generated(producer_id):
        raise ValueError(
            f"the producer id {producer_id!r} begins with {GENERATED_MARK!r}, which is reserved for generated ids: "
            "brokers forget those early. Choose another one, or use numbered=True"
        )
    return Numbering(producer_id, first_number)


class Numbering:
    """Numbers the messages of one producer. Call `begin` each time it is opened.

    Attributes:
        producer_id: of its messages; empty before it is opened, if it has no name.
    """

    def __init__(self, producer_id: str | None, first: int | None) -> None:
        self.producer_id = producer_id or ""
        self._has_name = producer_id is not None
        self._first = first
        self._next = 0
        self._made_in = os.getpid()

    def begin(self, rng: random.Random) -> None:
        """Start a new series of numbers.

        Raises ValueError for a named producer in a forked process: the name belongs to the process that made it.
        """
        if not self._has_name:
            self.producer_id = f"{GENERATED_MARK}{rng.getrandbits(80):020x}"
            self._next = self._first or 0
            return
        if self._made_in != os.getpid():
            raise ValueError(
                f"the producer id {self.producer_id!r} belongs to process {self._made_in}, which made this producer: "
                "make a producer in each process, with a different id, or use numbered=True"
            )
        self._next = max(self._next, time.time_ns() // 1000 if self._first is None else self._first)

    @property
    def bytes_max(self) -> int:
        """The most bytes that a number adds to the properties of a stored message."""
        widest = SequenceRange(self.producer_id, SEQUENCE_MAX - 1, SEQUENCE_MAX)
        return len(props.encode(range_properties(widest)).encode())

    def room_for(self, properties: Mapping[str, str]) -> int:
        """Return the bytes that a number adds to these properties. Raises MessageRefused for half of a number."""
        has_number, has_producer = props.SEQUENCE in properties, props.PRODUCER_ID in properties
        if has_number != has_producer:
            present, missing = props.SEQUENCE, props.PRODUCER_ID
            if has_producer:
                present, missing = missing, present
            raise MessageRefused(
                f"the properties have {present} without {missing}: set both, or leave both to the producer"
            )
        return 0 if has_number else self.bytes_max

    def room_in_batch(self, messages: Sequence[Message], properties: Mapping[str, str]) -> int:
        """Return the bytes that a number adds to each message of a batch with these properties."""
        if any(props.SEQUENCE in message.properties for message in messages):
            raise MessageRefused(
                f"a message of a batch has a {props.SEQUENCE}: set it in the properties of the batch, as the number of "
                "its first message"
            )
        return self.room_for(properties)

    def number(self, message: OutgoingMessage, count: int = 1) -> OutgoingMessage:
        """Give a message, or a batch of `count` messages, the next numbers, unless it has its own."""
        if message.is_numbered:
            return message
        first = self._next
        assert first + count <= SEQUENCE_MAX, f"{count} numbers from {first} on"
        self._next = first + count
        own = f"{props.PRODUCER_ID}\x01{self.producer_id}\x02{props.SEQUENCE}\x01{first}\x02"
        return msgspec.structs.replace(
            message,
            properties=message.properties + own,
            is_numbered=True,
            numbers=SequenceRange(self.producer_id, first, first + count - 1),
        )


def is_number_refused(message: OutgoingMessage, remark: str | None) -> bool:
    """Return whether a broker refused our number: too old to be remembered, or used by a message elsewhere."""
    remark = remark or ""
    return message.numbers is not None and (remark.startswith(_FORGOTTEN) or _ELSEWHERE in remark)


def misuse_of(message: OutgoingMessage, response: Mapping[str, str]) -> str | None:
    """Describe a sign that another producer uses the same numbers, in the answer to a stored message; else None."""
    numbers = message.numbers
    if numbers is None:
        return None
    stored_count = response.get(SENT_ALREADY_STORED, "0")
    if stored_count.isdecimal() and 0 < int(stored_count) < numbers.message_count:
        return f"{stored_count} of {numbers} were stored before"
    key = response.get(SENT_UNIQUE_KEY) or message.unique_key
    return None if key == message.unique_key else f"{numbers} was stored before, with message id {key[:64]}"
