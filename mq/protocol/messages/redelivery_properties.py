"""The properties that tell the origin and failures of redelivered messages and dead letters. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mq.protocol import properties as props
from mq.protocol.messages.records import StoredMessage


def with_origin(message: StoredMessage, broker_name: str) -> dict[str, str]:
    """Return a message's properties with the place of the original added, unless it is a copy that has it already."""
    origin = {props.RETRY_TOPIC: message.topic, props.ORIGIN_MESSAGE_ID: message.offset_message_id}
    place = {
        props.ORIGIN_BROKER: broker_name,
        props.ORIGIN_QUEUE_ID: str(message.queue_id),
        props.ORIGIN_OFFSET: str(message.queue_offset),
    }
    return origin | message.properties | ({} if props.RETRY_TOPIC in message.properties else place)


def dead_letter(
    properties: Mapping[str, str],
    *,
    group: str,
    reason: str,
    attempts: int,
    now_ms: int,
    failure: str | None = None,
    given_up_by: str | None = None,
) -> dict[str, str]:
    """Return the properties of a group's dead letter, made from properties that `with_origin` returned.

    Args:
        reason: why the message was given up, in a few words.
        attempts: how often the message was delivered.
        now_ms: now, in epoch milliseconds.
        failure: the text of the last exception; by default, the copy may have one.
        given_up_by: the operator who gave it up, if one did.
    """
    own = {
        props.DEAD_GROUP: group,
        props.DEAD_REASON: props.safe_value(reason),
        props.DEAD_ATTEMPTS: str(attempts),
        props.DEAD_MS: str(now_ms),
    }
    if topic := properties.get(props.RETRY_TOPIC):
        own[props.DEAD_TOPIC] = topic
    if message_id := properties.get(props.ORIGIN_MESSAGE_ID):
        own[props.DEAD_MESSAGE_ID] = message_id
    if failure:
        own[props.FAILURE] = props.safe_value(failure)
    if given_up_by:
        own[props.DEAD_BY] = props.safe_value(given_up_by)
    earlier = {props.DELAY, props.DEAD_BY}
    return {name: value for name, value in properties.items() if name not in earlier} | own
