"""Delays messages, and recalls them before they are delivered."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from mq.client.errors import BrokerError, MessageRefused, NotRecalled
from mq.client.message import Message
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import Repeat, call_leader
from mq.client.net.replies import fields_of
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.delay import LEVELS_MAX
from mq.protocol.messages.recall_handle import HandleInvalid, RecallHandle
from mq.protocol.requests.send import RecallExt, RecallReply

_SECONDS_MAX = 10**11
"""The limit between seconds and milliseconds: as milliseconds a time in 1973, which no sender means."""


def delay_properties(message: Message) -> dict[str, str]:
    """Return the properties that tell the broker when to deliver `message`; empty for now. Raises MessageRefused."""
    if message.delay_level is None and message.delay is None and message.deliver_at is None:
        return {}
    names = [name for name in ("delay_level", "delay", "deliver_at") if getattr(message, name) is not None]
    if len(names) > 1:
        raise MessageRefused(f"set only one of {' and '.join(names)}")
    if message.delay_level is not None:
        level: Any = message.delay_level
        if not (isinstance(level, int) and 1 <= level <= LEVELS_MAX):
            raise MessageRefused(f"delay level {level!r} is not a whole number from 1 to {LEVELS_MAX}")
        return {props.DELAY: str(message.delay_level)}
    if message.delay is not None:
        if not isinstance(message.delay, int | float):
            raise MessageRefused(f"delay is a number of seconds, not {message.delay!r}")
        if not (math.isfinite(message.delay) and message.delay >= 0):
            raise MessageRefused(f"delay is {message.delay}; it is a number of seconds, 0 or more")
        return {props.TIMER_DELAY_MS: str(math.ceil(message.delay * 1000))}
    at = message.deliver_at
    if isinstance(at, dt.datetime):
        if at.tzinfo is None:
            raise MessageRefused(f"deliver_at is {at}, which has no time zone")
        return {props.TIMER_DELIVER_MS: str(math.ceil(at.timestamp() * 1000))}
    if not isinstance(at, int):
        raise MessageRefused(f"deliver_at is a datetime or a whole number of milliseconds, not {at!r}")
    if 0 < at < _SECONDS_MAX:
        raise MessageRefused(f"deliver_at is {at}, which looks like seconds since the epoch; pass milliseconds")
    return {props.TIMER_DELIVER_MS: str(at)}


async def recall(core: ClientCore, group: str, handle: str, *, seconds: float) -> str:
    """Recall the message of a handle; returns its id. Raises the errors of `Producer.recall`.

    Attempts that certainly had no effect are retried while there is time.
    """
    try:
        target = RecallHandle.decode(handle)
    except HandleInvalid as error:
        raise MessageRefused(str(error)) from error
    ext = RecallExt(topic=target.topic, recall_handle=handle, producer_group=group, broker_name=target.broker_name)
    try:
        response, _ = await call_leader(
            core,
            target.topic,
            target.broker_name,
            RequestCode.RECALL_MESSAGE,
            ext.fields(),
            seconds=seconds,
            repeat=Repeat.UNLESS_CARRIED_OUT,
        )
    except BrokerError as error:
        if error.code == ResponseCode.ILLEGAL_OPERATION:
            raise NotRecalled(error.code, error.remark, error.address) from None
        raise
    return fields_of(RecallReply, response).message_id
