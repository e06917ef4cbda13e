"""Requests that store a message which is not the client's own as it stands: delayed, given back, dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mq.broker.appender import Appender
from mq.broker.pending import MadeRecord, NotStored, OnStored, PendingGroup, Sender, SendRequest, StoredAt
from mq.broker.refusal import RequestRefused
from mq.broker.tails import QueueTail
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.hashes import UniqKeyGenerator, tag_code
from mq.protocol.headers import ONEWAY_FLAG, SendReplyTemplate, encode_response
from mq.protocol.records import BORN_HOST_IPV6, STORE_HOST_IPV6, TRANSACTION_MASK

_CLIENT_FLAGS = ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | TRANSACTION_MASK)


def encode_properties(properties: dict[str, str]) -> bytes:
    """The properties of a record. Raises RequestRefused if they are too long."""
    encoded = props.encode(properties).encode()
    if len(encoded) > props.PROPERTIES_BYTES_MAX:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"properties of {len(encoded)} bytes, allowed are {props.PROPERTIES_BYTES_MAX}",
        )
    return encoded


def answer_when_stored(
    appender: Appender,
    sender: Sender,
    request: Any,
    body: bytes,
    serialization: int,
    render: Callable[[StoredAt], bytes],
) -> OnStored:
    """What answers ``request`` once its message is stored, with what ``render`` gives.

    A request whose message is certainly not stored is served once more by whoever leads now. When nobody knows, the
    connection is closed.
    """

    def on_stored(at: StoredAt | NotStored) -> None:
        if at is NotStored.UNKNOWN:
            sender.close("leadership was lost while a message was being stored")
        elif at is not NotStored.REFUSED:
            if not request.flag & ONEWAY_FLAG:
                sender.send(render(at))
        elif not appender.is_open:
            sender.dispatch(request, body, serialization)
        elif not request.flag & ONEWAY_FLAG:
            remark = "DISK_FULL: service not available now, the broker's disk is full"
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            sender.send(encode_response(request.opaque, code, remark=remark, serialization=serialization))

    return on_stored


class MadeSends:
    """Stores what clients send, in another queue or with other properties than they said, and answers them."""

    def __init__(
        self,
        *,
        appender: Appender,
        reply_template: SendReplyTemplate,
        unique_keys: UniqKeyGenerator,
        cluster: str,
        body_bytes_max: int,
    ) -> None:
        self._appender = appender
        self._reply_template = reply_template
        self._unique_keys = unique_keys
        self._cluster = cluster
        self._body_bytes_max = body_bytes_max

    def add(
        self,
        sender: Sender,
        request: SendRequest,
        body: bytes,
        serialization: int,
        *,
        tail: QueueTail,
        properties: dict[str, str],
        queue_id: int,
        before: PendingGroup | None = None,
        more: Callable[[StoredAt, str], dict[str, str]] | None = None,
    ) -> None:
        """Store the message at ``tail``, in one entry with the commands in ``before``.

        The answer names ``queue_id``, and the place where the message is; ``more`` makes further fields of it from that
        place and the message's unique key. Raises RequestRefused.
        """
        ext = request.ext
        if len(body) > self._body_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"body of {len(body)} bytes, allowed are {self._body_bytes_max}"
            )
        unique_key = properties.get(props.UNIQUE_KEY) or self._unique_keys.next()
        properties |= {props.UNIQUE_KEY: unique_key} | props.of_cluster(self._cluster)

        def render(at: StoredAt) -> bytes:
            return self._reply_template.render_batch(
                request.opaque,
                queue_id,
                at.queue_offset,
                [at.physical_offset],
                unique_key.encode(),
                serialization,
                None if more is None else more(at, unique_key),
            )

        record = MadeRecord(
            tail=tail,
            body=body,
            properties=encode_properties(properties),
            tag_code=tag_code(properties.get(props.TAGS, "")),
            flag=ext.flag,
            sys_flag=ext.sys_flag & _CLIENT_FLAGS,
            born_timestamp_ms=ext.born_timestamp_ms,
            born_host=sender.host,
            reconsume_times=ext.reconsume_times,
            on_stored=answer_when_stored(self._appender, sender, request, body, serialization, render),
        )
        self._appender.add_atomically([*(before or ()), record])
