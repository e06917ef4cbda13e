"""Sequence numbers of a producer's messages, by which brokers deduplicate repeated sends.

Two properties of ours, which any client can set: ``RAFTMQ_PRODUCER``, a unique id of 1 to 64 characters, and
``RAFTMQ_SEQUENCE``, a decimal number from 0 to 2**63 - 1 that differs for each message of this producer, across topics.
Both are required, and a producer id without a number has no effect. An id that begins with ``~`` was generated for one
process: brokers forget it before any other.

A batch has them in its own properties: the number belongs to its first message, and the others count up from it. In the
log, the first record has the range for all of them, as ``RAFTMQ_SEQUENCE`` of the form ``500-1499``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.protocol import properties as props

SEQUENCE_MARK: Final = f"{props.SEQUENCE}{props.NAME_END}".encode()
"""Properties without these bytes have no sequence number."""

PRODUCER_ID_LENGTH_MAX: Final = 64
GENERATED_MARK: Final = "~"
"""The beginning of generated producer ids."""
SEQUENCE_MAX: Final = 2**63 - 1
RANGE_MAX: Final = 2**32
"""Limit on the length of a range: no batch comes near it, and tables have no room for more."""
_DIGITS_MAX: Final = len(str(SEQUENCE_MAX))


class SequenceRange(NamedTuple):
    """The sequence numbers of a producer's messages from ``first`` to ``last``, both inclusive."""

    producer: str
    first: int
    last: int

    @property
    def message_count(self) -> int:
        """The number of messages in the range."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        if self.first == self.last:
            return f"message {self.first} of producer {self.producer!r}"
        return f"messages {self.first} to {self.last} of producer {self.producer!r}"


def is_generated(producer: str) -> bool:
    """Whether the client generated this producer id for one process."""
    return producer.startswith(GENERATED_MARK)


def sent_range(properties: Mapping[str, str], count: int = 1) -> SequenceRange | None:
    """Read the sequence numbers of a sent message, or of a batch of ``count`` messages, from its properties.

    Returns None if the numbers are missing or invalid.
    """
    producer, first = properties.get(props.PRODUCER_ID, ""), _parse_int(properties.get(props.SEQUENCE, ""))
    if first is None or first + count - 1 > SEQUENCE_MAX or not 1 <= len(producer) <= PRODUCER_ID_LENGTH_MAX:
        return None
    return SequenceRange(producer, first, first + count - 1)


def stored_range(properties: Mapping[str, str]) -> SequenceRange | None:
    """Return the sequence numbers in the properties of a range's first record; None if missing or invalid."""
    low, dash, high = properties.get(props.SEQUENCE, "").partition("-")
    first = sent_range({**properties, props.SEQUENCE: low})
    if first is None or not dash:
        return first
    last = _parse_int(high)
    # A client may write this into a message to a retry topic that looks like a copy.
    return first._replace(last=last) if last is not None and 0 < last - first.first < RANGE_MAX else None


def range_properties(numbers: SequenceRange) -> dict[str, str]:
    """Return the properties that announce these sequence numbers in their first record."""
    text = str(numbers.first) if numbers.first == numbers.last else f"{numbers.first}-{numbers.last}"
    return {props.PRODUCER_ID: numbers.producer, props.SEQUENCE: text}


def _parse_int(digits: str) -> int | None:
    if not 1 <= len(digits) <= _DIGITS_MAX or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if number <= SEQUENCE_MAX else None
