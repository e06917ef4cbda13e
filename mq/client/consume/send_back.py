"""Sends failed messages back to the brokers, to be retried or to become dead letters of the group."""

from __future__ import annotations

import os
import sys
import traceback
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

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
from mq.protocol.messages.compression import CODEC_MASK, COMPRESSED
from mq.protocol.messages.redelivery_properties import with_origin
from mq.protocol.names import retry_topic
from mq.protocol.requests.send import SendBackExt
from mq.protocol.send_fields import SEND_FIELDS
from mq.protocol.wire.fields import INT32_MAX

TAKE_SECONDS = 3.0
"""A leader that does not answer may have stored the message; then it is delivered twice."""
COPY_SECONDS = 2.0
FIRST_LEVEL = 3
"""Delay level before the first redelivery; each further one waits one level longer."""

LEVEL_SECONDS = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
"""The delay levels of brokers, unless they are configured otherwise."""

_NOT_COPIED = frozenset(
    {props.TRANSACTION_PREPARED, *props.TIMER_PROPERTIES, props.CLUSTER, props.MESSAGE_REGION, props.TRACE_ON}
)
"""Properties that are only meaningful for the original send, or set by each broker."""


@dataclass(slots=True)
class SentBack:
    """A message to send back, with the properties of the copy that the broker stores."""

    group: str
    message: ReceivedMessage[Any]
    max_reconsume_times: int | None
    failure: str | None
    delay_level: int = 0
    """0 grows with each attempt, -1 makes it a dead letter."""

    @property
    def attempts(self) -> int:
        """The number of deliveries of the message: by brokers, and again by this process."""
        return self.message.reconsume_times + self.message.attempt


def failure_text(error: BaseException) -> str:
    """Describe an exception for a dead letter: its type, text and place, limited in length."""
    try:
        text = str(error)
    except Exception:  # the application's own, and it is broken
        text = "without a text"
    place = ""
    if frames := traceback.extract_tb(error.__traceback__):
        origin = next((frame for frame in reversed(frames) if not _is_library(frame.filename)), frames[-1])
        place = f" ({os.path.basename(origin.filename)}:{origin.lineno} in {origin.name})"
    description = f"{type(error).__name__}: {text}" if text else type(error).__name__
    encoded_text = description.encode("utf-8", "replace")[: props.SAFE_BYTES_MAX - len(place.encode())]
    return props.safe_value(encoded_text.decode("utf-8", "ignore") + place)


def _is_library(path: str) -> bool:
    """Return whether the code belongs to Python or to an event loop, which raise errors that their callers caused."""
    if "site-packages" not in path and "dist-packages" not in path:
        return path.startswith((os.path.dirname(os.__file__) + os.sep, "<frozen "))
    loops = [loop.__file__ for name in ("anyio", "trio") if (loop := sys.modules.get(name)) is not None]
    return any(file is not None and path.startswith(os.path.dirname(file) + os.sep) for file in loops)


def _level_of(seconds: float) -> int:
    return min(bisect_left(LEVEL_SECONDS, seconds), len(LEVEL_SECONDS) - 1) + 1


