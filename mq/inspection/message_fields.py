"""The JSON form of a message, which all commands share."""

from __future__ import annotations

import base64

from mq.client.message import ReceivedMessage
from mq.inspection.formatting import time_of


def message_fields(message: ReceivedMessage) -> dict[str, object]:
    """Return place and content of a message. If the body is not UTF-8, ``body`` is None and ``body_base64`` has it."""
    record = message.record
    body: str | None
    try:
        body, body_base64 = message.body.decode(), None
    except UnicodeDecodeError:
        body, body_base64 = None, base64.b64encode(message.body).decode()
    return {
        "message_id": message.message_id,
        "offset_message_id": record.offset_message_id,
        "topic": record.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": record.queue_offset,
        "stored": time_of(record.store_timestamp_ms),
        "born_host": f"{record.born_host.ip}:{record.born_host.port}",
        "reconsume_times": record.reconsume_times,
        "tag": message.tags,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "body": body,
        "body_base64": body_base64,
    }
