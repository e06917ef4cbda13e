"""The Python SDK: produce to, consume from and administer RocketMQ brokers, on trio or asyncio (AnyIO).

    from mq.client import Message, Producer, PushConsumer

`mq.client.sync` is the same for programs without an event loop. The user guide is `docs/python.md`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mq.client.admin import Admin
    from mq.client.body_codecs import BodyCodec, BytesCodec, JsonCodec, MsgpackCodec, PydanticCodec, TextCodec
    from mq.client.consume.delivery import Delivery, DeliveryStream, MessageStream
    from mq.client.consume.handlers import Handler
    from mq.client.consume.lite_consumer import LiteConsumer, LiteStart
    from mq.client.consume.offsets import ConsumeFrom
    from mq.client.consume.policies import DeadLetter, HandlingPolicy, OnError, RetryLater, Skip, StopConsumer
    from mq.client.consume.pop_consumer import PopConsumer
    from mq.client.consume.popped_messages import PoppedMessage
    from mq.client.consume.process_queue import FlowLimits
    from mq.client.consume.pull_consumer import PullConsumer
    from mq.client.consume.pull_loop import PullSettings
    from mq.client.consume.push_consumer import PushConsumer
    from mq.client.errors import (
        AlreadyOpen,
        BodyNotDecoded,
        BrokerError,
        ClientClosed,
        ClientError,
        ClientForked,
        CodecNotInstalled,
        ConnectFailed,
        ConnectionLost,
        DeliveryFinished,
        MessageRefused,
        NameServersUnavailable,
        NoReply,
        NoRoute,
        NotADeadLetter,
        NotARequest,
        NotRecalled,
        NumberUsed,
        OffsetsFileDamaged,
        ProducerBusy,
        ReplyNotDelivered,
        RequestTimeout,
        SendOutcomeUnknown,
        SendRejected,
        TopicNotFound,
        TransactionFenced,
        TransactionOutcomeUnknown,
        UnreadableAnswer,
    )
    from mq.client.events import ClientEvent, Health
    from mq.client.filters import BodyFilter, Sql, WasmFilter, sql
    from mq.client.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus, tombstone
    from mq.client.metrics.open_telemetry import OpenTelemetryMetrics
    from mq.client.metrics.prometheus import PrometheusMetrics
    from mq.client.metrics.recorder import ClientMetrics
    from mq.client.net.client_core import RemotingSettings
    from mq.client.net.credentials import Credentials, CredentialsInvalid
    from mq.client.net.routes import TopicRoute
    from mq.client.produce.outgoing_message import Pending
    from mq.client.produce.producer import Producer
    from mq.client.produce.transaction_sets import CheckSet, SetTransaction
    from mq.client.produce.transactions import Check, Transaction, TransactionProducer, TransactionState
    from mq.client.schedules import Cron, Every, Once, Schedule, ScheduleConflict, ScheduleNotFound, ScheduleStatus
    from mq.filter.subscription import SubscriptionError
    from mq.protocol.messages.compression import Codec
    from mq.protocol.messages.records import Host
    from mq.protocol.messages.trace import MessageTrace
    from mq.protocol.names import NameRefused
    from mq.protocol.requests.broker import BrokerStatsData
    from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
    from mq.protocol.requests.group_progress import GroupProgress
    from mq.protocol.requests.namesrv import ClusterInfo
    from mq.protocol.requests.raft_group import GroupAnswer, GroupCommand
    from mq.protocol.requests.topics import QueueEnds, TopicConfig

__all__ = [
    "Admin",
    "AlreadyOpen",
    "BodyCodec",
    "BodyFilter",
    "BodyNotDecoded",
    "BrokerError",
    "BrokerStatsData",
    "BytesCodec",
    "Check",
    "CheckSet",
    "ClientClosed",
    "ClientError",
    "ClientEvent",
    "ClientForked",
    "ClientMetrics",
    "ClusterInfo",
    "Codec",
    "CodecNotInstalled",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeFrom",
    "Credentials",
    "CredentialsInvalid",
    "Cron",
    "DeadLetter",
    "Delivery",
    "DeliveryFinished",
    "DeliveryStream",
    "Every",
    "FlowLimits",
    "GroupAnswer",
    "GroupCommand",
    "GroupProgress",
    "Handler",
    "HandlingPolicy",
    "Health",
    "Host",
    "JsonCodec",
    "LiteConsumer",
    "LiteStart",
    "Message",
    "MessageQueue",
    "MessageRefused",
    "MessageStream",
    "MessageTrace",
    "MsgpackCodec",
    "NameRefused",
    "NameServersUnavailable",
    "NoReply",
    "NoRoute",
    "NotADeadLetter",
    "NotARequest",
    "NotRecalled",
    "NumberUsed",
    "OffsetsFileDamaged",
    "OnError",
    "Once",
    "OpenTelemetryMetrics",
    "Pending",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "ProducerBusy",
    "PrometheusMetrics",
    "PullConsumer",
    "PullSettings",
    "PushConsumer",
    "PydanticCodec",
    "QueueEnds",
    "ReceivedMessage",
    "RemotingSettings",
    "ReplyNotDelivered",
    "RequestTimeout",
    "RetryLater",
    "Schedule",
    "ScheduleConflict",
    "ScheduleNotFound",
    "ScheduleStatus",
    "SendOutcomeUnknown",
    "SendRejected",
    "SendResult",
    "SendStatus",
    "SetTransaction",
    "Skip",
    "Sql",
    "StopConsumer",
    "SubscriptionError",
    "SubscriptionGroupConfig",
    "TextCodec",
    "TopicConfig",
    "TopicNotFound",
    "TopicRoute",
    "Transaction",
    "TransactionFenced",
    "TransactionOutcomeUnknown",
    "TransactionProducer",
    "TransactionState",
    "UnreadableAnswer",
    "WasmFilter",
    "sql",
    "tombstone",
]

_MODULES = {
    "mq.client.admin": ("Admin",),
    "mq.client.body_codecs": (
        "BodyCodec",
        "BytesCodec",
        "JsonCodec",
        "MsgpackCodec",
        "PydanticCodec",
        "TextCodec",
    ),
    "mq.client.consume.delivery": (
        "Delivery",
        "DeliveryStream",
        "MessageStream",
    ),
    "mq.client.consume.handlers": ("Handler",),
    "mq.client.consume.lite_consumer": (
        "LiteConsumer",
        "LiteStart",
    ),
    "mq.client.consume.offsets": ("ConsumeFrom",),
    "mq.client.consume.policies": (
        "DeadLetter",
        "HandlingPolicy",
        "OnError",
        "RetryLater",
        "Skip",
        "StopConsumer",
    ),
    "mq.client.consume.pop_consumer": ("PopConsumer",),
    "mq.client.consume.popped_messages": ("PoppedMessage",),
    "mq.client.consume.process_queue": ("FlowLimits",),
    "mq.client.consume.pull_consumer": ("PullConsumer",),
    "mq.client.consume.pull_loop": ("PullSettings",),
    "mq.client.consume.push_consumer": ("PushConsumer",),
    "mq.client.errors": (
        "AlreadyOpen",
        "BodyNotDecoded",
        "BrokerError",
        "ClientClosed",
        "ClientError",
        "ClientForked",
        "CodecNotInstalled",
        "ConnectFailed",
        "ConnectionLost",
        "DeliveryFinished",
        "MessageRefused",
        "NameServersUnavailable",
        "NoReply",
        "NoRoute",
        "NotADeadLetter",
        "NotARequest",
        "NotRecalled",
        "NumberUsed",
        "NumberUsed",
        "OffsetsFileDamaged",
        "ProducerBusy",
        "ReplyNotDelivered",
        "RequestTimeout",
        "SendOutcomeUnknown",
        "SendRejected",
        "TopicNotFound",
        "TransactionFenced",
        "TransactionOutcomeUnknown",
        "UnreadableAnswer",
    ),
    "mq.client.events": (
        "ClientEvent",
        "Health",
    ),
    "mq.client.filters": (
        "BodyFilter",
        "Sql",
        "WasmFilter",
        "sql",
    ),
    "mq.client.message": (
        "Message",
        "MessageQueue",
        "ReceivedMessage",
        "SendResult",
        "SendStatus",
        "tombstone",
    ),
    "mq.client.metrics.open_telemetry": ("OpenTelemetryMetrics",),
    "mq.client.metrics.prometheus": ("PrometheusMetrics",),
    "mq.client.metrics.recorder": ("ClientMetrics",),
    "mq.client.net.client_core": ("RemotingSettings",),
    "mq.client.net.credentials": (
        "Credentials",
        "CredentialsInvalid",
    ),
    "mq.client.net.routes": ("TopicRoute",),
    "mq.client.produce.outgoing_message": ("Pending",),
    "mq.client.produce.producer": ("Producer",),
    "mq.client.produce.transaction_sets": (
        "CheckSet",
        "SetTransaction",
    ),
    "mq.client.produce.transactions": (
        "Check",
        "Transaction",
        "TransactionProducer",
        "TransactionState",
    ),
    "mq.client.schedules": (
        "Cron",
        "Every",
        "Once",
        "Schedule",
        "ScheduleConflict",
        "ScheduleNotFound",
        "ScheduleStatus",
    ),
    "mq.filter.subscription": ("SubscriptionError",),
    "mq.protocol.messages.compression": ("Codec",),
    "mq.protocol.messages.records": ("Host",),
    "mq.protocol.messages.trace": ("MessageTrace",),
    "mq.protocol.names": ("NameRefused",),
    "mq.protocol.requests.broker": ("BrokerStatsData",),
    "mq.protocol.requests.consumer_groups": ("SubscriptionGroupConfig",),
    "mq.protocol.requests.group_progress": ("GroupProgress",),
    "mq.protocol.requests.namesrv": ("ClusterInfo",),
    "mq.protocol.requests.raft_group": (
        "GroupAnswer",
        "GroupCommand",
    ),
    "mq.protocol.requests.topics": (
        "QueueEnds",
        "TopicConfig",
    ),
}
"""The modules of the names above. A module is imported when one of its names is used: programs load only the modules
that they use.
"""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
