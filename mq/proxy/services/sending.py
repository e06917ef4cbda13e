"""Serves producers: SendMessage, RecallMessage, EndTransaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.client.errors import ClientError, SendRejected
from mq.client.message import SendResult
from mq.client.net.leader_calls import Repeat
from mq.client.net.replies import fields_of
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.recall_handle import HandleInvalid, RecallHandle
from mq.protocol.messages.records import COMMITTED, ROLLBACK
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.send import RecallExt, RecallReply
from mq.protocol.requests.transactions import EndTransactionExt
from mq.protocol.send_fields import SEND_FIELDS
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Caller
from mq.proxy.mapping.handles import TransactionId
from mq.proxy.mapping.names import topic_of
from mq.proxy.mapping.outgoing import Outgoing, encode
from mq.proxy.mapping.refusals import OK, CodedError, of_send_status, refusal_of, together
from mq.proxy.mapping.routes import check_kind
from mq.proxy.wire import messaging_pb2 as pb

SEND_SECONDS: Final = 10.0
"""The timeout of a call without a deadline."""
_RESOLUTIONS: Final = {pb.COMMIT: COMMITTED, pb.ROLLBACK: ROLLBACK}


class Sending:
    """Serves the calls of producers."""

    def __init__(self, brokers: Brokers, wall_clock_ms: Callable[[], int]) -> None:
        self._brokers = brokers
        self._wall_clock_ms = wall_clock_ms

    async def send(self, request: pb.SendMessageRequest, caller: Caller) -> pb.SendMessageResponse:
        """Store messages of one topic. Returns a status for each. Raises CodedError, ClientError."""
        if not request.messages:
            raise CodedError(pb.MESSAGE_CORRUPTED, "the request has no message")
        topics = {topic_of(message.topic) for message in request.messages}
        if len(topics) > 1:
            raise CodedError(pb.MESSAGE_CORRUPTED, f"the messages belong to {len(topics)} topics")
        [topic] = topics
        extra = {**caller.extra, SEND_FIELDS["producer_group"]: topic}
        now_ms = self._wall_clock_ms()
        messages = [encode(topic, each, peer=caller.peer, now_ms=now_ms, extra=extra) for each in request.messages]
        config = (await self._brokers.topic(topic)).config
        for message in messages:
            check_kind(topic, config, message.kind)
        seconds = caller.seconds_left(SEND_SECONDS)
        outcomes = await self._brokers.send([each.message for each in messages], seconds=seconds)
        entries = [_entry(message, outcome) for message, outcome in zip(messages, outcomes, strict=True)]
        return pb.SendMessageResponse(status=together(entry.status for entry in entries), entries=entries)

    async def recall(self, request: pb.RecallMessageRequest, caller: Caller) -> pb.RecallMessageResponse:
        """Recall a delayed message. Raises CodedError, ClientError."""
        topic = topic_of(request.topic)
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except HandleInvalid as error:
            raise CodedError(pb.BAD_REQUEST, str(error)) from error
        if handle.topic != topic:
            raise CodedError(pb.BAD_REQUEST, f"the recall handle is not one of the topic {topic}")
        if handle.broker_name not in (await self._brokers.topic(topic)).route.brokers:
            raise CodedError(pb.BAD_REQUEST, f"the topic {topic} has no broker {handle.broker_name[:64]!r}")
        ext = RecallExt(
            topic=topic, recall_handle=request.recall_handle, producer_group=topic, broker_name=handle.broker_name
        )
        response, _ = await self._brokers.ask(
            topic,
            handle.broker_name,
            RequestCode.RECALL_MESSAGE,
            {**ext.fields(), **caller.extra},
            seconds=caller.seconds_left(SEND_SECONDS),
            repeat=Repeat.UNLESS_CARRIED_OUT,
        )
        return pb.RecallMessageResponse(status=OK, message_id=fields_of(RecallReply, response).message_id)

    async def end_transaction(self, request: pb.EndTransactionRequest, caller: Caller) -> pb.EndTransactionResponse:
        """Commit a half message, or roll it back. Raises CodedError, ClientError."""
        topic = topic_of(request.topic)
        if not request.transaction_id.strip():
            raise CodedError(pb.INVALID_TRANSACTION_ID, "the request has no transaction id")
        if request.resolution not in _RESOLUTIONS:
            raise CodedError(pb.BAD_REQUEST, "the resolution is neither COMMIT nor ROLLBACK")
        place = TransactionId.decode(request.transaction_id)
        if place.broker_name not in (await self._brokers.topic(topic)).route.brokers:
            raise CodedError(pb.INVALID_TRANSACTION_ID, f"the topic {topic} has no broker {place.broker_name[:64]!r}")
        ext = EndTransactionExt(
            producer_group=topic,
            half_queue_offset=place.half_queue_offset,
            half_physical_offset=place.half_physical_offset,
            commit_or_rollback=_RESOLUTIONS[request.resolution],
            msg_id=place.unique_key,
            transaction_id=place.unique_key,
            topic=topic,
            from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
        )
        await self._brokers.ask(
            topic,
            place.broker_name,
            RequestCode.END_TRANSACTION,
            {**ext.fields(), **caller.extra},
            seconds=caller.seconds_left(SEND_SECONDS),
        )
        return pb.EndTransactionResponse(status=OK)


def _entry(message: Outgoing, outcome: SendResult | ClientError) -> pb.SendResultEntry:
    if isinstance(outcome, SendRejected) and outcome.code == ResponseCode.MESSAGE_ILLEGAL:
        code = pb.ILLEGAL_DELIVERY_TIME if message.kind == pb.DELAY else pb.BAD_REQUEST
        return pb.SendResultEntry(status=CodedError(code, str(outcome)).status)
    if isinstance(outcome, ClientError):
        return pb.SendResultEntry(status=refusal_of(outcome).status)
    return pb.SendResultEntry(
        status=of_send_status(outcome.status),
        message_id=outcome.message_id,
        transaction_id=_transaction_id(outcome) if message.kind == pb.TRANSACTION else "",
        offset=outcome.queue_offset,
        recall_handle=outcome.recall_handle or "",
    )


def _transaction_id(result: SendResult) -> str:
    return TransactionId(
        result.queue.broker_name,
        QueueOffset(result.queue_offset),
        parse_offset_message_id(result.offset_message_id).physical_offset,
        result.message_id,
    ).encode()
