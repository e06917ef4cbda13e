"""Assigns queues to the members of a consumer group: QUERY_ASSIGNMENT (400), request modes (401 and 402).

Java's push consumers use it with ``clientRebalance=false``. Other clients compute their share themselves, and pull.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mq.broker.consume.routes import Queues, Routes
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service, Task
from mq.broker.state.commands import CLIENT_ID_LENGTH_MAX
from mq.broker.state.request_modes import MODES_MAX, POP, PutRequestMode, RequestMode
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.names import RETRY_PREFIX, NameRefused, check_topic
from mq.protocol.requests.allocation import STRATEGIES, share_with_next
from mq.protocol.requests.assignment import (
    AssignmentQuery,
    GetAllMessageRequestMode,
    MessageRequestMode,
    MessageRequestModes,
    QueryAssignment,
    QueueAssignment,
    QueueAssignments,
    SetMessageRequestMode,
)
from mq.protocol.wire.queue_tables import QueueRef

BROADCASTING = "BROADCASTING"
ANY_QUEUE = -1


class Rebalance(Service):
    """Assigns queues to members of consumer groups, and sets and shows request modes.

    Args:
        ensure_group: creates an unknown group; raises RequestRefused for an invalid name.
    """

    def __init__(self, context: BrokerContext, *, routes: Routes, ensure_group: Callable[[str], None]) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._routes = routes
        self._read = context.reads.read
        self._consumer_ids = context.clients.consumer_ids
        self._removed_members = context.clients.removed_members
        self._clock = context.clock
        self._ensure_group = ensure_group

    def tasks(self) -> Iterator[Task]:
        yield self._routes.run

    def routes(self) -> Iterator[Route]:
        yield Route(QueryAssignment, self.handle_query)
        yield Route(GetAllMessageRequestMode, self.handle_modes)
        yield Route(SetMessageRequestMode, self.handle_set_mode, leader_only=True)

    def check_invariants(self) -> None:
        self._routes.check_invariants()

    def handle_query(self, call: Call[QueryAssignment]) -> None:
        """Request code 400: assign queues. Returns no assignment if the topic, group or strategy is unknown.

        Raises RequestRefused.
        """
        query = decode_body(AssignmentQuery.decode, call.body)
        for what, text in (
            ("consumer group", query.consumer_group),
            ("client id", query.client_id),
            ("strategy", query.strategy_name),
            ("message model", query.message_model),
        ):
            if len(text) > CLIENT_ID_LENGTH_MAX:  # it is kept until name servers have answered
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"the {what} has {len(text)} characters; maximum: {CLIENT_ID_LENGTH_MAX}",
                )

        def on_queues(queues: Queues | None) -> None:
            if call.connection.closed:
                return
            mode = self._metadata.request_modes.get(query.topic, query.consumer_group)
            own_queues: Sequence[QueueRef] | None = None
            if self._removed_members.get(query.consumer_group, query.client_id, self._clock()) is not None:
                own_queues = []  # None would let a Java client keep what it has
            elif queues is not None:
                members = sorted(self._consumer_ids(query.consumer_group))
                own_queues = assigned_queues(query, queues, members, mode)
            assignments = QueueAssignments(
                None if own_queues is None else [QueueAssignment(queue, mode.mode) for queue in own_queues]
            )
            call.answer(call.response(body=assignments.encode()))

        try:
            check_topic(query.topic)
        except NameRefused:
            on_queues(None)  # invalid: do not look it up or remember it
        else:
            self._routes.find(query.topic, on_queues)

    def handle_set_mode(self, call: Call[SetMessageRequestMode]) -> None:
        """Request code 401: set the mode of a group; respond once it is replicated. Raises RequestRefused."""
        mode = decode_body(MessageRequestMode.decode, call.body)
        topic, group = mode.topic, mode.consumer_group
        if topic.startswith(RETRY_PREFIX):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        command = encode(PutRequestMode(group=group, topic=topic, mode=mode.mode, shared=mode.pop_share_queue_num))
        if topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic} does not exist")
        if group not in self._metadata.groups:
            # Operators may set the mode of a group before it consumes for the first time.
            if not self._metadata.has_room_for_group(group):
                raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group {group} does not exist")
            self._ensure_group(group)

        def check() -> None:
            if not self._metadata.request_modes.has_room(topic, group):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"the broker has its maximum of {MODES_MAX} request modes"
                )

        check()
        replicate(self._appender, [command], call, what="a request mode", check=check)

    def handle_modes(self, call: Call[GetAllMessageRequestMode]) -> None:
        """Request code 402: list the modes that operators have set."""

        def respond() -> bytes:
            modes: dict[str, dict[str, MessageRequestMode]] = {}
            for (topic, group), mode in self._metadata.request_modes.table.items():
                modes.setdefault(topic, {})[group] = MessageRequestMode(topic, group, mode.mode, mode.shared)
            return call.response(body=MessageRequestModes(modes).encode())

        when_current(self._read, call, respond)


def assigned_queues(
    query: AssignmentQuery, queues: Sequence[QueueRef], members: Sequence[str], mode: RequestMode
) -> Sequence[QueueRef] | None:
    """Return a member's queues; None for an unknown strategy. Pass ``queues`` and ``members`` sorted.

    A member that pops from all queues of a broker group gets a single queue with the number -1.
    """
    if query.message_model == BROADCASTING:
        return queues
    strategy = STRATEGIES.get(query.strategy_name)
    if strategy is None or not members:
        return None
    if mode.mode != POP:
        own = strategy(queues, members, query.client_id)
        assert len(own) <= len(queues), f"{query.client_id} gets {len(own)} of {len(queues)} queues of {query.topic}"
        return own
    if mode.shared <= 0 or mode.shared >= len(members) - 1:
        return [QueueRef(query.topic, name, ANY_QUEUE) for name in sorted({queue.broker_name for queue in queues})]
    share = share_with_next(strategy, queues, members, query.client_id, mode.shared)
    assert len(set(share)) == len(share), f"{query.client_id} gets {len(share)} queues of {query.topic}, some twice"
    return share
