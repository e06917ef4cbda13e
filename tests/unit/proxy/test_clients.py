"""What a proxy tells brokers of its clients."""

from __future__ import annotations

import random
from typing import Any, cast

from mq.protocol.requests.clients import ClientBehindProxy
from mq.proxy.clients import MEMBERS_BYTES_MAX, Clients, TelemetryStream


def opened(clients: Clients, client_id: str, expression: str) -> None:
    stream = TelemetryStream(cast("Any", None), client_id, 0)
    stream.member = ClientBehindProxy(client_id, "G", "192.0.2.1:1", subscriptions=[("T", expression, "TAG")])
    clients.opened(stream)


def test_heartbeat_lists_members_up_to_its_size_limit() -> None:
    clients = Clients(random.Random(1))
    for number in range(100):
        opened(clients, f"large-{number}", "\x01" * 4_000)  # six bytes each as JSON
    opened(clients, "small", "*")
    told = clients.members()
    assert 50 < len(told) < 100
    assert told[-1].client_id == "small"
    assert MEMBERS_BYTES_MAX - 50_000 < sum(len(each.encode()) for each in told) <= MEMBERS_BYTES_MAX
