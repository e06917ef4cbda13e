"""Sends messages without waiting for an answer."""

from __future__ import annotations

import random

from mq.client.errors import NoRoute
from mq.client.message import MessageQueue
from mq.client.metrics.recorder import Recorder
from mq.client.net.client_core import ClientCore
from mq.client.net.connection import Connection
from mq.client.net.leader_calls import leader_in
from mq.client.produce.outgoing_message import OutgoingMessage
from mq.client.produce.send_pipeline import send_fields
from mq.client.spans import SendSpan
from mq.protocol.codes import RequestCode


async def send_oneway(
    core: ClientCore,
    group: str,
    message: OutgoingMessage,
    queue: MessageQueue | None,
    *,
    auto_create_topics: bool,
    rng: random.Random,
    span: SendSpan | None,
    recorder: Recorder | None,
) -> None:
    """Send a message to `queue`, or to any. Raises TopicNotFound, NoRoute, ConnectFailed, NameServersUnavailable."""
    try:
        target, connection = await _choose_queue(core, message.topic, queue, rng, auto_create_topics=auto_create_topics)
    except BaseException as error:
        if span is not None:
            span.not_sent(error)
        if recorder is not None:
            recorder.not_awaited(message.topic, "not_stored")
        raise
    connection.send_oneway(RequestCode.SEND_MESSAGE_V2, send_fields(group, message, target), message.body)
    if span is not None:
        span.on_oneway()
    if recorder is not None:
        recorder.not_awaited(message.topic, "oneway")


async def _choose_queue(
    core: ClientCore, topic: str, queue: MessageQueue | None, rng: random.Random, *, auto_create_topics: bool
) -> tuple[MessageQueue, Connection]:
    """Choose a queue, and return it with the connection to its leader."""
    route = await core.route(topic, auto_create=auto_create_topics)
    queues = [queue] if queue else [each for each in route.write_queues if route.leader_address(each.broker_name)]
    if not queues:
        raise NoRoute(topic, "no writable queue has a leader")
    target = rng.choice(queues)
    return target, await core.connection(leader_in(route, target.broker_name))
