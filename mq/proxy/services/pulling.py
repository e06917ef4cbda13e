"""Serves consumers that pull queues themselves: PullMessage, UpdateOffset, GetOffset, QueryOffset."""

from __future__ import annotations

from typing import Final

from mq.client.errors import BrokerError, ClientError
from mq.client.net.replies import fields_of, received_messages
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.offsets import (
    OffsetReply,
    QueryConsumerOffsetExt,
    QueueExt,
    SearchOffsetExt,
    UpdateConsumerOffsetExt,
)
from mq.protocol.requests.pull import PullExt, PullReply
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Call, Caller, Fields, Identify, parse_request
from mq.proxy.mapping.incoming import message_of
from mq.proxy.mapping.names import group_of, topic_of
from mq.proxy.mapping.refusals import OK, CodedError, refusal_of
from mq.proxy.mapping.settings import LONG_POLLING_MS, RECEIVE_BATCH_MAX
from mq.proxy.mapping.times import TIME_MS_MAX, duration_ms, timestamp_ms
from mq.proxy.wire import messaging_pb2 as pb

_MAY_BE_HELD: Final = 2
_SUBSCRIPTION_HERE: Final = 4
_NOTHING: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})
_ENDS: Final = {pb.BEGINNING: RequestCode.GET_MIN_OFFSET, pb.END: RequestCode.GET_MAX_OFFSET}


class _RequestedQueue:
    """Parses the queue of a request. Raises CodedError."""

    def __init__(self, queue: pb.MessageQueue) -> None:
        self.topic = topic_of(queue.topic)
        self.broker_name = queue.broker.name
        self.queue_id = queue.id
        if not self.broker_name:
            raise CodedError(pb.BAD_REQUEST, "the queue has no broker")


class Pulling:
    """Serves the calls of pull consumers."""

    def __init__(self, brokers: Brokers, identify: Identify) -> None:
        self._brokers = brokers
        self._identify = identify

    async def pull(self, call: Call) -> None:
        """Answer PullMessage: a status, the messages, and the offset at which to pull next."""
        request = parse_request(pb.PullMessageRequest, await call.receive())
        try:
            answers = await self._pull(request, await self._identify(call))
        except CodedError as error:
            answers = [pb.PullMessageResponse(status=error.status)]
        except ClientError as error:
            answers = [pb.PullMessageResponse(status=refusal_of(error).status)]
        for answer in answers:
            await call.send(answer.SerializeToString())

    async def _pull(self, request: pb.PullMessageRequest, caller: Caller) -> list[pb.PullMessageResponse]:
        group, queue = group_of(request.group), _RequestedQueue(request.message_queue)
        offset = _parse_offset(request.offset)
        if queue.broker_name not in (await self._brokers.topic(queue.topic)).route.brokers:
            raise CodedError(pb.BAD_REQUEST, f"the topic {queue.topic} has no broker {queue.broker_name}")
        count = min(request.batch_size, RECEIVE_BATCH_MAX) if request.batch_size > 0 else RECEIVE_BATCH_MAX
        seconds = min(max(duration_ms(request.long_polling_timeout), 0), LONG_POLLING_MS) / 1000

        def ext_for(left_ms: int) -> Fields:
            ext = PullExt(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_messages=count,
                sys_flag=_SUBSCRIPTION_HERE | (_MAY_BE_HELD if seconds else 0),
                commit_offset=QueueOffset(0),
                suspend_timeout_ms=left_ms,
                sub_version=0,
                subscription=request.filter_expression.expression or "*",
                expression_type="SQL92" if request.filter_expression.type == pb.SQL else "TAG",
            )
            return {**ext.fields(), **caller.extra}

        response = await self._brokers.ask_held(
            queue.topic,
            queue.broker_name,
            RequestCode.PULL_MESSAGE,
            ext_for,
            seconds=max(caller.seconds_left(seconds), 1.0),
        )
        nothing = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
        if response is None:
            return [pb.PullMessageResponse(status=nothing), pb.PullMessageResponse(next_offset=offset)]
        head, body = response
        if head.code == ResponseCode.SUCCESS or head.code in _NOTHING:
            status = OK if head.code == ResponseCode.SUCCESS else nothing
            messages = received_messages(queue.broker_name, body) if head.code == ResponseCode.SUCCESS else []
            return [
                pb.PullMessageResponse(status=status),
                *(pb.PullMessageResponse(message=message_of(message, queue.topic)) for message in messages),
                pb.PullMessageResponse(next_offset=fields_of(PullReply, head).next_begin_offset),
            ]
        refusal = refusal_of(BrokerError(head.code, head.remark, queue.broker_name))
        answers = [pb.PullMessageResponse(status=refusal.status)]
        if head.code == ResponseCode.PULL_OFFSET_MOVED:  # where it can go on
            reply = fields_of(PullReply, head)
            answers.append(pb.PullMessageResponse(next_offset=reply.next_begin_offset))
        return answers

    async def update_offset(self, request: pb.UpdateOffsetRequest, caller: Caller) -> pb.UpdateOffsetResponse:
        """Store the offset of a group in a queue. Raises CodedError, ClientError."""
        group, queue = group_of(request.group), _RequestedQueue(request.message_queue)
        ext = UpdateConsumerOffsetExt(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=_parse_offset(request.offset),
        )
        await self._brokers.ask(
            queue.topic, queue.broker_name, RequestCode.UPDATE_CONSUMER_OFFSET, {**ext.fields(), **caller.extra}
        )
        return pb.UpdateOffsetResponse(status=OK)

    async def get_offset(self, request: pb.GetOffsetRequest, caller: Caller) -> pb.GetOffsetResponse:
        """Return the stored offset of a group. Raises CodedError, ClientError."""
        group, queue = group_of(request.group), _RequestedQueue(request.message_queue)
        ext = QueryConsumerOffsetExt(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        offset = await self._offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, {**ext.fields(), **caller.extra})
        return pb.GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(self, request: pb.QueryOffsetRequest, caller: Caller) -> pb.QueryOffsetResponse:
        """Return the first or next offset of a queue, or its offset at a time. Raises CodedError, ClientError."""
        queue = _RequestedQueue(request.message_queue)
        if request.query_offset_policy == pb.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise CodedError(pb.BAD_REQUEST, "query_offset_policy is TIMESTAMP, but timestamp is not set")
            time_ms = timestamp_ms(request.timestamp)
            if not 0 <= time_ms <= TIME_MS_MAX:
                raise CodedError(pb.BAD_REQUEST, f"the time is {time_ms} ms; allowed: 0 to {TIME_MS_MAX}")
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            fields = SearchOffsetExt(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=time_ms).fields()
        elif request.query_offset_policy in _ENDS:
            code = _ENDS[request.query_offset_policy]
            fields = QueueExt(topic=queue.topic, queue_id=queue.queue_id).fields()
        else:
            raise CodedError(pb.BAD_REQUEST, f"the offset policy {request.query_offset_policy} is unknown")
        offset = await self._offset(queue, code, {**fields, **caller.extra})
        return pb.QueryOffsetResponse(status=OK, offset=offset)

    async def _offset(self, queue: _RequestedQueue, code: int, fields: Fields) -> int:
        response, _ = await self._brokers.ask(queue.topic, queue.broker_name, code, fields)
        return fields_of(OffsetReply, response).offset


def _parse_offset(offset: int) -> QueueOffset:
    """Check the offset of a pull. Raises CodedError."""
    if offset < 0:
        raise CodedError(pb.ILLEGAL_OFFSET, f"the offset is {offset}; allowed: 0 or more")
    return QueueOffset(offset)
