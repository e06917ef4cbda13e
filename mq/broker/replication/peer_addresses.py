"""Replicates the client addresses of all replicas, which followers report to the leader (request code 9004).

They are replicated metadata, so that every replica can call every other one, whichever leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.client_requests import NoResponse
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.replication.peer_calls import PeerCalls
from mq.broker.state.commands import PutReplica, encode_command
from mq.broker.state.table import CommandInvalid
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.replicas import AnnounceReplica, AnnounceReplicaExt
from raftlog import parse_address

ANSWER_SECONDS = 3.0
REPEAT_SECONDS = 1.0
"""An address that has not been applied after this time is reported again."""


_RUN_SECONDS = 0.1


class PeerAddresses(Service):
    """Reports this replica's client address to the leader; on the leader, replicates the reported addresses.

    Args:
        admit: raises RequestRefused unless the connection is a replica of this group.
    """

    def __init__(
        self, context: BrokerContext, *, calls: PeerCalls, admit: Callable[[ClientConnection, str], None]
    ) -> None:
        self._node_id = context.settings.node_id
        self._ext = AnnounceReplicaExt(
            identity=context.settings.identity,
            node_id=context.settings.node_id,
            address=context.replica_address,
        ).fields()
        self._metadata = context.metadata
        self._appender = context.appender
        self._calls = calls
        self._members = context.members
        self._address = context.replica_address
        self._leader_address = context.leader_address
        self._admit = admit
        self._clock = context.clock
        self._not_before = 0.0

    def routes(self) -> Iterator[Route]:
        yield Route(AnnounceReplica, self.handle)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_RUN_SECONDS, self.run, lambda: now_if(self._is_unknown))

    def handle(self, call: Call[AnnounceReplica]) -> bytes | None:
        """Request code 9004: replicate the client address of a replica. Raises RequestRefused."""
        ext = call.request.ext
        self._admit(call.connection, ext.identity)
        if not self._appender.is_open:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "this replica does not lead its group")
        if ext.node_id not in self._members():
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"{ext.node_id[:40]!r} is not a member of this group")
        if self._metadata.replicas.get(ext.node_id) != ext.address:
            try:
                parse_address(ext.address)
                command = encode_command(PutReplica(node_id=ext.node_id, address=ext.address))
            except (CommandInvalid, ValueError) as error:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
            self._appender.add_command(command)
        return call.response()

    @property
    def _is_unknown(self) -> bool:
        """Whether this replica is a follower whose client address is not replicated yet."""
        return self._metadata.replicas.get(self._node_id) != self._address and not self._appender.is_open

    def run(self) -> None:
        """Report this replica's client address if it is not replicated yet; called by a timer."""
        if not self._is_unknown:
            return
        now = self._clock()
        leader = self._leader_address()
        if leader is None or now < self._not_before or self._node_id not in self._members():
            return
        self._not_before = now + ANSWER_SECONDS + REPEAT_SECONDS
        self._calls.ask(leader, RequestCode.ANNOUNCE_REPLICA, self._ext, b"", ANSWER_SECONDS, self._on_response)

    def _on_response(self, response: Response | NoResponse, body: bytes) -> None:
        self._not_before = self._clock() + REPEAT_SECONDS
