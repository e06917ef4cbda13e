"""A consumer's subscriptions and their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mq.client.body_codecs import BodyCodec
from mq.client.consume.policies import OnError
from mq.client.filters import Sql
from mq.filter.subscription import Subscription, parse_sql, parse_tags
from mq.protocol.bodies import SubscriptionData

__all__ = ["Subscribed", "subscription_of"]


def subscription_of(topic: str, tags: str | Sql) -> Subscription:
    """A subscription from the user's expression. Raises SubscriptionError."""
    if not isinstance(tags, str | Sql):
        raise TypeError(f"tags are one text, as 'a || b', or an expression, sql(...), not {tags!r}")
    return parse_sql(topic, tags.expression) if isinstance(tags, Sql) else parse_tags(topic, tags)


@dataclass(frozen=True, slots=True)
class Subscribed:
    """One topic of a consumer. `handler` takes a message, or with `batch` a list of at most that many.

    It has `timeout` seconds, None without a limit. `on_error` are its policies. `codec` None is that of the consumer.
    """

    subscription: Subscription
    sub_version: int
    handler: Callable[[Any], Awaitable[None]] | None
    batch: int | None
    timeout: float | None = None
    on_error: OnError = field(default_factory=dict)
    codec: BodyCodec[Any] | None = None

    def data(self) -> SubscriptionData:
        """In the format of heartbeats."""
        subscription = self.subscription
        return SubscriptionData(
            topic=subscription.topic,
            expression=subscription.expression,
            tags=tuple(sorted(subscription.tags)),
            codes=tuple(sorted(subscription.codes)),
            version=self.sub_version,
            expression_type=subscription.expression_type,
        )
