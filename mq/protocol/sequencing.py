"""Sequence numbers, by which a producer marks its messages so that a repeated send stores nothing.

Two properties of ours, which any client can set: ``RAFTMQ_PRODUCER``, 1 to 64 characters that nobody else uses, and
``RAFTMQ_SEQUENCE``, a decimal number from 0 to 2**63 - 1 that is another one for each message of this producer,
whatever the topic. Both together count, and a producer id without a number is a property like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.protocol import properties as props

SEQUENCE_MARK: Final = f"{props.SEQUENCE}{props.NAME_END}".encode()
"""Properties without these bytes have no sequence number."""

PRODUCER_ID_LENGTH_MAX: Final = 64
SEQUENCE_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(SEQUENCE_MAX))


class SequenceId(NamedTuple):
    """Which message of which producer."""

    producer: str
    number: int


def sequence_id(properties: Mapping[str, str]) -> SequenceId | None:
    """What the properties of a message say it is; None if they do not, or what they say is not allowed."""
    producer, digits = properties.get(props.PRODUCER_ID, ""), properties.get(props.SEQUENCE, "")
    if not 1 <= len(producer) <= PRODUCER_ID_LENGTH_MAX or not 1 <= len(digits) <= _DIGITS_MAX:
        return None
    if not (digits.isascii() and digits.isdecimal()) or (number := int(digits)) > SEQUENCE_MAX:
        return None
    return SequenceId(producer, number)