async def give_back(
    core: ClientCore,
    group: str,
    message: ReceivedMessage[Any],
    *,
    max_reconsume_times: int | None,
    failure: str | None = None,
    is_dead: bool = False,
    seconds: float | None = None,
) -> bool:
    """Send `message` back. Returns whether a broker confirmed it; if False, a broker may still have stored it.

    First asks the message's own broker to take it back, then sends a copy to the group's retry topic at any broker
    group. The delay grows with each attempt. `max_reconsume_times` None uses the group's configuration. With `is_dead`
    it becomes a dead letter at once. With `seconds` it comes back after the first delay level that is not shorter, of
    the usual ones. `failure` is the text for the dead letter. Takes at most 5 s.
    """
    send_back = SentBack(group, message, max_reconsume_times=0 if is_dead else max_reconsume_times, failure=failure)
    send_back.delay_level = -1 if is_dead else 0 if seconds is None else _level_of(seconds)
    try:
        with anyio.fail_after(TAKE_SECONDS):
            await _ask_to_take(core, send_back)
            return True
    except TimeoutError:
        reason = f"no answer within {TAKE_SECONDS:g} s"
    except ClientError as error:
        reason = str(error)
    log.info("message_not_taken_back", message=message, reason=reason)
    try:
        with anyio.fail_after(COPY_SECONDS):
            await _send_copy(core, send_back)
            return True
    except TimeoutError:
        copy_reason = f"no answer within {COPY_SECONDS:g} s"
    except ClientError as error:
        copy_reason = str(error)
    log.warning("message_not_given_back", message=message, reason=reason, copy_refused=copy_reason)
    return False


async def _ask_to_take(core: ClientCore, send_back: SentBack) -> None:
    message = send_back.message
    ext = SendBackExt(
        physical_offset=message.record.physical_offset,
        group=send_back.group,
        delay_level=send_back.delay_level,
        original_message_id=message.offset_message_id,
        origin_topic=message.topic,
        max_reconsume_times=send_back.max_reconsume_times,
        failure=send_back.failure,
        attempts=send_back.attempts,
    )
    queue, code = message.queue, RequestCode.CONSUMER_SEND_MSG_BACK
    await call_leader(
        core, queue.topic, queue.broker_name, code, ext.fields(), seconds=TAKE_SECONDS, repeat=Repeat.NEVER
    )


async def _send_copy(core: ClientCore, send_back: SentBack) -> None:
    """Send the copy that the broker would have stored. Raises the ClientError of the last broker group tried."""
    message, group = send_back.message, send_back.group
    copy = _copy(send_back)
    times, times_max = SEND_FIELDS["reconsume_times"], SEND_FIELDS["max_reconsume_times"]
    attempt_counts = {times: str(min(message.reconsume_times + 1, INT32_MAX))}
    if send_back.delay_level < 0:
        attempt_counts = {times: str(min(send_back.attempts, INT32_MAX)), times_max: "0"}
    elif send_back.max_reconsume_times is not None:
        # Brokers compare it with the count in the stored copy, which includes this attempt.
        attempt_counts[times_max] = str(min(send_back.max_reconsume_times + 1, INT32_MAX))
    route = await core.route(copy.topic, refresh=True, auto_create=True)
    own = message.queue.broker_name
    failure: ClientError = NoRoute(copy.topic, "no queue is writable")
    # The group that did not take it back comes last.
    for name in sorted({queue.broker_name for queue in route.write_queues}, key=lambda name: (name == own, name)):
        try:
            address = leader_in(route, name)
            fields = send_fields(group, copy, MessageQueue(copy.topic, name, 0)) | attempt_counts
            await core.call(address, RequestCode.SEND_MESSAGE_V2, fields, copy.body)
        except RequestTimeout:
            raise  # it may be stored
        except ClientError as error:
            failure = error
        else:
            return
    raise failure


def _copy(request: SentBack) -> OutgoingMessage:
    message = request.message
    record = message.record
    record_properties = with_origin(record, message.queue.broker_name)
    properties = {name: value for name, value in record_properties.items() if name not in _NOT_COPIED}
    properties[props.RETRY_TOPIC] = message.topic
    level = request.delay_level if request.delay_level > 0 else FIRST_LEVEL + message.reconsume_times
    properties[props.DELAY] = str(level)
    if request.failure:
        properties[props.FAILURE] = request.failure
    return OutgoingMessage(
        topic=retry_topic(request.group),
        body=record.body,
        properties=props.encode(properties),
        sys_flag=record.sys_flag & (COMPRESSED | CODEC_MASK),
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp_ms,
        unique_key=message.message_id,
        sharding_key=message.sharding_key,
    )
