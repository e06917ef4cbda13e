"""Asks a client for its subscriptions (request code 307) if its pulls have a newer version than its heartbeats.

RocketMQ 5 clients give a subscription a new version when their queues change, and send a heartbeat with it at once,
unless another heartbeat is in flight, which is always the case about a second after a consumer starts. Without this
request, the broker would refuse the consumer's pulls (code 25) until its next heartbeat 30 s later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mq.broker.net.client_requests import NoResponse
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.connection import ClientConnection
from mq.broker.net.heartbeat_limits import HeartbeatInvalid
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.relayed import RunningInfoExt, read_subscriptions

ANSWER_SECONDS = 3.0
BODY_BYTES_MAX = 128 * 1024
VALUES_MAX = 5_000
"""Maximum number of values in an answer, enough for 350 queues; parsing them takes 23 ms. A longer answer is ignored;
the client's next heartbeat has the same information.
"""


class SubscriptionRefresh:
    """Asks members of consumer groups for their subscriptions.

    Args:
        clock: monotonic seconds.
        pause_seconds: a client is queried again after this time at the earliest, or after its next heartbeat.
    """

    def __init__(
        self, *, clients: ClientRegistry[ClientConnection], clock: Callable[[], float], pause_seconds: float
    ) -> None:
        self._pause_seconds = pause_seconds
        self._clients = clients
        self._clock = clock

    def ask(self, connection: ClientConnection, group: str) -> None:
        """Ask the client behind ``connection``, if it is a member of the group and was not asked recently."""
        member = self._clients.member(connection, group)
        now = self._clock()
        if member is None or (member.asked_at is not None and now < member.asked_at + self._pause_seconds):
            return
        member.asked_at = now
        fields = RunningInfoExt(client_id=member.client_id, consumer_group=group).fields()
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        connection.ask(code, fields, b"", ANSWER_SECONDS, partial(self._on_response, connection, group))

    def _on_response(
        self, connection: ClientConnection, group: str, response: Response | NoResponse, body: bytes
    ) -> None:
        if not isinstance(response, Response) or response.code != ResponseCode.SUCCESS or len(body) > BODY_BYTES_MAX:
            return
        try:
            self._clients.update_subscriptions(connection, group, read_subscriptions(body, values_max=VALUES_MAX))
        except (BodyError, HeartbeatInvalid):
            return  # its next heartbeat is answered with what is wrong
