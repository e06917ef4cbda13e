"""The filters that a consumer can use instead of tags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from mq.filter.programs import OnError


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages, evaluated by the broker."""

    expression: str


@dataclass(frozen=True, slots=True)
class WasmFilter:
    """A WebAssembly module that a filter server runs on each message, see ``docs/filters.md``.

    The consumer uploads it. A message for which it fails is delivered, or with `on_error="skip"` it is not.
    """

    module: bytes = field(repr=False)
    on_error: OnError = "pass"


@dataclass(frozen=True, slots=True)
class BodyFilter:
    """An SQL92 expression that can read JSON bodies, evaluated by a filter server: ``BodyFilter("region = 'eu' AND
    BODY('$.order.amount') > 100")``.
    """

    expression: str


Filter: TypeAlias = Sql | WasmFilter | BodyFilter


def sql(expression: str) -> Sql:
    """Receive the messages that satisfy an expression: ``sql("region = 'eu' AND amount > 100")``.

    For syntax and null values see ``docs/filters.md``. The consumer compiles it, and raises SubscriptionError with the
    position of a mistake.
    """
    return Sql(expression)
