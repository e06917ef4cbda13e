"""Maps the methods of the gRPC service to the objects that serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from mq.client.net.connection import RespondLater
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.wire.request import Request
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Method, unary
from mq.proxy.clients import Clients
from mq.proxy.identification import Identification
from mq.proxy.mapping.authorization import AllowedTimes
from mq.proxy.renewals import Renewals
from mq.proxy.services.lite_subscribing import LiteSubscribing
from mq.proxy.services.pulling import Pulling
from mq.proxy.services.receiving import Receiving
from mq.proxy.services.routing import Routing
from mq.proxy.services.sending import Sending
from mq.proxy.services.settling import PoppedMessages, Settling
from mq.proxy.services.telemetry import Telemetry
from mq.proxy.wire import messaging_pb2 as pb

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"

Log = structlog.stdlib.BoundLogger


class ServiceTable:
    """Maps each gRPC method to the object that serves it.

    Args:
        nursery: of the tasks that outlive a call.
        drain_event: set when the proxy is about to stop.
        allowed_times: which times of signatures are accepted; None if clients need none.
    """

    def __init__(
        self,
        brokers: Brokers,
        clients: Clients,
        nursery: trio.Nursery,
        drain_event: trio.Event,
        wall_clock_ms: Callable[[], int],
        log: Log,
        *,
        allowed_times: AllowedTimes | None,
    ) -> None:
        self._identification = Identification(brokers, clients, wall_clock_ms, allowed_times)
        identify = self._identification.caller_of
        pops = PoppedMessages(brokers, wall_clock_ms)
        self.clients = clients
        self.renewals = Renewals(pops.defer, clients.is_here, log)
        self._lite = LiteSubscribing(brokers, clients, nursery, log)
        self._telemetry = Telemetry(
            brokers, clients, identify, self.renewals, self._lite, drain_event, nursery, wall_clock_ms, log
        )
        self._routing = Routing(brokers)
        self._sending = Sending(brokers, wall_clock_ms)
        self._pulling = Pulling(brokers, identify)
        self._settling = Settling(pops, self.renewals)
        self._receiving = Receiving(
            brokers,
            pops,
            self.renewals,
            clients,
            self._lite,
            identify,
            drain_event,
            nursery,
            wall_clock_ms,
            log,
        )

    async def run(self) -> None:
        """Keep messages hidden while clients handle them. When the proxy is about to stop, end waiting calls."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.renewals.run)
            nursery.start_soon(self._receiving.end_waiting_calls)

    async def wait_given_back(self) -> None:
        """Wait until all messages that did not reach their clients were returned to their brokers."""
        await self._receiving.wait_given_back()

    def methods(self) -> Mapping[str, Method]:
        """Return the methods of the service by path."""
        caller = self._identification.caller_of
        routing, sending, settling, telemetry = self._routing, self._sending, self._settling, self._telemetry
        pulling = self._pulling
        return {
            f"{SERVICE}QueryRoute": unary(
                pb.QueryRouteRequest, caller, routing.query_route, lambda s: pb.QueryRouteResponse(status=s)
            ),
            f"{SERVICE}QueryAssignment": unary(
                pb.QueryAssignmentRequest,
                caller,
                routing.query_assignment,
                lambda s: pb.QueryAssignmentResponse(status=s),
            ),
            f"{SERVICE}Heartbeat": unary(
                pb.HeartbeatRequest, caller, telemetry.heartbeat, lambda s: pb.HeartbeatResponse(status=s)
            ),
            f"{SERVICE}SendMessage": unary(
                pb.SendMessageRequest, caller, sending.send, lambda s: pb.SendMessageResponse(status=s)
            ),
            f"{SERVICE}RecallMessage": unary(
                pb.RecallMessageRequest, caller, sending.recall, lambda s: pb.RecallMessageResponse(status=s)
            ),
            f"{SERVICE}EndTransaction": unary(
                pb.EndTransactionRequest, caller, sending.end_transaction, lambda s: pb.EndTransactionResponse(status=s)
            ),
            f"{SERVICE}ReceiveMessage": self._receiving.receive,
            f"{SERVICE}AckMessage": unary(
                pb.AckMessageRequest, caller, settling.acknowledge, lambda s: pb.AckMessageResponse(status=s)
            ),
            f"{SERVICE}ChangeInvisibleDuration": unary(
                pb.ChangeInvisibleDurationRequest,
                caller,
                settling.change_invisible,
                lambda s: pb.ChangeInvisibleDurationResponse(status=s),
            ),
            f"{SERVICE}ForwardMessageToDeadLetterQueue": unary(
                pb.ForwardMessageToDeadLetterQueueRequest,
                caller,
                settling.forward_to_dead_letters,
                lambda s: pb.ForwardMessageToDeadLetterQueueResponse(status=s),
            ),
            f"{SERVICE}PullMessage": pulling.pull,
            f"{SERVICE}UpdateOffset": unary(
                pb.UpdateOffsetRequest, caller, pulling.update_offset, lambda s: pb.UpdateOffsetResponse(status=s)
            ),
            f"{SERVICE}GetOffset": unary(
                pb.GetOffsetRequest, caller, pulling.get_offset, lambda s: pb.GetOffsetResponse(status=s)
            ),
            f"{SERVICE}QueryOffset": unary(
                pb.QueryOffsetRequest, caller, pulling.query_offset, lambda s: pb.QueryOffsetResponse(status=s)
            ),
            f"{SERVICE}Telemetry": telemetry.telemetry,
            f"{SERVICE}NotifyClientTermination": unary(
                pb.NotifyClientTerminationRequest,
                caller,
                telemetry.leave,
                lambda s: pb.NotifyClientTerminationResponse(status=s),
            ),
            f"{SERVICE}SyncLiteSubscription": unary(
                pb.SyncLiteSubscriptionRequest,
                caller,
                self._lite.sync,
                lambda s: pb.SyncLiteSubscriptionResponse(status=s),
            ),
        }

    def answer_broker(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        """Answer a request from a broker (`mq.client.net.connection.OnServerRequest`)."""
        return self._telemetry.answer_broker(request, body, respond_later)
