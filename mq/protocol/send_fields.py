"""The short header of a send, in request codes 310, 320 and 325: each field is named by one letter."""

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


def send_header(
    *,
    producer_group: str,
    topic: str,
    queue_id: str,
    sys_flag: str,
    born_timestamp_ms: str,
    properties: str,
    broker_name: str,
    default_topic: str = "",
    default_topic_queue_nums: str = "0",
    flag: str = "0",
    reconsume_times: str = "0",
    batch: str = "false",
) -> dict[str, str]:
    """Return the header fields of a send. Repeats the letters, since a lookup of each would cost every message."""
    return {
        "a": producer_group,
        "b": topic,
        "c": default_topic,
        "d": default_topic_queue_nums,
        "e": queue_id,
        "f": sys_flag,
        "g": born_timestamp_ms,
        "h": flag,
        "i": properties,
        "j": reconsume_times,
        "k": "false",
        "m": batch,
        "n": broker_name,
    }
