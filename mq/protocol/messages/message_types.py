"""The types of messages that a topic accepts, and the priorities of messages. Pure.

A priority is a number from 0 on in the property `PRIORITY`; each queue of a topic has the messages of one level:
messages of priority 0 are in queue 0, and messages of the last level and above in the last queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mq.protocol import properties as props
from mq.protocol.errors import ProtocolError
from mq.protocol.wire.fields import INT32_MAX

MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
"""The attribute of a topic that says which messages gRPC clients may send."""
PRIORITY: Final = "PRIORITY"
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
"""Message types that a topic may have."""
TYPES_STORED: Final = frozenset((*MESSAGE_TYPES, "UNSPECIFIED"))
"""The values that brokers accept as the attribute: RocketMQ's tools may ask for more than `MESSAGE_TYPES`."""

PRIORITY_FACTOR: Final = "priority.factor"
"""The attribute of a group: how many of a hundred pops get the most urgent messages first."""
FACTOR_MAX: Final = 100

PRIORITY_MARK: Final = f"{props.PRIORITY}{props.NAME_END}"
"""The beginning of the property, in encoded properties."""
LITE_TOPIC: Final = props.LITE_TOPIC

_NUMBER: Final = re.compile(r"[0-9]+")
_DIGITS_MAX: Final = 10
_EXCLUDED: Final = {
    props.SHARDING_KEY: "a sharding key (message group)",
    props.DELAY: "a delay",
    **dict.fromkeys(props.TIMER_PROPERTIES, "a delay"),
    LITE_TOPIC: "a lite topic",
}


class PriorityInvalid(ProtocolError):
    """The priority of a message is not valid."""


def parse_priority(text: str) -> int:
    """Parse a priority from 0 to 2147483647. Raises PriorityInvalid."""
    number = int(text) if _NUMBER.fullmatch(text) and len(text) <= _DIGITS_MAX else INT32_MAX + 1
    if number > INT32_MAX:
        raise PriorityInvalid(f"the priority {text[:40]!r} is not a number from 0 to {INT32_MAX}")
    return number


def priority_of(properties: Mapping[str, str]) -> int | None:
    """Return the priority of a message that is to be sent; None if it has none.

    Raises PriorityInvalid for an invalid one, and for a message that also has a sharding key, a delay or a lite topic:
    each of these chooses the queue in another way.
    """
    text = properties.get(props.PRIORITY)
    if text is None:
        return None
    priority = parse_priority(text)
    for name, what in _EXCLUDED.items():
        if name in properties and not (name == props.DELAY and properties[name].strip() == "0"):
            raise PriorityInvalid(f"a message with a priority cannot have {what}, too")
    return priority


def stored_priority(properties: Mapping[str, str]) -> int | None:
    """Return the priority of a stored message; None if it has none, or one that brokers no longer accept."""
    try:
        text = properties.get(props.PRIORITY)
        return None if text is None else parse_priority(text)
    except PriorityInvalid:
        return None


def level_of(priority: int, queues: int) -> int:
    """Return the queue id for a priority, in a topic with ``queues`` writable queues (at least 1)."""
    return min(priority, queues - 1)


def lowest_level(queues: int, *, ascending: bool) -> int:
    """Return the queue id of the least urgent messages, which also gets those without a priority. ``ascending``: a
    larger priority is more urgent.
    """
    return 0 if ascending else queues - 1


def takes_priorities(attributes: Mapping[str, str]) -> bool:
    """Whether a topic with these attributes is for messages with priorities."""
    return attributes.get(MESSAGE_TYPE_ATTRIBUTE) == PRIORITY


def is_factor(text: str) -> bool:
    """Whether ``text`` is a valid priority factor of a group."""
    return _NUMBER.fullmatch(text) is not None and len(text) <= 3 and int(text) <= FACTOR_MAX


def factor_of(attributes: Mapping[str, str]) -> int:
    """Return how many of a hundred pops of a group with these attributes get the most urgent messages first."""
    text = attributes.get(PRIORITY_FACTOR, "")
    return int(text) if is_factor(text) else FACTOR_MAX
