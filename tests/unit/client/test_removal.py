"""What a consumer says of itself, and what it makes of answers that say it was removed from its group."""

from __future__ import annotations

from mq.client.consume.diagnostics import running_info
from mq.client.consume.removal import OwnRemoval
from mq.client.events import ClientEvent
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.removed_members import KeptOutReply
from mq.protocol.wire import fastjson

LET_IN = Response(code=ResponseCode.POLLING_TIMEOUT, opaque=1, flag=1)


def kept_out(reason: str = "it hangs") -> Response:
    ext = KeptOutReply(kept_out_ms=60_000, reason=reason).fields()
    return Response(code=ResponseCode.SERVICE_NOT_AVAILABLE, opaque=1, flag=1, ext=ext)


def test_removal_lasts_although_one_broker_forgot_the_member() -> None:
    """One that was restarted answers in turn with those that keep the client out: it told the application each time."""
    events: list[ClientEvent] = []
    removal = OwnRemoval("billing", events.append)
    for _ in range(3):
        assert removal.check_response(kept_out(), "broker-a")
        assert not removal.check_response(LET_IN, "broker-b")
        assert removal.is_removed
    assert [(each.kind, each.reason) for each in events] == [("removed", "it hangs")]
    removal.check_response(LET_IN, "broker-a")
    assert not removal.is_removed
    removal.check_response(kept_out(), "broker-a")
    assert len(events) == 2


def test_removal_for_another_reason_is_a_new_event() -> None:
    events: list[ClientEvent] = []
    removal = OwnRemoval("billing", events.append)
    for reason in ("it hangs", "it hangs", "it is replaced"):
        removal.check_response(kept_out(reason), "broker-a")
    assert [each.reason for each in events] == ["it hangs", "it is replaced"]


def test_running_info_contains_the_start_time() -> None:
    properties = fastjson.parse(running_info([], [], ordered=True, started_ms=1_700_000_000_000))["properties"]
    assert properties == {
        "PROP_CLIENT_VERSION": "V4_9_8",
        "PROP_CONSUME_ORDERLY": "true",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMER_START_TIMESTAMP": "1700000000000",
    }, "all are needed: stock tools fail on a missing number"
