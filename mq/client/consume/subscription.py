"""A consumer's subscriptions and their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mq.client.body_codecs import BodyCodec
from mq.client.consume.policies import OnError
from mq.client.filters import BodyFilter, Filter, Sql, WasmFilter
from mq.filter.programs import ProgramInvalid, name_of
from mq.filter.sql import BodySqlFilter
from mq.filter.sql_syntax import SqlError
from mq.filter.subscription import (
    ALL_TAGS,
    FilterProgram,
    Subscription,
    SubscriptionError,
    filtered_by,
    parse_sql,
    parse_tags,
)
from mq.protocol.requests.clients import SubscriptionData


def subscription_of(topic: str, tags: str | Filter, filter_: Filter | None = None) -> Subscription:
    """Build a subscription from the application's tags and filter. Raises SubscriptionError."""
    if filter_ is not None and tags != ALL_TAGS:
        if isinstance(filter_, Sql):
            raise SubscriptionError(f"tags {tags!r} and SQL92 for topic {topic}: write TAGS IN ('a', 'b') in the SQL92")
        if isinstance(tags, str) and isinstance(filter_, WasmFilter | BodyFilter):
            return filtered_by(topic, _program(topic, filter_), tags)
    match tags if filter_ is None else filter_:
        case str():
            return parse_tags(topic, str(tags))
        case Sql() as sql:
            return parse_sql(topic, sql.expression)
        case WasmFilter() | BodyFilter() as program:
            return filtered_by(topic, _program(topic, program))
        case _:
            raise TypeError(
                "tags are one text, as 'a || b', or an expression, sql(...), WasmFilter(...) or BodyFilter(...), "
                f"not {tags!r}"
            )


def _program(topic: str, filter_: WasmFilter | BodyFilter) -> FilterProgram:
    try:
        if isinstance(filter_, WasmFilter):
            if not isinstance(filter_.module, bytes | bytearray | memoryview):
                raise TypeError(
                    f"a WebAssembly module is bytes, as from Path(...).read_bytes(), not {filter_.module!r}"
                )
            content = bytes(filter_.module)
            if filter_.on_error not in ("pass", "skip"):
                raise ValueError(f"on_error is {filter_.on_error!r}; allowed: 'pass' and 'skip'")
            if not content.startswith(b"\0asm"):
                raise ProgramInvalid("these bytes are not a WebAssembly module")
            return FilterProgram(name_of("wasm", content, filter_.on_error), content)
        BodySqlFilter(filter_.expression)
        content = filter_.expression.encode()
        return FilterProgram(name_of("sql", content), content)
    except SqlError as error:
        raise SubscriptionError(f"the expression for topic {topic} is wrong at {error}") from error
    except ProgramInvalid as error:
        raise SubscriptionError(f"the filter for topic {topic}: {error}") from error


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """One topic of a consumer. `handler` takes a message, or with `batch` a list of at most that many.

    It has `timeout` seconds, None without a limit. `on_error` are its policies. `codec` None is the consumer's.
    """

    subscription: Subscription
    sub_version: int
    handler: Callable[[Any], Awaitable[None]] | None
    batch: int | None
    timeout: float | None = None
    on_error: OnError = field(default_factory=dict)
    codec: BodyCodec[Any] | None = None

    def data(self) -> SubscriptionData:
        """Convert the subscription to its form in heartbeats."""
        subscription = self.subscription
        return SubscriptionData(
            topic=subscription.topic,
            expression=subscription.expression,
            tags=tuple(sorted(subscription.tags)),
            codes=tuple(sorted(subscription.codes)),
            version=self.sub_version,
            expression_type=subscription.expression_type,
        )
