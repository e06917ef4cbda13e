"""Serves telemetry streams: Telemetry, Heartbeat, NotifyClientTermination; and passes on questions of brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from mq.client.errors import ClientError
from mq.client.net.connection import RespondLater, refuse_server_request
from mq.client.net.replies import received_messages
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.requests.lite import NotifyUnsubscribeLite
from mq.protocol.requests.relayed import ConsumeMessageDirectly, GetConsumerRunningInfo
from mq.protocol.requests.transactions import CheckTransactionState
from mq.protocol.wire.request import Request
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Call, Caller, Identify, parse_request
from mq.proxy.clients import Clients, TelemetryStream
from mq.proxy.grpc.status import BrokenCall, CallRefused, Status
from mq.proxy.mapping.handles import TransactionId
from mq.proxy.mapping.incoming import message_of
from mq.proxy.mapping.members import member_of
from mq.proxy.mapping.names import group_of, topic_of
from mq.proxy.mapping.refusals import OK, CodedError, refusal_of
from mq.proxy.mapping.routes import kinds_of
from mq.proxy.mapping.settings import CONSUMERS, LITE, PRODUCERS, merge_settings
from mq.proxy.renewals import Renewals
from mq.proxy.services.lite_subscribing import LiteSubscribing
from mq.proxy.services.member_questions import MemberQuestions, nonce_of_response
from mq.proxy.wire import messaging_pb2 as pb

TOPICS_MAX: Final = 256
"""Transaction topics of all clients of one proxy: the maximum of producer groups on one connection to a broker."""
_ANNOUNCE_SECONDS: Final = 1.0
_CHECKS_MAX: Final = 256
"""Questions on their way to clients; further ones are dropped, and brokers ask again."""

Log = structlog.stdlib.BoundLogger


class Telemetry:
    """Serves the Telemetry streams of clients.

    Args:
        drain_event: set when the proxy is about to stop.
        nursery: of the tasks that outlive a call.
    """

    def __init__(
        self,
        brokers: Brokers,
        clients: Clients,
        identify: Identify,
        renewals: Renewals,
        lite: LiteSubscribing,
        drain_event: trio.Event,
        nursery: trio.Nursery,
        wall_clock_ms: Callable[[], int],
        log: Log,
    ) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._questions = MemberQuestions(clients, nursery, log)
        self._announces = False
        self._brokers = brokers
        self._clients = clients
        self._identify = identify
        self._renewals = renewals
        self._lite = lite
        self._drain_event = drain_event
        self._nursery = nursery
        self._log = log
        self._checks = 0

    async def telemetry(self, call: Call) -> None:
        """Serve a stream until the client ends it. A proxy that stops ends it with UNAVAILABLE: the client then opens
        another stream, and sends its settings again.
        """
        try:
            caller = await self._identify(call)
        except CodedError as error:
            await call.send(pb.TelemetryCommand(status=error.status).SerializeToString())
            return
        except ClientError as error:
            await call.send(pb.TelemetryCommand(status=refusal_of(error).status).SerializeToString())
            return
        stream = TelemetryStream(call, caller.client_id, self._wall_clock_ms())
        self._clients.add_stream(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_at_drain, nursery.cancel_scope)
                await self._serve(call, stream, caller)
                nursery.cancel_scope.cancel()
        finally:
            self._clients.remove_stream(stream)
            if stream.member is not None:
                self._announce_soon()
        if self._drain_event.is_set():
            raise CallRefused(Status.UNAVAILABLE, "this proxy is about to stop: connect again")

    async def _cancel_at_drain(self, scope: trio.CancelScope) -> None:
        await self._drain_event.wait()
        scope.cancel()

    async def _serve(self, call: Call, stream: TelemetryStream, caller: Caller) -> None:
        while (data := await call.receive()) is not None:
            command = parse_request(pb.TelemetryCommand, data)
            if command.HasField("settings"):
                await stream.send(await self._settings(stream, command.settings, caller))
            elif (nonce := nonce_of_response(command)) is not None:
                stream.on_response(nonce, command)

    async def _settings(self, stream: TelemetryStream, own: pb.Settings, caller: Caller) -> pb.TelemetryCommand:
        """Return the answer to the settings of a client."""
        await trio.lowlevel.checkpoint()
        try:
            if own.HasField("subscription"):
                group = await self._brokers.group(group_of(own.subscription.group))
            else:
                group = None
            settings = merge_settings(own, group)
            if own.HasField("publishing"):
                await self._produces(stream, {topic_of(topic) for topic in own.publishing.topics}, caller)
            if own.HasField("subscription"):
                await self._consumes(stream, own, caller)
        except CodedError as error:
            return pb.TelemetryCommand(status=error.status)
        except ClientError as error:
            return pb.TelemetryCommand(status=refusal_of(error).status)
        stream.settings = settings
        return pb.TelemetryCommand(status=OK, settings=settings)

    async def _produces(self, stream: TelemetryStream, topics: set[str], caller: Caller) -> None:
        """Note the topics to which a producer may send transactional messages: brokers ask about these, and show the
        messages. So its user must have a permission for them.
        """
        await trio.lowlevel.checkpoint()
        transaction_topics: set[str] = set()
        for topic in topics:
            try:
                if pb.TRANSACTION in kinds_of((await self._brokers.topic(topic)).config):
                    await self._brokers.authorize(topic, caller.extra)
                    transaction_topics.add(topic)
            except ClientError as error:  # it may not exist yet; the first message to it will say so
                self._log.debug("topic_unknown", topic=topic, reason=str(error))
        known_topics = self._clients.transaction_topics()
        room = TOPICS_MAX - len(known_topics)
        new_topics = sorted(transaction_topics - known_topics)
        if len(new_topics) > room:
            self._log.error("too_many_transaction_topics", topics=len(known_topics) + len(new_topics), limit=TOPICS_MAX)
            transaction_topics -= set(new_topics[max(room, 0) :])
        if self._clients.produces(stream, frozenset(transaction_topics)):
            self._brokers.announce_clients()

    async def _consumes(self, stream: TelemetryStream, settings: pb.Settings, caller: Caller) -> None:
        """Record the group of a consumer, which brokers then show as a member. Its user must have the permissions."""
        await trio.lowlevel.checkpoint()
        try:
            member = member_of(settings, caller)
            await self._brokers.authorize_member(member.group, (row[0] for row in member.subscriptions), caller.extra)
        except (ClientError, CodedError) as error:  # a topic may not exist yet, and the client says its settings again
            self._log.debug("not_shown_as_member", client=caller.client_id, reason=str(error))
            return
        if member != stream.member:
            stream.member = member
            self._announce_soon()

    def _announce_soon(self) -> None:
        """Announce the changes of a second to the brokers together, because a heartbeat contains all clients."""
        if not self._announces:
            self._announces = True
            self._nursery.start_soon(self._announce)

    async def _announce(self) -> None:
        await trio.sleep(_ANNOUNCE_SECONDS)
        self._announces = False
        self._brokers.announce_clients()

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatResponse:
        """Record that the client is still connected. Raises CodedError for an unknown kind of client."""
        await trio.lowlevel.checkpoint()
        if request.client_type not in PRODUCERS | CONSUMERS | LITE:
            raise CodedError(pb.UNRECOGNIZED_CLIENT_TYPE, f"the client type {request.client_type} is unknown")
        return pb.HeartbeatResponse(status=OK)

    async def leave(
        self, request: pb.NotifyClientTerminationRequest, caller: Caller
    ) -> pb.NotifyClientTerminationResponse:
        """Remove a client that leaves, and return its messages to the brokers."""
        await trio.lowlevel.checkpoint()
        self._clients.on_leave(caller.client_id)
        self._lite.leave(caller)
        self._nursery.start_soon(self._renewals.release, caller.client_id)
        return pb.NotifyClientTerminationResponse(status=OK)

    # Questions of brokers.

    def answer_broker(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        """Answer a broker: a check-back, a question to a consumer, or the notice of a lost subscription."""
        if isinstance(request, NotifyUnsubscribeLite):
            self._lite.taken_over(request)
            return None
        if isinstance(request, GetConsumerRunningInfo | ConsumeMessageDirectly):
            return self._questions.respond(request, body, respond_later)
        if not isinstance(request, CheckTransactionState):
            return refuse_server_request(request, body, respond_later)
        if self._checks < _CHECKS_MAX:
            self._checks += 1
            self._nursery.start_soon(self._check, request, bytes(body))
        return None

    async def _check(self, request: CheckTransactionState, body: bytes) -> None:  # noqa: ASYNC910 - without a stream, no client is told
        try:
            [message] = received_messages("", memoryview(body))
            stream = self._clients.producer_of(message.topic)
            broker_name = request.ext.broker_name
            if stream is None or broker_name is None:
                return  # noqa: ASYNC910 - the client has gone, or the broker is of an older release
            transaction = TransactionId(
                broker_name,
                request.ext.half_queue_offset,
                request.ext.half_physical_offset,
                message.message_id,
            )
            command = pb.RecoverOrphanedTransactionCommand(
                message=message_of(message, message.topic), transaction_id=transaction.encode()
            )
            await stream.send(pb.TelemetryCommand(status=OK, recover_orphaned_transaction_command=command))
        except BrokenCall as error:  # asked again by the broker
            self._log.debug("check_not_sent", reason=str(error))
        except (ClientError, ValueError) as error:
            self._log.warning("check_unreadable", reason=str(error))
        finally:
            self._checks -= 1
