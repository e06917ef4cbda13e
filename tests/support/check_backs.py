"""Brokers that check back often."""

from __future__ import annotations

from typing import Any

from mq.protocol.codes import RequestCode
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from tests.support.running_broker import Client
from tests.support.stored_messages import figure
from tests.support.waiting import until

FAST: dict[str, Any] = {"transaction_timeout_seconds": 0.1, "transaction_check_seconds": 0.1}


async def produce(client: Client, group: str = "P", client_id: str = "p1") -> None:
    """Register a connection as one of a producer group."""
    data = HeartbeatData(client_id, producers=[ProducerData(group)])
    assert (await client.request(RequestCode.HEART_BEAT, body=data.encode())).code == 0


async def grows(client: Client, name: str, least: int = 1) -> int:
    async def enough() -> bool:
        return await figure(client, name) >= least

    await until(enough)
    return await figure(client, name)
