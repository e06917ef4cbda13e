"""Converts topics, groups and queues between clients and brokers, and checks names. Pure.

A namespace becomes part of the name, as in RocketMQ: ``namespace%name``.
"""

from __future__ import annotations

from typing import Final

from mq.protocol.names import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUPS,
    NameRefused,
    check_group,
    check_lite_topic,
    check_topic,
    is_system_topic,
)
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.wire import messaging_pb2 as pb

_SEPARATOR: Final = "%"
_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


def topic_of(resource: pb.Resource) -> str:
    """Return the name of a client's topic. Raises CodedError for an invalid name or a system topic."""
    name = _full_name(resource)
    try:
        check_topic(name)
    except NameRefused as error:
        raise CodedError(pb.ILLEGAL_TOPIC, error.reason) from error
    if is_system_topic(name):
        raise CodedError(pb.ILLEGAL_TOPIC, f"{name} is a system topic")
    return name


def group_of(resource: pb.Resource) -> str:
    """Return the name of a client's consumer group. Raises CodedError for an invalid name or a system group."""
    name = _full_name(resource)
    try:
        check_group(name)
    except NameRefused as error:
        raise CodedError(pb.ILLEGAL_CONSUMER_GROUP, error.reason) from error
    if name in SYSTEM_GROUPS:
        raise CodedError(pb.ILLEGAL_CONSUMER_GROUP, f"{name} is a system group")
    return name


def lite_topic_of(name: str) -> str:
    """Check and return the name of a lite topic. Raises CodedError for an invalid name."""
    try:
        check_lite_topic(name)
    except NameRefused as error:
        raise CodedError(pb.ILLEGAL_LITE_TOPIC, error.reason) from error
    return name


def resource_of(name: str) -> pb.Resource:
    """Convert the name of a topic for clients."""
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    namespace, separator, rest = name.removeprefix(prefix).partition(_SEPARATOR)
    if not separator:
        return pb.Resource(name=name)
    return pb.Resource(resource_namespace=namespace, name=prefix + rest)


def _full_name(resource: pb.Resource) -> str:
    if not resource.resource_namespace:
        return resource.name
    prefix = next((prefix for prefix in _PREFIXES if resource.name.startswith(prefix)), "")
    return f"{prefix}{resource.resource_namespace}{_SEPARATOR}{resource.name.removeprefix(prefix)}"
