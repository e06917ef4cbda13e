"""Converts routes and assignments of queues for clients. Pure.

Clients connect to the endpoints in them, and those are the ones that the client has given: of this proxy, or of a load
balancer in front of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.client.net.routes import TopicRoute
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.lite_attributes import BIND_TOPIC, is_lite
from mq.protocol.requests.topics import TopicConfig
from mq.proxy.mapping.names import resource_of
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.wire import messaging_pb2 as pb

ANY_QUEUE: Final = -1

_KINDS: Final[Mapping[str, tuple[pb.MessageType, ...]]] = {
    "NORMAL": (pb.NORMAL,),
    "FIFO": (pb.FIFO,),
    "DELAY": (pb.DELAY,),
    "TRANSACTION": (pb.TRANSACTION,),
    "PRIORITY": (pb.PRIORITY,),
    "LITE": (pb.LITE,),
    "MIXED": (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
}


def kinds_of(config: TopicConfig) -> tuple[pb.MessageType, ...]:
    """Return the kinds of messages that a topic takes: by its attribute, else normal ones; none if it is unknown."""
    return _KINDS.get(config.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL"), ())


def check_kind(topic: str, config: TopicConfig, kind: pb.MessageType) -> None:
    """Raise CodedError if the topic does not take messages of this kind."""
    if kind not in kinds_of(config):
        topic_kind = config.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL")
        raise CodedError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the topic {topic} takes messages of type {topic_kind}, not {pb.MessageType.Name(kind)}",
        )


def reads_lite(topic: TopicConfig, group: SubscriptionGroupConfig) -> bool:
    """Return whether a group is bound to a topic, so that its members read lite topics of it."""
    return is_lite(topic.attributes) and group.attributes.get(BIND_TOPIC) == topic.topic_name


def queues_of(route: TopicRoute, config: TopicConfig, endpoints: pb.Endpoints) -> list[pb.MessageQueue]:
    """Return all queues of a topic, each with its permissions."""
    readable, writable = set(route.read_queues), set(route.write_queues)
    kinds = kinds_of(config) or (pb.MESSAGE_TYPE_UNSPECIFIED,)
    queues = []
    for queue in sorted(readable | writable):
        both = queue in readable and queue in writable
        queues.append(
            pb.MessageQueue(
                topic=resource_of(route.topic),
                id=queue.queue_id,
                permission=pb.READ_WRITE if both else pb.READ if queue in readable else pb.WRITE,
                broker=pb.Broker(name=queue.broker_name, id=0, endpoints=endpoints),
                accept_message_types=kinds,
            )
        )
    return queues


def assignments_of(route: TopicRoute, endpoints: pb.Endpoints, *, in_order: bool) -> list[pb.Assignment]:
    """Return what any member of a group may read: whole broker groups, or for ordered consumption single queues.

    Raises CodedError if the topic has no queue that may be read.
    """
    places = (
        [(queue.broker_name, queue.queue_id) for queue in route.read_queues]
        if in_order
        else [(name, ANY_QUEUE) for name in sorted({queue.broker_name for queue in route.read_queues})]
    )
    if not places:
        raise CodedError(pb.FORBIDDEN, f"no queue of the topic {route.topic} may be read")
    return [
        pb.Assignment(
            message_queue=pb.MessageQueue(
                topic=resource_of(route.topic),
                id=queue_id,
                permission=pb.READ_WRITE,
                broker=pb.Broker(name=broker_name, id=0, endpoints=endpoints),
            )
        )
        for broker_name, queue_id in places
    ]
