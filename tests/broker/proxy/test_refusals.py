"""What a proxy refuses, and with which code: those of RocketMQ's proxy."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.proxy.grpc import CallRefused, Status
from mq.proxy.mapping.handles import TransactionId
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit
from tests.support.proxies import ENDPOINTS, Call, InMemoryProxy, message, receive_request
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

TOPIC, GROUP = pb.Resource(name="Orders"), pb.Resource(name="billing")
LONG = "x" * 5000
FIFO: dict[str, Any] = {"message_group": "g", "message_type": pb.FIFO}


def sent(topic: str = "Orders", body: str = "b", properties: dict[str, str] | None = None, **told: Any) -> Message:
    one = message(topic, body, **told)
    one.user_properties.update(properties or {})
    return pb.SendMessageRequest(messages=[one])


def received(group: str = "billing", topic: str = "Orders", **told: Any) -> Message:
    return receive_request(group, topic, **told)


SENDS: list[tuple[str, Message, pb.Code]] = [
    ("no message", pb.SendMessageRequest(), pb.MESSAGE_CORRUPTED),
    ("no topic", sent(""), pb.ILLEGAL_TOPIC),
    ("a bad topic", sent("a b"), pb.ILLEGAL_TOPIC),
    ("a system topic", sent("SCHEDULE_TOPIC_XXXX"), pb.ILLEGAL_TOPIC),
    ("an absent topic", sent("Absent"), pb.TOPIC_NOT_FOUND),
    ("an empty body", sent(body=""), pb.MESSAGE_BODY_EMPTY),
    ("a large body", sent(body="x" * (4 * 1024 * 1024 + 1)), pb.MESSAGE_BODY_TOO_LARGE),
    ("born before all clocks", sent(born_timestamp=Timestamp(seconds=-1)), pb.BAD_REQUEST),
    ("born after all clocks", sent(born_timestamp=Timestamp(seconds=1 << 62)), pb.BAD_REQUEST),
    ("no id", sent(message_id=" "), pb.ILLEGAL_MESSAGE_ID),
    ("an empty tag", sent(tag=" "), pb.ILLEGAL_MESSAGE_TAG),
    ("two tags", sent(tag="a||b"), pb.ILLEGAL_MESSAGE_TAG),
    ("an empty key", sent(keys=["a", ""]), pb.ILLEGAL_MESSAGE_KEY),
    ("a key with a control character", sent(keys=["a\x01"]), pb.ILLEGAL_MESSAGE_KEY),
    ("a blank message group", sent(message_group=" "), pb.ILLEGAL_MESSAGE_GROUP),
    ("a long message group", sent(message_group="g" * 64), pb.ILLEGAL_MESSAGE_GROUP),
    ("129 properties", sent(properties={str(n): "x" for n in range(129)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    ("large properties", sent(properties={str(n): LONG for n in range(4)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    ("a reserved property", sent(properties={"TAGS": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("a control character", sent(properties={"a": "x\x02"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("ordered in a normal topic", sent(**FIFO), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (
        "delayed in a normal topic",
        sent(delivery_timestamp=Timestamp(seconds=9)),
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    ("normal in a topic of transactions", sent("Payments"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("a priority in a normal topic", sent(priority=1), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("a negative priority", sent(priority=-1), pb.BAD_REQUEST),
    ("a priority and a group", sent(priority=1, **FIFO), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (
        "a priority and a delay",
        sent(priority=1, delivery_timestamp=Timestamp(seconds=9)),
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    ("a lite topic in a topic that has none", sent(lite_topic="x"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("a lite topic that is none", sent(lite_topic="a b"), pb.ILLEGAL_LITE_TOPIC),
    ("a lite topic and a group", sent(lite_topic="x", message_group="g"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("a lite topic and a priority", sent(lite_topic="x", priority=1), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (
        "a lite topic and a delay",
        sent(lite_topic="x", delivery_timestamp=Timestamp(seconds=9)),
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (
        "a lite topic and a transaction",
        sent(lite_topic="x", message_type=pb.TRANSACTION),
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    ("a body that is not compressed", sent(body="plain", body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
]
RECEIVES: list[tuple[str, Message, pb.Code]] = [
    ("no group", received(""), pb.ILLEGAL_CONSUMER_GROUP),
    ("a system group", received("CID_RMQ_SYS_TRANS"), pb.ILLEGAL_CONSUMER_GROUP),
    ("an absent topic", received(topic="Absent"), pb.TOPIC_NOT_FOUND),
    ("a broker that is none", received(broker="b"), pb.BAD_REQUEST),
    ("a short invisible time", received(invisible_duration=Duration(seconds=9)), pb.ILLEGAL_INVISIBLE_TIME),
    ("a long invisible time", received(invisible_duration=Duration(seconds=43201)), pb.ILLEGAL_INVISIBLE_TIME),
    (
        "an expression that is none",
        received(filter_expression=pb.FilterExpression(type=pb.SQL, expression="a = = b")),
        pb.ILLEGAL_FILTER_EXPRESSION,
    ),
]
ELSEWHERE = "0 1 2 0 0 broker-z 0 7 8"
"""A receipt handle of a broker that is none."""
LOST = TransactionId("broker-a", 1 << 40, 1 << 40, "id").encode()  # type: ignore[arg-type]
OTHERS: list[tuple[str, Message, type[Any], pb.Code]] = [
    ("QueryRoute", pb.QueryRouteRequest(topic=TOPIC), pb.QueryRouteResponse, pb.ILLEGAL_ACCESS_POINT),
    (
        "QueryRoute",
        pb.QueryRouteRequest(topic=pb.Resource(name="Absent"), endpoints=ENDPOINTS),
        pb.QueryRouteResponse,
        pb.TOPIC_NOT_FOUND,
    ),
    (
        "QueryAssignment",
        pb.QueryAssignmentRequest(topic=TOPIC, group=pb.Resource(name="?"), endpoints=ENDPOINTS),
        pb.QueryAssignmentResponse,
        pb.ILLEGAL_CONSUMER_GROUP,
    ),
    (
        "QueryOffset",
        pb.QueryOffsetRequest(
            message_queue=pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name="broker-a")),
            query_offset_policy=pb.TIMESTAMP,
            timestamp=Timestamp(seconds=1 << 62),
        ),
        pb.QueryOffsetResponse,
        pb.BAD_REQUEST,
    ),
    (
        "PullMessage",
        pb.PullMessageRequest(
            group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name="broker-z"))
        ),
        pb.PullMessageResponse,
        pb.BAD_REQUEST,
    ),
    ("Heartbeat", pb.HeartbeatRequest(), pb.HeartbeatResponse, pb.UNRECOGNIZED_CLIENT_TYPE),
    ("AckMessage", pb.AckMessageRequest(group=GROUP, topic=TOPIC), pb.AckMessageResponse, pb.BAD_REQUEST),
    (
        "ChangeInvisibleDuration",
        pb.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle="1 2 3"),
        pb.ChangeInvisibleDurationResponse,
        pb.INVALID_RECEIPT_HANDLE,
    ),
    (
        "ChangeInvisibleDuration",
        pb.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=ELSEWHERE),
        pb.ChangeInvisibleDurationResponse,
        pb.INVALID_RECEIPT_HANDLE,
    ),
    (
        "AckMessage",
        pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[pb.AckMessageEntry(receipt_handle=ELSEWHERE)]),
        pb.AckMessageResponse,
        pb.INVALID_RECEIPT_HANDLE,
    ),
    (
        "EndTransaction",
        pb.EndTransactionRequest(
            topic=TOPIC,
            transaction_id=TransactionId("broker-z", QueueOffset(1), PhysicalOffset(1), "id").encode(),
            resolution=pb.COMMIT,
        ),
        pb.EndTransactionResponse,
        pb.INVALID_TRANSACTION_ID,
    ),
    (
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle="0 1 2 0 0 broker-a 0 7"),
        pb.ForwardMessageToDeadLetterQueueResponse,
        pb.INVALID_RECEIPT_HANDLE,
    ),
    (
        "EndTransaction",
        pb.EndTransactionRequest(topic=TOPIC, transaction_id=LOST),
        pb.EndTransactionResponse,
        pb.BAD_REQUEST,
    ),
    (
        "RecallMessage",
        pb.RecallMessageRequest(topic=TOPIC, recall_handle="x"),
        pb.RecallMessageResponse,
        pb.BAD_REQUEST,
    ),
    (
        "SyncLiteSubscription",
        pb.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP),
        pb.SyncLiteSubscriptionResponse,
        pb.BAD_REQUEST,
    ),
]


async def test_each_refusal_has_its_code_and_stores_nothing(kit: Kit, proxy: InMemoryProxy) -> None:
    for why, request, code in SENDS:
        answer = await proxy.ask("SendMessage", request, pb.SendMessageResponse)
        assert answer.status.code == code, (why, answer.status)
    assert kit.messages("Orders") == []
    for why, request, code in RECEIVES:
        [got] = await proxy.stream("ReceiveMessage", request, pb.ReceiveMessageResponse)
        assert got.status.code == code, (why, got.status)
    for method, request, kind, code in OTHERS:
        answer = await proxy.ask(method, request, kind)
        assert answer.status.code == code, (method, answer.status)


async def test_receive_near_its_deadline_is_refused_with_a_code_per_version(proxy: InMemoryProxy) -> None:
    for version, code in (("5.0.4", pb.ILLEGAL_POLLING_TIME), ("5.0.3", pb.BAD_REQUEST), ("", pb.BAD_REQUEST)):
        proxy.metadata = {"x-mq-client-version": version}
        [got] = await proxy.stream(
            "ReceiveMessage", received(), pb.ReceiveMessageResponse, deadline=trio.current_time() + 4
        )
        assert got.status.code == code
    began = trio.current_time()
    [got] = await proxy.stream("ReceiveMessage", received(), pb.ReceiveMessageResponse, deadline=began + 5.2)
    assert got.status.code == pb.MESSAGE_NOT_FOUND
    assert trio.current_time() < began + 5.2


async def test_call_without_a_client_id_is_refused(proxy: InMemoryProxy) -> None:
    call = Call("", metadata={})
    await call.to_server.send(sent().SerializeToString())
    await proxy.serve("SendMessage", call)
    answer = pb.SendMessageResponse.FromString(await call.answers.receive())
    assert answer.status.code == pb.CLIENT_ID_REQUIRED


async def test_bytes_that_are_not_a_request_end_the_call(proxy: InMemoryProxy) -> None:
    for data in (b"\xff\xff\xff", None):
        call = Call("c1")
        if data is not None:
            await call.to_server.send(data)
        call.to_server.close()
        with pytest.raises(CallRefused) as caught:
            await proxy.serve("SendMessage", call)
        assert caught.value.status is Status.INTERNAL
