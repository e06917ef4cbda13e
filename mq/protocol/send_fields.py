"""The header of a send in its short form: fields have one letter each, in request codes 310, 320 and 325."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SEND_FIELDS: Final[Mapping[str, str]] = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp_ms": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}
"""Our name of each field, and its letter; see `mq.protocol.requests.send.SendExt`."""


def send_fields(**values: str) -> dict[str, str]:
    """The header fields of a send: texts by our names to texts by letter."""
    return {SEND_FIELDS[name]: value for name, value in values.items()}
