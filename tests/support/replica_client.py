"""A connection of another replica, for a broker that is otherwise alone in its group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import msgspec

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.replication.peer_authentication import PeerAuthentication, PeerCall
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.raft_group import GroupCommand
from mq.protocol.requests.replicas import AuthenticateReplica
from raftlog.net.authentication import NONCE_BYTES
from raftlog.net.secret_file import read_secrets
from tests.support.running_broker import Answer, Client, RunningBroker

NODE = "n9"


SECRETS = (bytes(range(32)),)


def replica_authentication(node_id: str, address: str = "") -> PeerAuthentication:
    """The authentication of a replica in a group of n0 and n9, of the log "log", with `SECRETS`."""
    return PeerAuthentication(
        identity="log",
        node_id=node_id,
        address=address,
        secrets=lambda: SECRETS,
        members=lambda: ("n0", NODE),
        random_bytes=os.urandom,
    )


class ListenerSide:
    """The responses of a replica on one connection until the peer is authenticated."""

    def __init__(self, address: str) -> None:
        self.authentication: object = None
        self.trusted = False
        self.peer = "somewhere"
        self.shown_certificate: bytes | None = None
        self.admit = replica_authentication(NODE, address)

    def answer(self, request: AuthenticateReplica) -> bytes:
        """The response to request 9005."""
        return self.admit.handle(Call(cast("ClientConnection", self), request, b"", JSON))


def fields_of(frame: bytes) -> dict[str, str]:
    """The header fields of a request."""
    ((serialization, header, _),), _ = split_frames(memoryview(frame))
    fields: dict[str, str] = msgspec.to_builtins(decode_header(serialization, header))["extFields"]
    return fields


def as_response(answer: Answer) -> Response:
    """The response as `PeerCall` expects it."""
    return Response(opaque=0, flag=1, code=answer.code, remark=answer.remark, ext=answer.ext)


async def authenticate(
    broker: RunningBroker,
    client: Client,
    *,
    secrets: Sequence[bytes] | None = None,
    node_id: str = NODE,
    identity: str | None = None,
    address: str | None = None,
) -> Answer:
    """Prove that ``client`` is a replica of the group, or try to; returns the last response."""
    settings = broker.settings
    call = PeerCall(
        identity=identity or settings.identity,
        node_id=node_id,
        address=address or settings.listen,
        secrets=secrets or read_secrets(str(settings.secret_path)),
        nonce=os.urandom(NONCE_BYTES),
    )
    answer = await client.request(RequestCode.AUTHENTICATE_REPLICA, fields_of(call.initial_frame()))
    if answer.code != ResponseCode.SUCCESS:
        return answer
    proof = call.next_frame(as_response(answer))
    assert proof is not None
    return await client.request(RequestCode.AUTHENTICATE_REPLICA, fields_of(proof))


async def add_learner(client: Client, node_id: str = NODE) -> None:
    """Add a node that does not run as a member."""
    command = GroupCommand(action="add", node=node_id, address="127.0.0.1:1")
    answer = await client.request(RequestCode.MANAGE_GROUP, body=command.encode())
    assert answer.code == ResponseCode.SUCCESS, answer


async def connect_replica(broker: RunningBroker) -> Client:
    """A connection of a member, authenticated."""
    client = await broker.connect()
    await add_learner(client)
    answer = await authenticate(broker, client)
    assert answer.code == ResponseCode.SUCCESS, answer
    return client
