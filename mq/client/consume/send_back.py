"""Sends failed messages back to the brokers: for a retry, or to the group's dead letter topic."""

from __future__ import annotations

import anyio

from mq.client.errors import ClientError, NoRoute, RequestTimeout
from mq.client.logs import log
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import Repeat, call_leader, leader_in
from mq.client.produce.outgoing_message import OutgoingMessage
from mq.client.produce.send_pipeline import send_fields
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode
from mq.protocol.compression import CODEC_MASK, COMPRESSED
from mq.protocol.names import retry_topic
from mq.protocol.requests import SendBackExt
from mq.protocol.wire_names import INT32_MAX

__all__ = ["give_back"]

TAKE_SECONDS = 3.0
"""A leader that does not answer may have stored the message; then it is delivered twice."""
COPY_SECONDS = 2.0
FIRST_LEVEL = 3
"""Delay level before the first redelivery; each further one waits one level longer."""

_NOT_COPIED = frozenset(
    {props.TRANSACTION_PREPARED, *props.TIMER_PROPERTIES, props.CLUSTER, props.MESSAGE_REGION, props.TRACE_ON}
)
"""Only meaningful for the original send, or set by each broker."""


async def give_back(
    remoting: ClientCore, group: str, message: ReceivedMessage, *, max_reconsume_times: int | None
) -> bool:
    """Returns whether a broker has `message` for redelivery. If False, a broker may have it all the same.

    First asks the message's own broker to take it back, then sends a copy to the group's retry topic at any broker
    group. The delay grows with each attempt. `max_reconsume_times` None uses the group's configuration. Takes at most 5
    s.
    """
    try:
        with anyio.fail_after(TAKE_SECONDS):
            await _ask_to_take(remoting, group, message, max_reconsume_times)
            return True
    except TimeoutError:
        reason = f"no answer within {TAKE_SECONDS:g} s"
    except ClientError as error:
        reason = str(error)
    log.info("message_not_taken_back", message=message, reason=reason)
    try:
        with anyio.fail_after(COPY_SECONDS):
            await _send_copy(remoting, group, message, max_reconsume_times)
            return True
    except TimeoutError:
        copy_reason = f"no answer within {COPY_SECONDS:g} s"
    except ClientError as error:
        copy_reason = str(error)
    log.warning("message_not_given_back", message=message, reason=reason, copy_refused=copy_reason)
    return False


async def _ask_to_take(
    remoting: ClientCore, group: str, message: ReceivedMessage, max_reconsume_times: int | None
) -> None:
    ext = SendBackExt(
        physical_offset=message.record.physical_offset,
        group=group,
        delay_level=0,
        original_message_id=message.offset_message_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
    )
    queue, code = message.queue, RequestCode.CONSUMER_SEND_MSG_BACK
    await call_leader(
        remoting, queue.topic, queue.broker_name, code, ext.fields(), seconds=TAKE_SECONDS, repeat=Repeat.NEVER
    )


async def _send_copy(
    remoting: ClientCore, group: str, message: ReceivedMessage, max_reconsume_times: int | None
) -> None:
    """Send the copy that the broker would have stored. Raises the ClientError of the last broker group tried."""
    copy = _copy(group, message)
    counted = {"j": str(min(message.reconsume_times + 1, INT32_MAX))}
    if max_reconsume_times is not None:
        # Brokers compare it with the count in the stored copy, which includes this attempt.
        counted["l"] = str(min(max_reconsume_times + 1, INT32_MAX))
    route = await remoting.route(copy.topic, refresh=True, auto_create=True)
    own = message.queue.broker_name
    failure: ClientError = NoRoute(copy.topic, "no queue is writable")
    # The group that did not take it back comes last.
    for name in sorted({queue.broker_name for queue in route.write_queues}, key=lambda name: (name == own, name)):
        try:
            address = leader_in(route, name)
            fields = send_fields(group, copy, MessageQueue(copy.topic, name, 0)) | counted
            await remoting.call(address, RequestCode.SEND_MESSAGE_V2, fields, copy.body)
        except RequestTimeout:
            raise  # it may be stored
        except ClientError as error:
            failure = error
        else:
            return
    raise failure


def _copy(group: str, message: ReceivedMessage) -> OutgoingMessage:
    record = message.record
    properties = {name: value for name, value in record.properties.items() if name not in _NOT_COPIED}
    properties.setdefault(props.ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[props.RETRY_TOPIC] = message.topic
    properties[props.DELAY] = str(FIRST_LEVEL + message.reconsume_times)
    return OutgoingMessage(
        topic=retry_topic(group),
        body=record.body,
        properties=props.encode(properties),
        sys_flag=record.sys_flag & (COMPRESSED | CODEC_MASK),
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp_ms,
        unique_key=message.message_id,
        sharding_key=message.sharding_key,
    )
