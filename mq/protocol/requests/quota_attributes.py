"""Names, meanings and text format of the quotas of topics and users. Pure.

A rate is per second. Each broker group applies them for itself, and each replica counts the requests that it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mq.protocol.requests.lite_attributes import AttributeInvalid

PREFIX: Final = "quota."
RATES: Final = {
    "quota.produce.messages": "produce_messages",
    "quota.produce.bytes": "produce_bytes",
    "quota.consume.messages": "consume_messages",
    "quota.consume.bytes": "consume_bytes",
}
"""The attributes of a topic that are rates, and the fields of a `Quota` that they become."""
STORED_BYTES: Final = "quota.stored.bytes"
"""The attribute of a topic for the bytes of its records in one broker group."""
ATTRIBUTES: Final = {**RATES, STORED_BYTES: "stored_bytes"}
EVERYBODY: Final = "*"
"""The name that stands for each user without a quota of its own. Each has the whole quota for itself."""
QUOTA_MAX: Final = 10**15
NO_LIMIT: Final = "-1"


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of a topic or a user; 0 means no limit.

    Messages and bytes are per second, of bodies and properties. ``connections`` limits the connections of a user to one
    replica. ``stored_bytes`` are for topics.
    """

    produce_messages: int = 0
    produce_bytes: int = 0
    consume_messages: int = 0
    consume_bytes: int = 0
    connections: int = 0
    stored_bytes: int = 0

    @property
    def limits_sends(self) -> bool:
        """Whether any of the limits applies to sends."""
        return bool(self.produce_messages or self.produce_bytes or self.stored_bytes)

    def __str__(self) -> str:
        texts = {
            "produce": _rates(self.produce_messages, self.produce_bytes),
            "consume": _rates(self.consume_messages, self.consume_bytes),
            "connections": str(self.connections or ""),
            "stored": f"{self.stored_bytes} bytes" if self.stored_bytes else "",
        }
        return "; ".join(f"{name} {text}" for name, text in texts.items() if text) or "no limit"


def _rates(messages: int, nbytes: int) -> str:
    parts = [f"{messages} messages/s" if messages else "", f"{nbytes} bytes/s" if nbytes else ""]
    return " and ".join(filter(None, parts))


NO_QUOTA: Final = Quota()


def quota_of(attributes: Mapping[str, str]) -> Quota:
    """The quota of a topic with these attributes; a text that is not such a number means no limit, since earlier
    releases stored any.
    """
    fields = {field: _parse_int(attributes.get(name, "")) for name, field in ATTRIBUTES.items() if name in attributes}
    return Quota(**fields) if fields else NO_QUOTA


def check_quotas(attributes: Mapping[str, str]) -> None:
    """Raise AttributeInvalid for an attribute whose name begins with `PREFIX` but which is not a valid quota."""
    for name, text in attributes.items():
        if not name.startswith(PREFIX):
            continue
        if name not in ATTRIBUTES:
            raise AttributeInvalid(f"there is no attribute {name[:60]!r}; there are {', '.join(ATTRIBUTES)}")
        if text != NO_LIMIT and not _parse_int(text):
            raise AttributeInvalid(f"{name} is {text[:40]!r}; allowed: whole numbers from 1 on, and {NO_LIMIT}")


def _parse_int(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        return 0
    number = int(text)
    return number if number <= QUOTA_MAX else 0
