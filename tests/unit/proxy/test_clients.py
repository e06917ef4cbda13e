"""What a proxy tells brokers of its clients, and what it remembers of their lite topics."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from mq.client import BrokerError
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.clients import ClientBehindProxy
from mq.protocol.requests.lite import Action
from mq.proxy.clients import MEMBERS_BYTES_MAX, Clients, TelemetryStream
from mq.proxy.mapping.refusals import refusal_of
from mq.proxy.services.lite_subscribing import LiteSubscriptionTable
from mq.proxy.wire import messaging_pb2 as pb


def opened(clients: Clients, client_id: str, expression: str) -> None:
    stream = TelemetryStream(cast("Any", None), client_id, 0)
    stream.member = ClientBehindProxy(client_id, "G", "192.0.2.1:1", subscriptions=[("T", expression, "TAG")])
    clients.add_stream(stream)


def test_heartbeat_lists_members_up_to_its_size_limit() -> None:
    clients = Clients(random.Random(1))
    for number in range(100):
        opened(clients, f"large-{number}", "\x01" * 4_000)  # six bytes each as JSON
    opened(clients, "small", "*")
    told = clients.members()
    assert 50 < len(told) < 100
    assert told[-1].client_id == "small"
    assert MEMBERS_BYTES_MAX - 50_000 < sum(len(each.encode()) for each in told) <= MEMBERS_BYTES_MAX


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.LMQ_QUOTA_EXCEEDED, pb.LITE_TOPIC_QUOTA_EXCEEDED),
        (ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
    ],
)
def test_broker_quota_refusals_map_to_grpc_codes(code: int, expected: pb.Code) -> None:
    assert refusal_of(BrokerError(code, "full", "broker-a")).code == expected


def test_proxy_remembers_a_limited_number_of_lite_topics() -> None:
    known = LiteSubscriptionTable(names_max=6)
    known.on_change("c1", "g", "T", Action.PARTIAL_ADD, {"a", "b"})
    known.on_change("c1", "g", "T", Action.PARTIAL_ADD, {"b", "c"})
    known.on_change("c1", "g", "T", Action.PARTIAL_REMOVE, {"a"})
    assert (known.get("c1", "g", "T"), len(known)) == ({"b", "c"}, 3)
    assert known.get("c1", "g", "U") is None
    known.on_change("c2", "g", "T", Action.PARTIAL_REMOVE, {"a"})
    assert known.get("c2", "g", "T") is None
    known.on_change("c2", "g", "T", Action.COMPLETE_ADD, {"x", "y"})
    known.on_loss("c2", "g", "x")
    known.on_loss("c2", "g", "x")
    assert (known.get("c2", "g", "T"), len(known)) == ({"y"}, 5)
    known.on_change("c3", "g", "T", Action.COMPLETE_ADD, {"z"})
    assert (known.get("c1", "g", "T"), len(known)) == (None, 4)
    assert known.forget("c2") == [("g", "T")]
    known.on_change("c3", "g", "T", Action.COMPLETE_REMOVE, set())
    assert len(known) == 0
