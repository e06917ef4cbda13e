"""Filters of consumers besides tags."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sql", "sql"]


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages, evaluated by the broker."""

    expression: str


def sql(expression: str) -> Sql:
    """Receive the messages that satisfy an expression: ``sql("region = 'eu' AND amount > 100")``.

    For syntax and null values see ``docs/filters.md``. The consumer compiles it, and raises SubscriptionError with the
    position of a mistake.
    """
    return Sql(expression)
