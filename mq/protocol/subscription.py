"""Tag expressions: ``*``, or tags separated by ``||``."""

from __future__ import annotations

from typing import Final

import msgspec

from mq.protocol.errors import ProtocolError
from mq.protocol.hashes import tag_code

ALL_TAGS: Final = "*"


class SubscriptionError(ProtocolError):
    """An expression that selects nothing can only be a mistake."""


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer group wants of a topic. ``tags`` and ``codes`` are empty when it wants everything."""

    topic: str
    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    @property
    def all_tags(self) -> bool:
        """Whether every message is wanted, with and without tags."""
        return not self.tags

    def matches_code(self, code: int) -> bool:
        """Whether a message with this tag code may be wanted: two tags can have the same code."""
        return not self.codes or code in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Whether a message with this TAGS value, or without one, is wanted."""
        return not self.tags or tag in self.tags


def parse_tags(topic: str, expression: str) -> Subscription:
    """Read a tag expression; an empty one means everything. Raises SubscriptionError."""
    text = expression.strip()
    if text in ("", ALL_TAGS):
        return Subscription(topic, ALL_TAGS, frozenset(), frozenset())
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip()))
    if not tags:
        raise SubscriptionError(f"the expression {expression!r} for topic {topic} names no tag")
    return Subscription(topic, expression, tags, frozenset(map(tag_code, tags)))
