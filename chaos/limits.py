"""Draws limits between the smallest ones of tests and the usual ones, so that code beyond them runs often."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

LimitsT = TypeVar("LimitsT")


def draw(rng: random.Random, smallest: LimitsT, usual: LimitsT) -> LimitsT:
    """Draw limits: each is the smallest with probability 1/2, the usual one with 1/4, or else between both.

    Both must be dataclasses of one type, whose fields are numbers or dataclasses with such fields.
    """
    values: dict[str, Any] = {}
    for field in fields(usual):  # type: ignore[arg-type]
        low, high = getattr(smallest, field.name), getattr(usual, field.name)
        if is_dataclass(high):
            values[field.name] = draw(rng, low, high)
            continue
        number = rng.choice((low, low, high, _between(rng, low, high)))
        values[field.name] = number if isinstance(high, float) else int(number)
    return replace(usual, **values)  # type: ignore[type-var]


def _between(rng: random.Random, low: float, high: float) -> float:
    """Draw a number whose order of magnitude is as likely as any other, up to a hundred times the lower one."""
    most = min(high, max(100 * low, 100)) if high > low else high
    return low + (most - low) * rng.random() ** 3


@contextmanager
def override(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace ``name`` in a module by ``value`` until the end of the block."""
    before = vars(module)[name]
    vars(module)[name] = value
    try:
        yield
    finally:
        vars(module)[name] = before
