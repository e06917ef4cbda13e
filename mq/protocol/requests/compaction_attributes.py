"""Attributes of compacted topics, which keep the newest message of each key, as RocketMQ and Kafka name them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.protocol import properties as props
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.requests.lite_attributes import AttributeInvalid
from mq.protocol.requests.retention_attributes import RESERVE_BYTES, RESERVE_TIME

CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
DELETE: Final = "DELETE"
DELETE_RETENTION: Final = "delete.retention.ms"
"""The time for which a message without a body, a *tombstone*, stays. The name is Kafka's; RocketMQ has none."""
DELETE_RETENTION_MS: Final = 24 * 3_600_000
_DELETE_RETENTION_MS_MAX: Final = 10 * 365 * 24 * 3_600_000
TYPES_COMPACTED: Final = frozenset(("NORMAL", "FIFO", "MIXED", "UNSPECIFIED"))
"""Messages of the other types become visible in another order than they were sent, or in another queue than their
key's.
"""


def is_compacted(attributes: Mapping[str, str]) -> bool:
    """Whether a topic with these attributes keeps the newest message of each key."""
    return attributes.get(CLEANUP_POLICY, "").upper() == COMPACTION


def delete_retention_ms(attributes: Mapping[str, str]) -> int:
    """Return for how many ms a compacted topic keeps tombstones; the default if the attribute is not a duration."""
    text = attributes.get(DELETE_RETENTION, "")
    return int(text) if _is_duration(text) else DELETE_RETENTION_MS


def check_compaction(attributes: Mapping[str, str]) -> None:
    """Raise AttributeInvalid if these attributes are not valid together."""
    policy = attributes.get(CLEANUP_POLICY, DELETE)
    if policy.upper() not in (DELETE, COMPACTION):
        raise AttributeInvalid(f"{CLEANUP_POLICY} is {policy[:40]!r}; allowed: {DELETE} and {COMPACTION}")
    if not is_compacted(attributes):
        if DELETE_RETENTION in attributes:
            raise AttributeInvalid(f"{DELETE_RETENTION} is for topics with {CLEANUP_POLICY}={COMPACTION}")
        return
    if not _is_duration(attributes.get(DELETE_RETENTION, "0")):
        raise AttributeInvalid(
            f"{DELETE_RETENTION} is {attributes[DELETE_RETENTION][:40]!r}; allowed: whole milliseconds from 0 to "
            f"{_DELETE_RETENTION_MS_MAX}"
        )
    kind = attributes.get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL").upper()
    if kind not in TYPES_COMPACTED:
        raise AttributeInvalid(
            f"a topic with {MESSAGE_TYPE_ATTRIBUTE}={kind[:40]} cannot be compacted: its messages become visible in "
            f"another order than they were sent; allowed: {', '.join(sorted(TYPES_COMPACTED))}"
        )
    if attributes.get(RESERVE_BYTES, "-1") != "-1":
        raise AttributeInvalid(
            f"{RESERVE_BYTES} and {CLEANUP_POLICY}={COMPACTION} exclude each other: a compacted topic keeps the newest "
            f"message of each key, however many these are; {RESERVE_TIME} says after how long older ones go"
        )


def key_of(properties: str) -> str | None:
    """Return the key in a message's encoded properties: the whole text of KEYS, as in RocketMQ; None without one."""
    key = props.find(properties, props.KEYS)
    return None if key is None or not key.strip() else key


def carried_from_ms(properties: str) -> int | None:
    """Return when the original of a message that compaction copied was stored, in epoch ms; None for an original."""
    _, _, text = (props.find(properties, props.CARRIED) or "").partition(" ")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _is_duration(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= _DELETE_RETENTION_MS_MAX
