"""Sends dead letters again: to the group that gave them up, or to all groups that read their topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mq.client.errors import MessageRefused, NoRoute
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import Repeat, call_leader
from mq.client.produce.outgoing_message import OutgoingMessage
from mq.client.produce.send_pipeline import send_fields
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode
from mq.protocol.messages.compression import CODEC_MASK, COMPRESSED
from mq.protocol.names import retry_topic

REQUEUE_SECONDS = 10.0
"""Seconds for each message, with a change of the leader."""

_OF_THE_LETTER = frozenset(
    {
        *(props.DEAD_GROUP, props.DEAD_REASON, props.DEAD_ATTEMPTS, props.DEAD_MS, props.DEAD_BY, props.FAILURE),
        *(props.DEAD_TOPIC, props.DEAD_MESSAGE_ID, props.OMITTED, props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES),
        *(props.DELAY, *props.TIMER_PROPERTIES, props.TRANSACTION_PREPARED, props.POP_CK),
        *(props.CLUSTER, props.MESSAGE_REGION, props.TRACE_ON),
        *(props.PRODUCER_ID, props.SEQUENCE),  # with them, its topic would take the copy for a repeat
    }
)
"""Properties of a dead letter about itself, or for one send or one delivery only."""


def origin_topic(letter: ReceivedMessage[Any]) -> str | None:
    """Return the topic that a dead letter was sent to; None if its properties do not name it."""
    return letter.properties.get(props.DEAD_TOPIC) or letter.properties.get(props.RETRY_TOPIC)


async def requeue(
    core: ClientCore, group: str, letter: ReceivedMessage[Any], *, operator: str = "", to_topic: bool = False
) -> None:
    """Send a copy of a dead letter to ``group`` alone, or with ``to_topic`` to all groups that read its topic.

    The copy has the message id of the original, no attempts yet, and says who requeued it. The dead letter stays. It
    is stored in the broker group of the dead letter, waits at most `REQUEUE_SECONDS` for a leader, and raises
    MessageRefused if the letter does not say where it came from, and the errors of `call_leader`: if their ``stored``
    is "unknown", the copy may have been stored.
    """
    origin = origin_topic(letter)
    if origin is None:
        raise MessageRefused(f"the dead letter {letter.message_id} does not say which topic it was sent to")
    properties = {name: value for name, value in letter.properties.items() if name not in _OF_THE_LETTER}
    properties[props.REQUEUED_BY] = props.safe_value(operator)
    if to_topic:
        properties.pop(props.RETRY_TOPIC, None)
        properties.pop(props.FIRST_POP_TIME, None)  # else it says that the group pops, and the broker stores it so
    else:
        properties[props.RETRY_TOPIC] = origin
    topic = origin if to_topic else retry_topic(group)
    route = await core.route(topic, refresh=True, auto_create=not to_topic)
    queue = _queue(route.write_queues, letter)
    if queue is None:
        raise NoRoute(topic, "no queue is writable")
    record = letter.record
    copy = OutgoingMessage(
        topic=topic,
        body=record.body,
        properties=props.encode(properties),
        sys_flag=record.sys_flag & (COMPRESSED | CODEC_MASK),
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp_ms,
        unique_key=letter.message_id,
        sharding_key=letter.sharding_key,
    )
    code, fields = RequestCode.SEND_MESSAGE_V2, send_fields(group, copy, queue)
    repeat = Repeat.UNLESS_CARRIED_OUT
    await call_leader(core, topic, queue.broker_name, code, fields, copy.body, seconds=REQUEUE_SECONDS, repeat=repeat)


def _queue(queues: Sequence[MessageQueue], letter: ReceivedMessage[Any]) -> MessageQueue | None:
    """The queue that the message was in, which keeps the order of its key; without it, another one of its broker."""
    broker = letter.properties.get(props.ORIGIN_BROKER, letter.queue.broker_name)
    number = letter.properties.get(props.ORIGIN_QUEUE_ID, "0")
    own = [queue for queue in queues if queue.broker_name == broker] or queues
    if not own:
        return None
    return next((queue for queue in own if str(queue.queue_id) == number), own[0])
