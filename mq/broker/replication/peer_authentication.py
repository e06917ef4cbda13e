"""Authenticates replicas of a group to each other on the client port, with the secret of the group.

A replica that opens a connection to another one first sends request code 9005 twice: a call, which is answered with a
challenge, and a proof, with its node id and the address that it dialled. From then on this connection is trusted, but
not the host that it comes from, nor any other connection. For the messages and why they prove anything, see
`raftlog.net.authentication`. The address in the proof keeps an impostor on a replica's old address from relaying the
connection to another replica.

What is said on the connection later carries no tags of its own. Without TLS it is only as safe as the network in
between. With TLS, the proofs cover the certificate of the listener, as on the replication port
(`raftlog.net.replication_tls`): an attacker who shows another certificate, to read or to change messages, gets no proof
that either side accepts. Software from before format level 2 cannot do that, so replicas bind their proofs from that
level on.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.replicas import AuthenticateReplica, AuthenticateReplicaExt, ChallengeReply
from mq.protocol.wire.encoding import encode_request
from raftlog import ConfState
from raftlog.log_numbers import LogIndex
from raftlog.net import authentication
from raftlog.net.authentication import NONCE_BYTES, AuthenticationFailed, Keys, Seal
from raftlog.net.replication_tls import bound_purpose

PURPOSE: Final = b"client port, version 1"
_OPAQUE: Final = 0
"""The opaque of both requests; all other requests on such a connection count from 1."""


@dataclass(frozen=True, slots=True)
class _OpenChallenge:
    """A connection that got a challenge and has not proved itself yet."""

    keys: Keys


@dataclass(frozen=True, slots=True)
class _ProvenPeer:
    """A connection of replica ``node_id``, authenticated with the secret of this id."""

    node_id: str
    secret_id: bytes


class PeerAuthentication(Service):
    """Answers request 9005 of other replicas, and authenticates this replica to them.

    Args:
        identity: the identity of the replicated log.
        address: where other replicas reach this one's client port.
        secrets: the group secrets that are valid now.
        members: the node ids of the group.
        random_bytes: as many unpredictable bytes as asked for.
        tls: for connections to other replicas; None for those without TLS.
        binds: whether all replicas can bind their proofs to certificates, and must.
    """

    def __init__(
        self,
        *,
        identity: str,
        node_id: str,
        address: str,
        secrets: Callable[[], Sequence[bytes]],
        members: Callable[[], Collection[str]],
        random_bytes: Callable[[int], bytes],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        binds: Callable[[], bool] = lambda: True,
    ) -> None:
        self.tls = tls
        self._binds = binds
        self._identity = identity
        self._node_id = node_id
        self._address = address
        self._secrets = secrets
        self._members = members
        self._random_bytes = random_bytes
        self._last_secrets: Sequence[bytes] = ()
        self._valid_ids: frozenset[bytes] = frozenset()

    def routes(self) -> Iterator[Route]:
        yield Route(AuthenticateReplica, self.handle)

    def handle(self, call: Call[AuthenticateReplica]) -> bytes:
        """Request code 9005: authenticate a replica. Raises RequestRefused, without details if the proof is wrong."""
        ext = call.request.ext
        before, call.connection.authentication, call.connection.trusted = call.connection.authentication, None, False
        try:
            if ext.call:
                nonce = self._random_bytes(NONCE_BYTES)
                peer_call = bytes.fromhex(ext.call)
                certificate = call.connection.shown_certificate
                if certificate is not None and not ext.bound and self._binds():
                    raise AuthenticationFailed("the proof is not bound to the certificate")
                purpose = bound_purpose(PURPOSE, certificate if ext.bound else None)
                challenge, keys = authentication.challenge(purpose, peer_call, nonce, self._secrets())
                call.connection.authentication = _OpenChallenge(keys)
                return call.response(ext=ChallengeReply(challenge=challenge.hex()).fields())
            if not isinstance(before, _OpenChallenge):
                raise AuthenticationFailed("the proof came before a challenge was sent")
            proof = _proof(before.keys, ext.identity, ext.node_id, ext.address)
            if not hmac.compare_digest(proof, bytes.fromhex(ext.proof)):
                raise AuthenticationFailed("the proof is wrong")
        except (AuthenticationFailed, ValueError) as error:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "authentication failed") from error
        if (ext.identity, ext.address) != (self._identity, self._address):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"this replica has the log {self._identity} at {self._address}, but the request is for {ext.identity} "
                f"at {ext.address}",
            )
        if ext.node_id not in self._members() or ext.node_id == self._node_id:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"{ext.node_id[:40]!r} is not one of the other members of this group"
            )
        call.connection.authentication = _ProvenPeer(ext.node_id, before.keys.secret_id)
        call.connection.trusted = True
        return call.response()

    def admit(self, connection: ClientConnection, identity: str) -> None:
        """Raise RequestRefused unless the connection is another replica of this group, and asks for this log."""
        proof = connection.authentication
        if not connection.trusted or not isinstance(proof, _ProvenPeer) or not self._is_valid(proof.secret_id):
            connection.trusted = False
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the connection from {connection.peer} is not authenticated as a replica"
            )
        if identity != self._identity:
            reason = f"this replica has the log {self._identity}, but the request is for {identity}"
            raise RequestRefused(ResponseCode.NO_PERMISSION, reason)

    def members_changed(self, index: LogIndex, conf: ConfState, connections: Iterable[ClientConnection]) -> None:
        """Stop trusting the connections of replicas that are no members any more."""
        members = self._members()
        for connection in connections:
            proof = connection.authentication
            if isinstance(proof, _ProvenPeer) and proof.node_id not in members:
                connection.trusted = False

    def call(self, address: str, *, uses_tls: bool) -> PeerCall:
        """Start to authenticate this replica on a new connection to the replica at ``address``."""
        return PeerCall(
            bound=uses_tls and self._binds(),
            identity=self._identity,
            node_id=self._node_id,
            address=address,
            secrets=tuple(self._secrets()),
            nonce=self._random_bytes(NONCE_BYTES),
        )

    def _is_valid(self, secret_id: bytes) -> bool:
        secrets = self._secrets()
        if secrets is not self._last_secrets:
            self._last_secrets = secrets
            self._valid_ids = frozenset(map(authentication.secret_id, secrets))
        return secret_id in self._valid_ids


class PeerCall:
    """Computes the frames with which a caller authenticates; if ``bound``, for the listener's certificate only."""

    def __init__(
        self,
        *,
        identity: str,
        node_id: str,
        address: str,
        secrets: Sequence[bytes],
        nonce: bytes,
        bound: bool = False,
    ) -> None:
        self._is_bound = bound
        self._identity_fields = (identity, node_id, address)
        self._secrets = secrets
        self._call = authentication.call(nonce, secrets)
        self._challenged = False

    def initial_frame(self) -> bytes:
        """Return the frame to send first."""
        ext = AuthenticateReplicaExt(call=self._call.hex(), bound=self._is_bound)
        return encode_request(RequestCode.AUTHENTICATE_REPLICA, _OPAQUE, ext=ext.fields())

    def next_frame(self, response: Response, certificate: bytes | None = None) -> bytes | None:
        """Return the frame to send next; None once both sides are authenticated.

        Args:
            certificate: the one (DER) that the listener has shown; None without TLS.

        Raises:
            AuthenticationFailed: the other side is not a replica of this group, or does not accept this one.
        """
        if response.opaque != _OPAQUE or response.code != ResponseCode.SUCCESS:
            raise AuthenticationFailed(response.remark or f"code {response.code}")
        if self._challenged:
            return None
        try:
            challenge = bytes.fromhex(response.ext.get("challenge", ""))
        except ValueError as error:
            raise AuthenticationFailed(f"the challenge cannot be read: {error}") from error
        purpose = bound_purpose(PURPOSE, certificate if self._is_bound else None)
        keys = authentication.accept(purpose, self._call, challenge, self._secrets)
        self._challenged = True
        identity, node_id, address = self._identity_fields
        proof = _proof(keys, *self._identity_fields).hex()
        ext = AuthenticateReplicaExt(proof=proof, identity=identity, node_id=node_id, address=address)
        return encode_request(RequestCode.AUTHENTICATE_REPLICA, _OPAQUE, ext=ext.fields())


def _proof(keys: Keys, identity: str, node_id: str, address: str) -> bytes:
    return Seal(keys.caller).tag(msgspec.json.encode((identity, node_id, address)))
