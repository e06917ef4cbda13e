"""Requests for the locks of queues."""

from __future__ import annotations

import json
from typing import Any


def queue(queue_id: int = 0, topic: str = "T") -> dict[str, Any]:
    return {"brokerName": "broker-a", "queueId": queue_id, "topic": topic}


def lock_body(client_id: str, *queue_ids: int, group: str = "G", topic: str = "T") -> bytes:
    queues = [queue(queue_id, topic) for queue_id in queue_ids]
    return json.dumps({"clientId": client_id, "consumerGroup": group, "mqSet": queues}).encode()
