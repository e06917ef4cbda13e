"""Attributes that limit how long, or how many bytes of, a topic's messages are kept. RocketMQ has the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.protocol.requests.lite_attributes import EXPIRATION, AttributeInvalid, is_lite

RESERVE_TIME: Final = "reserve.time"
"""The retention in whole hours; -1 for as long as the broker keeps its log."""


RESERVE_BYTES: Final = "reserve.bytes"
"""Bytes of the topic's records in one broker group; -1 for no limit. RocketMQ has no such attribute."""
RESERVE_BYTES_MIN: Final = 1024 * 1024


def reserve_bytes(attributes: Mapping[str, str]) -> int | None:
    """Return how many bytes of messages a topic with these attributes keeps. None: no limit, or not a number, which
    earlier releases stored.
    """
    text = attributes.get(RESERVE_BYTES, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18) or int(text) < RESERVE_BYTES_MIN:
        return None
    return int(text)


def check_reserve_bytes(attributes: Mapping[str, str]) -> None:
    """Raise AttributeInvalid if a topic with these attributes cannot have its limit of bytes."""
    text = attributes.get(RESERVE_BYTES)
    if text in (None, "-1"):
        return
    if is_lite(attributes):
        raise AttributeInvalid(f"{RESERVE_BYTES} is not for topics with lite topics: these have {EXPIRATION}")
    if reserve_bytes(attributes) is None:
        raise AttributeInvalid(
            f"{RESERVE_BYTES} is {text[:40]!r}; allowed: whole bytes from {RESERVE_BYTES_MIN} on, and -1"
        )


def reserve_hours(attributes: Mapping[str, str]) -> int | None:
    """Return for how many hours a topic with these attributes keeps messages. None: as long as the broker keeps its
    log, or not a number, which earlier releases stored.
    """
    text = attributes.get(RESERVE_TIME, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) == 0:
        return None
    return int(text)


def check_reserve_time(attributes: Mapping[str, str], hours_max: float) -> None:
    """Raises AttributeInvalid unless the retention time is valid for a topic with these attributes.

    ``hours_max`` is for how long the broker keeps its log.
    """
    text = attributes.get(RESERVE_TIME)
    if text in (None, "-1"):
        return
    if is_lite(attributes):
        raise AttributeInvalid(f"{RESERVE_TIME} is not for topics with lite topics: these have {EXPIRATION}")
    hours = reserve_hours(attributes)
    if hours is None:
        raise AttributeInvalid(f"{RESERVE_TIME} is {text[:40]!r}; allowed: whole hours from 1 on, and -1")
    if hours > hours_max:
        raise AttributeInvalid(
            f"{RESERVE_TIME} is {hours} hours; maximum: {hours_max:g}, as long as the broker keeps the log of all "
            "topics. Raise its setting retention_hours first"
        )
