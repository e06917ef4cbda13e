"""Serves consumers that receive messages: ReceiveMessage."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import structlog
import trio

from mq.client.consume.popped_messages import PoppedMessage, read_popped, read_popped_lite
from mq.client.errors import BrokerError, ClientError, UnreadableAnswer
from mq.client.net.replies import LeftOut
from mq.filter.subscription import ALL_TAGS, SQL92, TAG, Subscription, SubscriptionError, parse_tags
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.lite import PopLiteExt
from mq.protocol.requests.pop import PopExt
from mq.protocol.requests.topics import TopicConfig
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Call, Caller, Fields, Identify, parse_request
from mq.proxy.clients import Clients
from mq.proxy.mapping.handles import Handle
from mq.proxy.mapping.incoming import message_of
from mq.proxy.mapping.names import group_of, topic_of
from mq.proxy.mapping.refusals import OK, CodedError, refusal_of
from mq.proxy.mapping.routes import ANY_QUEUE, reads_lite
from mq.proxy.mapping.settings import LITE, RECEIVE_BATCH_MAX, max_attempts
from mq.proxy.mapping.times import duration_ms, timestamp
from mq.proxy.renewals import HIDDEN_MS, Renewals
from mq.proxy.services.lite_subscribing import LiteSubscribing
from mq.proxy.services.settling import INVISIBLE_MS_MAX, PoppedMessages
from mq.proxy.wire import messaging_pb2 as pb

INVISIBLE_MS_MIN: Final = 10_000
POLL_SECONDS_MIN: Final = 5.0
POLL_SECONDS_MAX: Final = 20.0
_MARGIN_SECONDS: Final = 0.5
"""The time from the answer to the deadline of the call."""
_AGAIN_MS: Final = 1_000
"""A message that did not reach its client is delivered again after this time."""
_GIVE_BACK_SECONDS: Final = 5.0
_FROM_THE_END: Final = 1
_CODE_FOR_POLLING_SINCE: Final = (5, 0, 4)
_NOTHING: Final = frozenset(
    {
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    }
)

Log = structlog.stdlib.BoundLogger


class _Receive:
    """A validated ReceiveMessage request."""

    def __init__(self, request: pb.ReceiveMessageRequest, caller: Caller, settings: pb.Settings | None) -> None:
        self.group = group_of(request.group)
        self.topic = topic_of(request.message_queue.topic)
        self.broker_name = request.message_queue.broker.name
        self.queue_id = request.message_queue.id
        self.count = min(request.batch_size, RECEIVE_BATCH_MAX) if request.batch_size > 0 else RECEIVE_BATCH_MAX
        self.auto_renew = request.auto_renew
        self.attempt_id = request.attempt_id if request.HasField("attempt_id") else None
        self.caller = caller
        self.expression_type = SQL92 if request.filter_expression.type == pb.SQL else TAG
        self.expression = request.filter_expression.expression or ALL_TAGS
        self.subscription = _subscription(self.topic, self.expression) if self.expression_type == TAG else None
        self.invisible_ms = HIDDEN_MS if self.auto_renew else _invisible_ms(request)
        self.poll_seconds = poll_seconds(request, caller, settings, trio.current_time())
        self.kind = None if settings is None else settings.client_type
        self.lite = False

    def matches(self, message: PoppedMessage[Any]) -> bool:
        """Return whether a message matches the filter: brokers compare only hash codes of tags, clients nothing."""
        return self.subscription is None or self.subscription.matches_tag(message.tags)

    def find_lite(self, topic: TopicConfig, group: SubscriptionGroupConfig | None) -> None:
        """Find out whether the call is for lite topics, also of a client with unknown settings. Raises CodedError."""
        if self.kind is None:
            self.lite = group is not None and reads_lite(topic, group)
        else:
            self.lite = self.kind in LITE
        if self.lite and (self.expression_type, self.expression) != (TAG, ALL_TAGS):
            raise CodedError(pb.ILLEGAL_FILTER_EXPRESSION, f"consumers of lite topics have no filter but {ALL_TAGS}")

    def handle_of(self, message: PoppedMessage[Any]) -> Handle:
        """The handle of a message. An ordinary consumer of the parent has popped it from a queue of the parent."""
        lite_topic = (message.lite_topic or "") if self.lite else ""
        return Handle(message.receipt, message.record.physical_offset, lite_topic)


def _subscription(topic: str, expression: str) -> Subscription:
    """Return the tags of a subscription. Raises CodedError."""
    try:
        return parse_tags(topic, expression)
    except SubscriptionError as error:
        raise CodedError(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def _invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    invisible_ms = duration_ms(request.invisible_duration)
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise CodedError(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is {invisible_ms} ms; allowed: {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX}",
        )
    return invisible_ms


def poll_seconds(request: pb.ReceiveMessageRequest, caller: Caller, settings: pb.Settings | None, now: float) -> float:
    """Return for how many seconds a request waits for messages. Raises CodedError if its deadline is too near."""
    remaining_seconds = math.inf if caller.deadline is None else caller.deadline - now
    if request.HasField("long_polling_timeout"):
        seconds = duration_ms(request.long_polling_timeout) / 1000
    else:
        request_ms = (
            duration_ms(settings.request_timeout) if settings and settings.HasField("request_timeout") else 3000
        )
        seconds = remaining_seconds - request_ms / 2000
    seconds = min(max(seconds, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
    if seconds <= remaining_seconds - _MARGIN_SECONDS:
        return seconds
    if remaining_seconds < POLL_SECONDS_MIN:
        code = pb.ILLEGAL_POLLING_TIME if _version(caller.version) >= _CODE_FOR_POLLING_SINCE else pb.BAD_REQUEST
        raise CodedError(
            code, f"the deadline is in {max(remaining_seconds, 0):.1f} s; polling takes at least {POLL_SECONDS_MIN:g} s"
        )
    return remaining_seconds - _MARGIN_SECONDS


def _version(text: str) -> tuple[int, ...]:
    parts = text.lstrip("v").split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())


class _PopDelivery:
    """A pop for a call. Its messages are sent to the call, or returned to the broker if the call is over."""

    def __init__(self) -> None:
        self.messages: list[PoppedMessage[Any]] = []
        self.error: CodedError | None = None
        self.done_event = trio.Event()
        self.abandoned = False

    def abandon(self) -> None:
        """End the wait of the call. Messages that have come already are still for it."""
        if not self.done_event.is_set():
            self.abandoned = True
            self.done_event.set()


class Receiving:
    """Serves ReceiveMessage. If a call ends during its pop, the pop continues, and its messages are returned, so that
    they do not stay hidden.

    A pop continues although its call ends, and its messages are given back then: otherwise they would be hidden for
    nothing.

    Args:
        drain_event: set when the proxy is about to stop. Waiting calls end then, without messages: a proxy whose
            clients wait for messages would need the whole time for a stop, during which the clients have none.
        nursery: of the tasks that outlive a call.
    """

    def __init__(
        self,
        brokers: Brokers,
        popped_messages: PoppedMessages,
        renewals: Renewals,
        clients: Clients,
        lite: LiteSubscribing,
        identify: Identify,
        drain_event: trio.Event,
        nursery: trio.Nursery,
        wall_clock_ms: Callable[[], int],
        log: Log,
    ) -> None:
        self._brokers = brokers
        self._pops = popped_messages
        self._renewals = renewals
        self._clients = clients
        self._lite = lite
        self._identify = identify
        self._drain_event = drain_event
        self._deliveries: set[_PopDelivery] = set()
        self._giving_back = 0
        self._gave_back = trio.Event()
        self._nursery = nursery
        self._wall_clock_ms = wall_clock_ms
        self._log = log

    async def end_waiting_calls(self) -> None:
        """Wait until the proxy is about to stop. Then end the calls that wait for messages."""
        await self._drain_event.wait()
        for delivery in self._deliveries:
            delivery.abandon()

    async def wait_given_back(self) -> None:
        """Wait until no messages are being returned to brokers."""
        await trio.lowlevel.checkpoint()
        while self._giving_back:
            self._gave_back = trio.Event()
            await self._gave_back.wait()

    async def receive(self, call: Call) -> None:
        """Answer ReceiveMessage: a status, the messages, and the time of the answer."""
        request = parse_request(pb.ReceiveMessageRequest, await call.receive())
        try:
            caller = await self._identify(call)
            receive = _Receive(request, caller, self._clients.settings(caller.client_id))
            if receive.auto_renew:
                self._renewals.check_room(caller.client_id)
            messages = await self._pop(receive)
        except CodedError as error:
            await call.send(pb.ReceiveMessageResponse(status=error.status).SerializeToString())
            return
        except ClientError as error:
            await call.send(pb.ReceiveMessageResponse(status=refusal_of(error).status).SerializeToString())
            return
        if not messages:
            nothing = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
            await call.send(pb.ReceiveMessageResponse(status=nothing).SerializeToString())
            return
        await self._deliver(call, receive, messages)

    async def _deliver(self, call: Call, receive: _Receive, messages: list[PoppedMessage[Any]]) -> None:
        client_id, group = receive.caller.client_id, receive.group
        handles: list[Handle] = []
        try:
            await call.send(pb.ReceiveMessageResponse(status=OK).SerializeToString())
            for message in messages:
                handle = receive.handle_of(message)
                answer = message_of(
                    message, receive.topic, handle=handle.encode(), invisible_ms=message.receipt.invisible_ms
                )
                await call.send(pb.ReceiveMessageResponse(message=answer).SerializeToString())
                if receive.auto_renew:
                    self._renewals.hold(client_id, group, receive.topic, handle, receive.caller.extra, call)
                    handles.append(handle)
            now = timestamp(self._wall_clock_ms())
            await call.send(pb.ReceiveMessageResponse(delivery_timestamp=now).SerializeToString())
        except BaseException:
            # Clients drop all of an answer that breaks off.
            for handle in handles:
                self._renewals.forget(client_id, group, handle)
            self._start_giving_back(receive, messages)
            raise

    async def _pop(self, receive: _Receive) -> list[PoppedMessage[Any]]:
        """Pop messages, waiting for them in the background. Raises CodedError, ClientError."""
        topic = await self._brokers.topic(receive.topic)
        if receive.broker_name not in topic.route.brokers:
            raise CodedError(pb.BAD_REQUEST, f"the topic {receive.topic} has no broker {receive.broker_name}")
        config = await self._brokers.group(receive.group)
        receive.find_lite(topic.config, config)
        in_order = config is not None and config.consume_message_orderly
        attempts = None if config is None else max_attempts(config)
        deadline = trio.current_time() + receive.poll_seconds
        while True:
            if self._drain_event.is_set():
                return []
            delivery = _PopDelivery()
            seconds = max(deadline - trio.current_time(), 0.05)
            self._nursery.start_soon(self._pop_for, delivery, receive, in_order, seconds)
            self._deliveries.add(delivery)
            try:
                await delivery.done_event.wait()
            except BaseException:
                if delivery.done_event.is_set() and not delivery.abandoned:
                    self._start_giving_back(receive, delivery.messages)
                delivery.abandoned = True
                raise
            finally:
                self._deliveries.discard(delivery)
            if delivery.abandoned:
                return []
            if delivery.error is not None:
                raise delivery.error
            alive: list[PoppedMessage[Any]] = []
            for message in delivery.messages:
                if not receive.matches(message):
                    self._nursery.start_soon(self._pass_over, receive, message)
                elif attempts is not None and message.reconsume_times >= attempts:
                    self._nursery.start_soon(self._bury, receive, message)
                else:
                    alive.append(message)
            if alive or trio.current_time() + 0.1 >= deadline:
                return alive
            if not delivery.messages:
                return []

    async def _pop_for(self, delivery: _PopDelivery, receive: _Receive, in_order: bool, seconds: float) -> None:  # noqa: ASYNC910 - asking is a checkpoint, also when it fails
        def ext_for(left_ms: int) -> Fields:
            if receive.lite:
                return {**self._lite_ext(receive, left_ms).fields(), **receive.caller.extra}
            ext = PopExt(
                consumer_group=receive.group,
                topic=receive.topic,
                # Out of order, a client that names a queue gets messages of all, or it would wait at an empty one.
                queue_id=receive.queue_id if in_order else ANY_QUEUE,
                max_messages=receive.count,
                invisible_ms=receive.invisible_ms,
                poll_ms=left_ms,
                born_ms=self._wall_clock_ms(),
                init_mode=_FROM_THE_END,
                expression_type=receive.expression_type,
                expression=receive.expression,
                order=in_order,
                attempt_id=receive.attempt_id if in_order else None,
                client_id=receive.caller.client_id,
            )
            return {**ext.fields(), **receive.caller.extra}

        try:
            response = await self._ask(receive, ext_for, seconds)
            if response is not None:
                head, body = response
                if head.code == ResponseCode.SUCCESS:
                    left_out: list[LeftOut] = []
                    read = read_popped_lite if receive.lite else read_popped
                    delivery.messages = read(
                        receive.topic, receive.broker_name, head, body, math.inf, left_out=left_out
                    )
                    for queue, offset, body_error in left_out:
                        self._log.error("body_not_inflated", queue=queue, offset=offset, reason=str(body_error))
                elif head.code not in _NOTHING:
                    delivery.error = refusal_of(BrokerError(head.code, head.remark or "", receive.broker_name))
        except UnreadableAnswer as error:
            self._log.warning("pop_unreadable", broker=receive.broker_name, topic=receive.topic, reason=str(error))
            delivery.error = refusal_of(error)
        except ClientError as error:
            delivery.error = refusal_of(error)
        except CodedError as error:
            delivery.error = error
        finally:
            delivery.done_event.set()
        if delivery.abandoned:
            self._start_giving_back(receive, delivery.messages)

    async def _ask(
        self, receive: _Receive, ext_for: Callable[[int], Fields], seconds: float
    ) -> tuple[Response, memoryview] | None:
        """Works like `Brokers.ask_held`; sends the client's subscriptions to a broker that lacks them, and asks it
        again.

        Raises CodedError, ClientError.
        """
        code = RequestCode.POP_LITE_MESSAGE if receive.lite else RequestCode.POP_MESSAGE
        deadline = trio.current_time() + seconds
        while True:
            seconds_left = max(deadline - trio.current_time(), 0.05)
            response = await self._brokers.ask_held(
                receive.topic, receive.broker_name, code, ext_for, seconds=seconds_left
            )
            if response is None or not receive.lite or response[0].code != ResponseCode.SUBSCRIPTION_NOT_EXIST:
                return response
            if trio.current_time() >= deadline:
                return None
            await self._lite.say_again(receive.caller, receive.group, receive.topic, receive.broker_name)

    def _lite_ext(self, receive: _Receive, left_ms: int) -> PopLiteExt:
        return PopLiteExt(
            client_id=receive.caller.client_id,
            consumer_group=receive.group,
            topic=receive.topic,
            max_messages=receive.count,
            invisible_ms=receive.invisible_ms,
            poll_ms=left_ms,
            born_ms=self._wall_clock_ms(),
            attempt_id=receive.attempt_id,
            says_subscriptions=self._lite.knows(receive.caller, receive.group, receive.topic),
        )

    def _start_giving_back(self, receive: _Receive, messages: list[PoppedMessage[Any]]) -> None:
        """Give messages that did not reach the client back to the brokers, in the background."""
        if messages:
            self._giving_back += 1
            self._nursery.start_soon(self._give_back, receive, messages)

    async def _give_back(self, receive: _Receive, messages: list[PoppedMessage[Any]]) -> None:
        try:
            await self._give_back_each(receive, messages)
        finally:
            self._giving_back -= 1
            self._gave_back.set()

    async def _give_back_each(self, receive: _Receive, messages: list[PoppedMessage[Any]]) -> None:  # noqa: ASYNC910 - each message is a question
        for message in messages:
            handle = receive.handle_of(message)
            try:
                await self._pops.defer(
                    receive.group, receive.topic, handle, _AGAIN_MS, receive.caller.extra, _GIVE_BACK_SECONDS
                )
            except (ClientError, CodedError) as error:
                self._log.info("message_not_given_back", group=receive.group, topic=receive.topic, reason=str(error))

    async def _pass_over(self, receive: _Receive, message: PoppedMessage[Any]) -> None:  # noqa: ASYNC910 - asking is a checkpoint, also when it fails
        """Acknowledge a message of another tag with the same hash code, which the group does not subscribe to."""
        handle = receive.handle_of(message)
        try:
            await self._pops.acknowledge(receive.group, receive.topic, handle, receive.caller.extra, _GIVE_BACK_SECONDS)
        except (ClientError, CodedError) as error:  # it comes again, and is passed over then
            self._log.info("message_not_passed_over", group=receive.group, topic=receive.topic, reason=str(error))

    async def _bury(self, receive: _Receive, message: PoppedMessage[Any]) -> None:  # noqa: ASYNC910 - asking is a checkpoint, also when it fails
        """Make a message that has failed too often a dead letter."""
        handle = receive.handle_of(message)
        try:
            await self._pops.bury(receive.group, receive.topic, handle, message.message_id, receive.caller.extra)
        except (ClientError, CodedError) as error:  # it comes again after its invisible time
            self._log.warning("dead_letter_not_stored", group=receive.group, topic=receive.topic, reason=str(error))
