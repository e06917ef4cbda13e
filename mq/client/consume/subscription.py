"""What a consumer has subscribed to, and what is to be done with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mq.client.filters import Sql
from mq.filter.subscription import Subscription, parse_sql, parse_tags
from mq.protocol.bodies import SubscriptionData

__all__ = ["Subscribed", "subscription_of"]


def subscription_of(topic: str, tags: str | Sql) -> Subscription:
    """What users write, compiled. Raises SubscriptionError."""
    if not isinstance(tags, str | Sql):
        raise TypeError(f"tags are one text, as 'a || b', or an expression, sql(...), not {tags!r}")
    return parse_sql(topic, tags.expression) if isinstance(tags, Sql) else parse_tags(topic, tags)


@dataclass(frozen=True, slots=True)
class Subscribed:
    """One topic of a consumer. `handler` takes a message, or with `batch` a list of up to so many."""

    subscription: Subscription
    sub_version: int
    handler: Callable[[Any], Awaitable[None]] | None
    batch: int | None

    def data(self) -> SubscriptionData:
        """As brokers are told."""
        subscription = self.subscription
        return SubscriptionData(
            topic=subscription.topic,
            expression=subscription.expression,
            tags=tuple(sorted(subscription.tags)),
            codes=tuple(sorted(subscription.codes)),
            version=self.sub_version,
            expression_type=subscription.expression_type,
        )
