"""Decodes headers for servers, which get requests of all families; see `headers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, reduce
from operator import or_
from typing import Final

import msgspec

from mq.protocol.frames import BINARY
from mq.protocol.incoming.headers import (
    RESPONSE,
    Response,
    UnknownRequest,
    decode_response,
    is_strict,
    read_loosely,
)
from mq.protocol.requests import (
    accounts,
    assignment,
    broker,
    bulk,
    clients,
    consumer_groups,
    deleted_topics,
    filters,
    group_progress,
    lite,
    many_queues,
    members,
    namesrv,
    offsets,
    pending,
    pop,
    pull,
    queries,
    quotas,
    raft_group,
    registration,
    relayed,
    removed_members,
    replicas,
    request_reply,
    schedules,
    send,
    topic_use,
    topics,
    transactions,
    users,
)
from mq.protocol.wire.request import Request


def decode_header(serialization: int, header: memoryview) -> Request | UnknownRequest | Response:
    """Decode the header of one frame. Bit 0 of its flag tells responses from requests.

    Raises:
        FrameError: these bytes are not a header at all.
        HeaderError: a required field is missing, or a field is not of its type.
    """
    if serialization != BINARY:
        try:
            # No request has code 0, and most responses have: one look tells which decoder will take it.
            if bytes(header[:10]) == b'{"code":0,':
                response = decode_response(header)
                if response.flag & RESPONSE:
                    return response
            else:
                request = typed_decoder()(header)
                if not request.flag & RESPONSE:
                    return request
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return read_loosely(serialization, header, _BY_CODE.get)


def _request_classes() -> Iterator[type[Request]]:
    for module in (
        assignment,
        broker,
        bulk,
        clients,
        consumer_groups,
        deleted_topics,
        filters,
        group_progress,
        lite,
        many_queues,
        members,
        namesrv,
        offsets,
        pending,
        pop,
        pull,
        queries,
        raft_group,
        registration,
        relayed,
        removed_members,
        replicas,
        request_reply,
        schedules,
        send,
        topic_use,
        topics,
        transactions,
        users,
        quotas,
        accounts,
    ):
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, Request) and each is not Request:
                yield each


REQUEST_CLASSES: Final = frozenset(_request_classes())
"""All requests that have a class."""
_BY_CODE: Final = {int(each.__struct_config__.tag): each for each in REQUEST_CLASSES}  # type: ignore[arg-type]
assert len(_BY_CODE) == len(REQUEST_CLASSES), "two request classes have the same code"


@cache
def typed_decoder() -> Callable[[memoryview | bytes], Request]:
    """Return the fast decoder for request headers in compact JSON. It raises MsgspecError, UnicodeDecodeError.

    It is made when first used: making it takes longer than importing the rest of this package.
    """
    return msgspec.json.Decoder(
        reduce(or_, (each for each in REQUEST_CLASSES if not is_strict(each))), strict=False
    ).decode
