"""Serves routes and assignments: QueryRoute, QueryAssignment."""

from __future__ import annotations

from mq.proxy.brokers import Brokers
from mq.proxy.callers import Caller
from mq.proxy.mapping.names import group_of, topic_of
from mq.proxy.mapping.refusals import OK, CodedError
from mq.proxy.mapping.routes import assignments_of, queues_of, reads_lite
from mq.proxy.wire import messaging_pb2 as pb


class Routing:
    """Answers QueryRoute and QueryAssignment."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def query_route(self, request: pb.QueryRouteRequest, caller: Caller) -> pb.QueryRouteResponse:
        """Return the queues of a topic to users who may do anything with it. Raises CodedError, ClientError."""
        endpoints, name = _parse_endpoints(request.endpoints), topic_of(request.topic)
        await self._brokers.authorize(name, caller.extra)
        topic = await self._brokers.topic(name)
        return pb.QueryRouteResponse(status=OK, message_queues=queues_of(topic.route, topic.config, endpoints))

    async def query_assignment(self, request: pb.QueryAssignmentRequest, caller: Caller) -> pb.QueryAssignmentResponse:
        """Return the queues from which a member of a group receives. Raises CodedError, ClientError."""
        endpoints = _parse_endpoints(request.endpoints)
        name, group = topic_of(request.topic), group_of(request.group)
        await self._brokers.authorize(name, caller.extra)
        topic = await self._brokers.topic(name)
        config = await self._brokers.group(group)
        # One request covers all lite topics of a broker group.
        in_order = config is not None and config.consume_message_orderly and not reads_lite(topic.config, config)
        return pb.QueryAssignmentResponse(
            status=OK, assignments=assignments_of(topic.route, endpoints, in_order=in_order)
        )


def _parse_endpoints(endpoints: pb.Endpoints) -> pb.Endpoints:
    """Check and return the endpoints of a request. Raises CodedError."""
    if not endpoints.addresses:
        raise CodedError(pb.ILLEGAL_ACCESS_POINT, "the request does not say to which endpoints the client connects")
    return endpoints
