"""Parses fields and bodies of answers. Malformed ones raise UnreadableAnswer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mq.client.errors import CodecNotInstalled, UnreadableAnswer
from mq.client.logs import log
from mq.client.message import MessageQueue, ReceivedMessage
from mq.protocol.errors import ProtocolError, ReplyError
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.compression import CodecMissing, DecompressionError, inflate
from mq.protocol.messages.records import decode_records
from mq.protocol.wire.reply import Reply, read_reply

INFLATED_BYTES_MAX = 64 * 1024 * 1024

T = TypeVar("T")
ReplyT = TypeVar("ReplyT", bound=Reply)


class LeftOut(NamedTuple):
    """A message whose body this client cannot read."""

    queue: MessageQueue
    queue_offset: int
    error: CodecNotInstalled


def fields_of(kind: type[ReplyT], response: Response) -> ReplyT:
    """Parse the header fields of an answer. Raises UnreadableAnswer."""
    try:
        return read_reply(kind, response.ext)
    except ReplyError as error:
        raise UnreadableAnswer(f"code {response.code}: {error}") from error


def read_body(decode: Callable[[memoryview], T], body: memoryview) -> T:
    """Decode the body of an answer with `decode`. Raises UnreadableAnswer."""
    try:
        return decode(body)
    except ProtocolError as error:
        raise UnreadableAnswer(str(error)) from error


def received_messages(
    broker_name: str, body: memoryview, left_out: list[LeftOut] | None = None
) -> list[ReceivedMessage]:
    """Convert stored records to messages. A body that cannot be inflated stays as it is stored.

    A message whose codec is not installed raises CodecNotInstalled; or, given `left_out`, it is added to that list
    instead of the result. Raises UnreadableAnswer.
    """
    messages = []
    for record in read_body(decode_records, body):
        queue = MessageQueue(record.topic, broker_name, record.queue_id)
        try:
            content = inflate(record.sys_flag, record.body, INFLATED_BYTES_MAX)
        except DecompressionError as error:
            log.error("body_not_inflated", offset=record.physical_offset, reason=str(error))
            content = record.body
        except CodecMissing as error:
            codec_error = CodecNotInstalled(error)
            if left_out is None:
                raise codec_error from error
            left_out.append(LeftOut(queue, record.queue_offset, codec_error))
            continue
        messages.append(ReceivedMessage(record, queue, content))
    return messages
