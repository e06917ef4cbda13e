"""A client is asked for its subscriptions (request code 307) when its pulls know a newer version than its heartbeats.

Clients of RocketMQ 5 give a subscription a new version when their queues change, and send a heartbeat with it at once;
but not if another heartbeat is under way, and about a second after the start of a consumer one always is. Without this
question, brokers would refuse the consumer's pulls (code 25) until its next heartbeat 30 s later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mq.broker.net.client_requests import NoAnswer
from mq.broker.net.clients import ClientRegistry, HeartbeatRefused
from mq.broker.net.connection import ClientConnection
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.group_bodies import read_subscriptions
from mq.protocol.group_requests import RunningInfoExt
from mq.protocol.headers import Response

ANSWER_SECONDS = 3.0
PAUSE_SECONDS = 5.0
"""A client is asked again after this time at the earliest, or after its next heartbeat."""
BODY_BYTES_MAX = 128 * 1024
VALUES_MAX = 5_000
"""Of an answer, enough for 350 queues; reading so much takes 23 ms. A longer one is ignored, and the client's next
heartbeat awaited."""


class SubscriptionRefresh:
    """Asks members of consumer groups for their subscriptions.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clients: ClientRegistry[ClientConnection], clock: Callable[[], float]) -> None:
        self._clients = clients
        self._clock = clock

    def ask(self, connection: ClientConnection, group: str) -> None:
        """Ask the client behind ``connection``, unless it is not a member of the group or was asked just now."""
        member = self._clients.member(connection, group)
        now = self._clock()
        if member is None or (member.asked_at is not None and now < member.asked_at + PAUSE_SECONDS):
            return
        member.asked_at = now
        fields = RunningInfoExt(client_id=member.client_id, consumer_group=group).fields()
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        connection.ask(code, fields, b"", ANSWER_SECONDS, partial(self._answered, connection, group))

    def _answered(self, connection: ClientConnection, group: str, response: Response | NoAnswer, body: bytes) -> None:
        if not isinstance(response, Response) or response.code != ResponseCode.SUCCESS or len(body) > BODY_BYTES_MAX:
            return
        try:
            self._clients.update_subscriptions(connection, group, read_subscriptions(body, values_max=VALUES_MAX))
        except (BodyError, HeartbeatRefused):
            return  # its next heartbeat is answered with what is wrong
