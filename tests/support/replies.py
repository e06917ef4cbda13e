"""Messages that request replies, frame by frame."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from mq.broker.server import serve
from mq.protocol.codes import RequestCode
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from mq.protocol.requests.request_reply import PushReplyMessageToClient
from tests.free_ports import free_ports
from tests.support.running_broker import (
    FAST,
    Client,
    RunningBroker,
    broker_settings,
    interpreter_as_before,
    properties,
    send_ext,
)
from tests.support.waiting import until

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
V2 = RequestCode.SEND_REPLY_MESSAGE_V2


async def produces(client: Client, client_id: str, *groups: str) -> None:
    data = HeartbeatData(client_id=client_id, producers=[ProducerData(group) for group in groups or ("P",)])
    assert (await client.request(RequestCode.HEART_BEAT, body=data.encode())).code == 0


def reply_ext(client_id: str | None = "asker", correlation_id: str = "c-1", **given: Any) -> dict[str, Any]:
    named = {"MSG_TYPE": "reply", "CORRELATION_ID": correlation_id, "TTL": "3000"}
    if client_id is not None:
        named["REPLY_TO_CLIENT"] = client_id
    return send_ext(REPLY_TOPIC, i=properties(**named), **given)


async def pushed(client: Client) -> tuple[PushReplyMessageToClient, bytes]:
    question, body = await client.question()
    assert isinstance(question, PushReplyMessageToClient), question
    return question, body


@asynccontextmanager
async def three_replicas(
    directory: Path, limits: Any = FAST, *, keys: Any = None, **given: Any
) -> AsyncIterator[list[RunningBroker]]:
    """A group; the first one leads. ``keys`` are those of one of its accounts."""
    ports = free_ports(3)
    peers = ",".join(f"n{number}@127.0.0.1:{port}" for number, port in enumerate(ports))
    brokers = [
        RunningBroker(broker_settings(directory / f"n{number}", node_id=f"n{number}", peers=peers, **given), keys)
        for number in range(3)
    ]
    with interpreter_as_before():
        async with trio.open_nursery() as nursery:
            for broker in brokers:
                await nursery.start(serve, broker.settings, limits)
            try:
                clients = [await broker.connect() for broker in brokers]
                for client in clients:
                    client.keys = keys
                leader: list[int] = []

                async def leads() -> bool:
                    roles = [(await client.info())["raftmq.role"] for client in clients]
                    leader[:] = [number for number, role in enumerate(roles) if role == "leader"]
                    return len(leader) == 1

                await until(leads)
                brokers.insert(0, brokers.pop(leader[0]))
                yield brokers
            finally:
                for broker in brokers:
                    await broker.close_clients()
                nursery.cancel_scope.cancel()
