"""Requests about the queues that a broker assigns to group members, and whether these pull or pop."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.queue_tables import QueueRef
from mq.protocol.wire.request import Request


class QueryAssignment(Request, tag=int(Code.QUERY_ASSIGNMENT)):
    """Request code 400: return the queues of the group member in the body."""


class AssignmentQuery(Body, rename=wire()):
    """A group member that asks for its queues (body of request code 400)."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class QueueAssignment(Body, rename=wire()):
    """A queue, and whether the member shall PULL or POP it. Queue id -1 means any queue of the broker group."""

    message_queue: QueueRef
    mode: str = "PULL"


class QueueAssignments(Body, rename=wire(assignments="messageQueueAssignments")):
    """The assigned queues (response to 400). None: unknown, so that the member keeps its previous queues."""

    assignments: list[QueueAssignment] | None = None


class SetMessageRequestMode(Request, tag=int(Code.SET_MESSAGE_REQUEST_MODE)):
    """Request code 401: set whether a group pulls or pops the messages of a topic, as the body says."""


class MessageRequestMode(Body, rename=wire()):
    """Whether a group pulls or pops the messages of a topic (request code 401)."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: I32 = 0


class GetAllMessageRequestMode(Request, tag=int(Code.GET_ALL_MESSAGE_REQUEST_MODE)):
    """Request code 402: return all request modes that were set."""


class MessageRequestModes(Body, rename=wire(modes="messageRequestModeMap")):
    """The request modes by topic and group (request code 402)."""

    modes: dict[str, dict[str, MessageRequestMode]] = msgspec.field(default_factory=dict)
