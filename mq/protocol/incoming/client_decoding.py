"""Decodes headers for clients, to which brokers send responses and eight kinds of requests.

A client imports the families of these when such a request comes, and no others: all of them together take several MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.frames import BINARY
from mq.protocol.incoming.headers import RESPONSE, Response, UnknownRequest, decode_response, read_loosely
from mq.protocol.wire.request import Request


def decode_from_broker(serialization: int, header: memoryview) -> Request | UnknownRequest | Response:
    """Decode the header of one frame. Bit 0 of its flag tells responses from requests; a request that no client handles
    becomes an `UnknownRequest`.

    Raises:
        FrameError: these bytes are not a header at all.
        HeaderError: a required field is missing, or a field is not of its type.
    """
    if serialization != BINARY:
        try:
            response = decode_response(header)
            if response.flag & RESPONSE:
                return response
            if (kind := _class_of(response.code)) is not None:
                return _decoder(kind)(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return read_loosely(serialization, header, _class_of)


@cache
def _decoder(kind: type[Request]) -> Callable[[memoryview], Request]:
    return msgspec.json.Decoder(kind, strict=False).decode


def _class_of(code: int) -> type[Request] | None:
    if code == Code.NOTIFY_CONSUMER_IDS_CHANGED:
        from mq.protocol.requests.clients import NotifyConsumerIdsChanged

        return NotifyConsumerIdsChanged
    if code == Code.CHECK_TRANSACTION_STATE:
        from mq.protocol.requests.transactions import CheckTransactionState

        return CheckTransactionState
    if code == Code.PUSH_REPLY_MESSAGE_TO_CLIENT:
        from mq.protocol.requests.request_reply import PushReplyMessageToClient

        return PushReplyMessageToClient
    if code == Code.RESET_CONSUMER_CLIENT_OFFSET:
        from mq.protocol.requests.group_progress import ResetConsumerClientOffset

        return ResetConsumerClientOffset
    if code == Code.GET_CONSUMER_STATUS_FROM_CLIENT:
        from mq.protocol.requests.relayed import GetConsumerStatusFromClient

        return GetConsumerStatusFromClient
    if code == Code.GET_CONSUMER_RUNNING_INFO:
        from mq.protocol.requests.relayed import GetConsumerRunningInfo

        return GetConsumerRunningInfo
    if code == Code.CONSUME_MESSAGE_DIRECTLY:
        from mq.protocol.requests.relayed import ConsumeMessageDirectly

        return ConsumeMessageDirectly
    if code == Code.NOTIFY_UNSUBSCRIBE_LITE:
        from mq.protocol.requests.lite import NotifyUnsubscribeLite

        return NotifyUnsubscribeLite
    return None
