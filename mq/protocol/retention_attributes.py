"""The attribute of a topic that says for how long its messages are kept, as RocketMQ names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.protocol.lite_attributes import EXPIRATION, AttributeRefused, is_lite

RESERVE_TIME: Final = "reserve.time"
"""In whole hours; -1 for as long as the broker keeps its log."""


def reserve_hours(attributes: Mapping[str, str]) -> int | None:
    """For how many hours messages of a topic with these attributes are kept; None for as long as the broker keeps its
    log, and for a text that is no such number: earlier releases stored any.
    """
    text = attributes.get(RESERVE_TIME, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) == 0:
        return None
    return int(text)


def check_reserve_time(attributes: Mapping[str, str], hours_max: float) -> None:
    """Raises AttributeRefused unless messages of a topic with these attributes can be kept for so long.

    ``hours_max`` is for how long the broker keeps its log.
    """
    text = attributes.get(RESERVE_TIME)
    if text in (None, "-1"):
        return
    if is_lite(attributes):
        raise AttributeRefused(f"{RESERVE_TIME} is not for topics with lite topics: these have {EXPIRATION}")
    hours = reserve_hours(attributes)
    if hours is None:
        raise AttributeRefused(f"{RESERVE_TIME} is {text[:40]!r}; allowed: whole hours from 1 on, and -1")
    if hours > hours_max:
        raise AttributeRefused(
            f"{RESERVE_TIME} is {hours} hours, and the broker keeps its log, which all topics share, for "
            f"{hours_max:g}: raise its setting retention_hours first"
        )
