"""What a consumer may ask for besides tags."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sql", "sql"]


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages, evaluated by the broker."""

    expression: str


def sql(expression: str) -> Sql:
    """Receive the messages that satisfy an expression: ``sql("region = 'eu' AND amount > 100")``.

    What is allowed in it and what is null is in ``docs/filters.md``. Where it is given to a consumer, it is compiled,
    so that a wrong one raises SubscriptionError with the position there.
    """
    return Sql(expression)
