"""Attributes of topics and consumer groups that concern lite topics, as RocketMQ names them.

A topic with the message type LITE is the *parent* of any number of lite topics, which come into being with their first
message. A consumer group reads lite topics of the one parent that it is bound to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.protocol.errors import ProtocolError
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE

LITE: Final = "LITE"
EXPIRATION: Final = "lite.topic.expiration"
EXPIRATION_MINUTES_MAX: Final = 30 * 24 * 60
BIND_TOPIC: Final = "lite.bind.topic"
MODEL: Final = "lite.sub.model"
SHARED: Final = "Shared"
EXCLUSIVE: Final = "Exclusive"
RESET_ON_EVICTION: Final = "lite.sub.reset.offset.exclusive"
RESET_ON_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
CLIENT_QUOTA: Final = "lite.sub.client.quota"
CLIENT_QUOTA_DEFAULT: Final = 2000
CLIENT_EVENTS: Final = "lite.sub.client.max.event.cnt"
CLIENT_EVENTS_MIN: Final = 10
WILDCARD: Final = "lite.sub.wildcard"

_NUMBER_MAX: Final = 2**63 - 1
_BOOLEANS: Final = {"true": True, "false": False}


class AttributeInvalid(ProtocolError):
    """An attribute has a value that is not allowed. The text names attribute and value."""


class LiteGroup(NamedTuple):
    """The parsed attributes of a consumer group that concern lite topics."""

    parent: str
    """The topic whose lite topics the group reads; empty for a group that reads none."""
    exclusive: bool
    """A lite topic has one subscriber: a new one ends the subscription of the former one."""
    wildcard: bool
    """The clients of the group read all lite topics of the parent."""
    quota: int
    """The number of lite topics that a client may subscribe to."""
    reset_on_eviction: bool
    reset_on_unsubscribe: bool
    """The group begins a lite topic again when its subscriber is evicted, or unsubscribes."""


def is_lite(attributes: Mapping[str, str]) -> bool:
    """Whether a topic with these attributes is the parent of lite topics."""
    return attributes.get(MESSAGE_TYPE_ATTRIBUTE, "").upper() == LITE


def check_topic_attributes(attributes: Mapping[str, str]) -> None:
    """Raise AttributeInvalid for an invalid expiration, or for one of a topic that has no lite topics."""
    text = attributes.get(EXPIRATION)
    if text is None:
        return
    if not is_lite(attributes):
        raise AttributeInvalid(f"{EXPIRATION} is for topics with {MESSAGE_TYPE_ATTRIBUTE}={LITE}")
    _parse_int(EXPIRATION, text, -1, EXPIRATION_MINUTES_MAX)


def expiration_ms(attributes: Mapping[str, str]) -> int | None:
    """Return how many ms after its last message a lite topic expires; None for never.

    0 is none as well: a lite topic would end with its first message.
    """
    minutes = int(attributes.get(EXPIRATION, -1))
    return minutes * 60_000 if minutes > 0 else None


def lite_group(attributes: Mapping[str, str]) -> LiteGroup:
    """Parse the attributes of a group. Raises AttributeInvalid for values that are not allowed."""
    model = attributes.get(MODEL, SHARED)
    if model not in (SHARED, EXCLUSIVE):
        raise AttributeInvalid(f"{MODEL} is {model[:40]!r}; allowed: {SHARED} and {EXCLUSIVE}")
    quota = _parse_int(CLIENT_QUOTA, attributes.get(CLIENT_QUOTA, str(CLIENT_QUOTA_DEFAULT)), -1, _NUMBER_MAX)
    if (events := attributes.get(CLIENT_EVENTS)) is not None:
        # RocketMQ limits how much news it notes for a client. Here that is never more than the client's subscriptions.
        _parse_int(CLIENT_EVENTS, events, CLIENT_EVENTS_MIN, _NUMBER_MAX)
    parent = attributes.get(BIND_TOPIC, "")
    # Tools set it to any text.
    wildcard = attributes.get(WILDCARD, "false").lower() != "false"
    if not parent and attributes.keys() & {MODEL, CLIENT_QUOTA, CLIENT_EVENTS, WILDCARD}:
        raise AttributeInvalid(f"{BIND_TOPIC} is missing: it names the topic whose lite topics the group reads")
    if wildcard and model == EXCLUSIVE:
        raise AttributeInvalid(f"{MODEL} is {EXCLUSIVE} and {WILDCARD} is on: all clients would evict each other")
    return LiteGroup(
        parent=parent,
        exclusive=model == EXCLUSIVE,
        wildcard=wildcard,
        quota=quota if quota >= 0 else _NUMBER_MAX,
        reset_on_eviction=_boolean(RESET_ON_EVICTION, attributes),
        reset_on_unsubscribe=_boolean(RESET_ON_UNSUBSCRIBE, attributes),
    )


def _boolean(name: str, attributes: Mapping[str, str]) -> bool:
    text = attributes.get(name, "false").lower()
    if text not in _BOOLEANS:
        raise AttributeInvalid(f"{name} is {text[:40]!r}; allowed: true and false")
    return _BOOLEANS[text]


def _parse_int(name: str, text: str, low: int, high: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or not low <= int(text) <= high:
        raise AttributeInvalid(f"{name} is {text[:40]!r}; allowed: {low} to {high}")
    return int(text)
