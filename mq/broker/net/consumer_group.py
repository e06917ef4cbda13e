"""A consumer group with its members and subscriptions, as its members' heartbeats describe it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from mq.broker.net.heartbeat_limits import HeartbeatInvalid
from mq.filter.subscription import SQL92, TAG, Subscription, SubscriptionError, parse_subscription
from mq.protocol.names import RETRY_PREFIX
from mq.protocol.requests.clients import SubscriptionData

BROADCASTING = "BROADCASTING"

ConnectionT = TypeVar("ConnectionT", bound=Hashable)

Lengths = tuple[int, int]
"""Total characters of all expressions, and of those in SQL92."""

_SUMMARY_LENGTH_MAX: Final = 300


class SubscriptionSummary(NamedTuple):
    """Summarizes the subscriptions in a member's last heartbeat. The group's are those of the latest of all.

    ``text`` is for people, and bounded; two members that subscribe to the same have equal texts. ``mark`` stands for
    the subscriptions in this process.
    """

    mark: int
    text: str


@dataclass(slots=True)
class Member:
    """A member of one group."""

    client_id: str
    language: str | None
    version: int
    last_heartbeat: float
    """Monotonic seconds."""
    asked_at: float | None = None
    """The time of the last query of its subscriptions since that heartbeat, in monotonic seconds."""
    summary: SubscriptionSummary | None = None
    """The subscriptions of a consumer."""


class GroupSubscription(msgspec.Struct, frozen=True, gc=False):
    """A group's subscription to a topic. For an invalid expression, ``tag_filter`` is None and ``fault`` says why.

    There may be hundreds of thousands of them: see `mq.protocol.requests.clients.SubscriptionData`.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    tag_filter: Subscription | None
    fault: str = ""

    def is_wanted_by(self, data: SubscriptionData) -> bool:
        """Return whether the subscription equals the one in a heartbeat, which then needs no validation."""
        return (
            self.expression == data.expression
            and self.expression_type == (data.expression_type or TAG)
            and self.version == data.version
        )


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionT]):
    """The members and subscriptions of a consumer group. Subscriptions are those of the latest heartbeat."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[ConnectionT, Member] = field(default_factory=dict)
    subscriptions: dict[str, GroupSubscription] = field(default_factory=dict)
    lengths: Lengths = (0, 0)
    """The lengths of the expressions in ``subscriptions``."""
    list_body: bytes | None = None
    """`ClientRegistry.consumer_list`; None after a change of ``members``."""
    summary: SubscriptionSummary | None = None
    """That of the last heartbeat: members that agree share it."""
    is_divided: bool | None = None
    """The cached result of `differ`; None after a change of members or of a member's subscriptions."""

    def client_ids(self) -> list[str]:
        """Return the members' distinct ids, sorted. A client that reconnects may be registered twice for a while."""
        return sorted({member.client_id for member in self.members.values()})

    def differ(self) -> bool:
        """Return whether members have different subscriptions, computed once per change."""
        if self.is_divided is None:
            summaries = [member.summary for member in self.members.values() if member.summary is not None]
            texts = {id(summary): summary.text for summary in summaries}
            self.is_divided = len({*texts.values()}) > 1
        return self.is_divided

    def has(self, client_id: str, connection: ConnectionT) -> bool:
        """Return whether a client is a member. If ``connection`` has a member, only that one is compared."""
        member = self.members.get(connection)
        if member is not None:
            return member.client_id == client_id
        return any(each.client_id == client_id for each in self.members.values())


def summary_text(rows: Iterable[tuple[str, str, str]]) -> str:
    """Describe subscriptions as sorted text, such as ``Orders paid || sent, Prices *``, whatever the order of tags. A
    long text is cut, and ends with a checksum of all of it.
    """
    parts = sorted(
        f"{topic} {_normal(expression, kind)}" for topic, expression, kind in rows if not topic.startswith(RETRY_PREFIX)
    )
    text = ", ".join(parts)
    if len(text) <= _SUMMARY_LENGTH_MAX:
        return text
    mark = crc32(text.encode(errors="backslashreplace"))
    return f"{text[:_SUMMARY_LENGTH_MAX]}... ({len(parts)} in all, checksum {mark:08x})"


def _normal(expression: str, kind: str) -> str:
    if kind not in ("", TAG):
        return f"{kind} {expression}"
    return " || ".join(sorted({tag.strip() for tag in expression.split("||")} - {""})) or "*"


def summary_of(subscriptions: Iterable[GroupSubscription], *others: SubscriptionSummary | None) -> SubscriptionSummary:
    """Summarize the subscriptions of a heartbeat. Returns an equal summary of ``others``, if there is one."""
    rows = {(each.topic, each.expression, each.expression_type) for each in subscriptions}
    mark = hash(frozenset(rows))
    for summary in others:
        if summary is not None and summary.mark == mark:
            return summary
    return SubscriptionSummary(mark, summary_text(rows))


def lengths_of(subscriptions: Iterable[SubscriptionData | GroupSubscription]) -> Lengths:
    """Return the characters of all expressions of these subscriptions, and of the SQL expressions."""
    in_all = in_sql = 0
    for each in subscriptions:
        in_all += len(each.expression)
        if each.expression_type == SQL92:
            in_sql += len(each.expression)
    return in_all, in_sql


def parse_group_subscription(data: SubscriptionData) -> GroupSubscription:
    """Parse a subscription of a heartbeat. Raises HeartbeatInvalid for invalid tags, and stores other faults."""
    expression_type = data.expression_type or TAG
    tag_filter: Subscription | None = None
    fault = ""
    try:
        tag_filter = parse_subscription(data.topic, data.expression, expression_type)
    except SubscriptionError as error:
        if expression_type == TAG:
            raise HeartbeatInvalid(str(error)) from error
        fault = str(error)
    return GroupSubscription(data.topic, data.expression, expression_type, data.version, tag_filter, fault)
