"""The subscription of a consumer group to a topic: ``*``, tags separated by ``||``, or an SQL92 expression."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from mq.filter.programs import ProgramName
from mq.filter.sql import SqlFilter
from mq.filter.sql_syntax import SqlError
from mq.protocol.errors import ProtocolError
from mq.protocol.hashes import tag_code
from mq.protocol.names import RETRY_PREFIX

ALL_TAGS: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"

_REMEMBERED_LENGTH_MAX: Final = 4096
_TAG_BYTES: Final = 200
"""Memory of a tag and its code, each in a set."""
_SQL_BYTES: Final = 80
"""Memory per character of an SQL92 expression, in the worst case."""


class SubscriptionError(ProtocolError):
    """The expression is invalid, or selects nothing, which must be a mistake."""


class FilterProgram(NamedTuple):
    """The filter program of a subscription, which filter servers run."""

    name: ProgramName
    content: bytes


_NONE: Final[frozenset[Any]] = frozenset()


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a topic. ``tags`` and ``codes`` are empty if it selects all tags.

    With ``sql`` tags are ignored, and a message matches if its properties satisfy it. With ``program`` a filter server
    has filtered the messages with these tags already.
    """

    topic: str
    expression: str
    tags: frozenset[str]
    codes: frozenset[int]
    sql: SqlFilter | None = None
    program: FilterProgram | None = None

    @property
    def all_tags(self) -> bool:
        """Whether messages match regardless of tags."""
        return not self.tags

    @property
    def expression_type(self) -> str:
        """The type of the expression, as on the wire."""
        return TAG if self.sql is None else SQL92

    @property
    def parsed_bytes(self) -> int:
        """The approximate memory of the parsed expression, in bytes."""
        return _TAG_BYTES * len(self.tags) if self.sql is None else _SQL_BYTES * len(self.expression)

    def matches_code(self, code: int) -> bool:
        """Whether a message with this tag code may match: two tags can have the same code."""
        return not self.codes or code in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Whether a message with this TAGS value, or without one, may match."""
        return not self.tags or tag in self.tags


def parse_tags(topic: str, expression: str) -> Subscription:
    """Parse a tag expression; an empty one selects everything. Raises SubscriptionError.

    All messages of a retry topic match: they were filtered before, possibly by other tags.
    """
    text = expression.strip()
    if text in ("", ALL_TAGS):
        return Subscription(topic, ALL_TAGS, _NONE, _NONE)
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip()))
    if not tags:
        raise SubscriptionError(f"the expression {expression!r} for topic {topic} names no tag")
    if topic.startswith(RETRY_PREFIX):
        return Subscription(topic, expression, _NONE, _NONE)
    return Subscription(topic, expression, tags, frozenset(map(tag_code, tags)))


def filtered_by(topic: str, program: FilterProgram, tags: str = ALL_TAGS) -> Subscription:
    """Subscribe to the messages with these tags that a program accepts, or to all messages of a retry topic.

    Raises SubscriptionError.
    """
    subscription = parse_tags(topic, tags)
    return subscription if topic.startswith(RETRY_PREFIX) else msgspec.structs.replace(subscription, program=program)


def parse_sql(topic: str, expression: str) -> Subscription:
    """Parse an SQL92 expression, which must not be empty. Raises SubscriptionError with the position."""
    parse: Callable[[str], SqlFilter]
    parse = _short if len(expression) <= _REMEMBERED_LENGTH_MAX else _long
    try:
        sql = parse(expression)
    except SqlError as error:
        raise SubscriptionError(f"the expression for topic {topic} is wrong at {error}") from error
    return Subscription(topic, expression, _NONE, _NONE, None if topic.startswith(RETRY_PREFIX) else sql)


# Every heartbeat, and from some clients every pull, repeats its expressions. Limits on length and number bound these
# caches to some 50 MB in the worst case.
_short: Final = lru_cache(maxsize=128)(SqlFilter)
_long: Final = lru_cache(maxsize=8)(SqlFilter)


def parse_subscription(topic: str, expression: str, expression_type: str | None) -> Subscription:
    """Parse an expression of either type; None and the empty text mean tags. Raises SubscriptionError."""
    if expression_type == SQL92:
        return parse_sql(topic, expression)
    if expression_type in (None, "", TAG):
        return parse_tags(topic, expression)
    raise SubscriptionError(f"the expression for topic {topic} is of type {expression_type[:64]!r}; known: TAG, SQL92")
