"""What a proxy remembers of its clients' lite topics, and the codes of what brokers refuse there."""

from __future__ import annotations

import pytest

from mq.client import BrokerError
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.lite import Action
from mq.proxy.mapping.refusals import refusal_of
from mq.proxy.services.lite_subscribing import Subscribed
from mq.proxy.wire import messaging_pb2 as pb


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
    known = Subscribed(names_max=6)
    known.changed("c1", "g", "T", Action.PARTIAL_ADD, {"a", "b"})
    known.changed("c1", "g", "T", Action.PARTIAL_ADD, {"b", "c"})
    known.changed("c1", "g", "T", Action.PARTIAL_REMOVE, {"a"})
    assert (known.get("c1", "g", "T"), len(known)) == ({"b", "c"}, 3)
    assert known.get("c1", "g", "U") is None
    known.changed("c2", "g", "T", Action.PARTIAL_REMOVE, {"a"})
    assert known.get("c2", "g", "T") is None
    known.changed("c2", "g", "T", Action.COMPLETE_ADD, {"x", "y"})
    known.lost("c2", "g", "x")
    known.lost("c2", "g", "x")
    assert (known.get("c2", "g", "T"), len(known)) == ({"y"}, 5)
    known.changed("c3", "g", "T", Action.COMPLETE_ADD, {"z"})
    assert (known.get("c1", "g", "T"), len(known)) == (None, 4)
    assert known.left("c2") == [("g", "T")]
    known.changed("c3", "g", "T", Action.COMPLETE_REMOVE, set())
    assert len(known) == 0
