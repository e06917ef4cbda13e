"""Authenticates replicas: both sides prove to each other that they know the group's secret.

The caller opens a connection, and both sides exchange these messages once::

    caller    CALL       its nonce, and the ids of its secrets
    listener  CHALLENGE  its nonce, the id of the chosen secret, and its proof
    caller    the first frame under its key: its identity
    listener  the first frame under its own key: its answer

- A nonce is 32 random bytes and is used for one connection.
- A proof is HMAC-SHA256 under the secret over the purpose of the connection and all previous messages,
  including both nonces and the format version. Proofs and keys of the two sides have different labels, so that
  messages of one side cannot be reflected.
- Each side has a key for the connection, derived in the same way. A frame under a key (`Seal`) carries a tag over its
  place in the sequence and its content. The first frame of the caller is its proof: no one else has the key, and it
  names its recipient, so that it cannot be relayed to another replica of the group.
- Before the caller has authenticated, it learns only whether the listener has one of its secrets.

A *secret* is 32 random bytes. A replica may have two while one is being replaced; the listener chooses the first of its
own that the caller has, too. The id of a secret is derived from it by HMAC-SHA256 and reveals nothing about it.

Pure: nonces are arguments.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Buffer = bytes | memoryview

SECRET_BYTES: Final = 32
SECRETS_MAX: Final = 2
"""Valid at the same time: the current one, and the one that it replaces."""
NONCE_BYTES: Final = 32
TAG_BYTES: Final = 16
"""Bytes of the tag after each frame under a key."""

_ID_BYTES: Final = 8
_PROOF_BYTES: Final = 32
_DIRECT_BYTES_MAX: Final = 2048
"""Longer parts of a frame enter a tag by their SHA-256, which processors compute faster than BLAKE2."""
_PLACE = struct.Struct(">QI")
CHALLENGE_BYTES: Final = NONCE_BYTES + _ID_BYTES + _PROOF_BYTES


class AuthenticationFailed(Exception):
    """The other side did not prove that it knows the secret of this group. Its messages are discarded."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys on which both sides agree: one for each direction."""

    secret_id: bytes
    caller: bytes
    listener: bytes


def secret_id(secret: bytes) -> bytes:
    """Return the id of a secret: 8 bytes, which do not reveal the secret."""
    return _mac(secret, b"id")[:_ID_BYTES]


def call(nonce: bytes, secrets: Sequence[bytes]) -> bytes:
    """Return the caller's first message. ``secrets`` are the caller's, at most `SECRETS_MAX`."""
    assert len(nonce) == NONCE_BYTES, f"a nonce of {len(nonce)} bytes"
    assert 0 < len(secrets) <= SECRETS_MAX, f"{len(secrets)} secrets"
    return nonce + b"".join(map(secret_id, secrets))


def challenge(purpose: bytes, call_payload: bytes, nonce: bytes, secrets: Sequence[bytes]) -> tuple[bytes, Keys]:
    """Return the listener's answer to ``call_payload``, and the keys of the connection.

    Raises:
        AuthenticationFailed: ``call_payload`` is malformed, or the caller has none of ``secrets``.
    """
    assert len(nonce) == NONCE_BYTES, f"a nonce of {len(nonce)} bytes"
    count, rest = divmod(len(call_payload) - NONCE_BYTES, _ID_BYTES)
    if rest or not 0 < count <= SECRETS_MAX:
        raise AuthenticationFailed(
            f"a call of {len(call_payload)} bytes is malformed: expected a nonce and 1 to {SECRETS_MAX} secret ids"
        )
    theirs = {call_payload[NONCE_BYTES + _ID_BYTES * n : NONCE_BYTES + _ID_BYTES * (n + 1)] for n in range(count)}
    common_secret = next((secret for secret in secrets if secret_id(secret) in theirs), None)
    if common_secret is None:
        raise AuthenticationFailed("the caller uses a different group secret")
    nonce_and_id = nonce + secret_id(common_secret)
    proof = _proof(common_secret, purpose, call_payload, nonce_and_id)
    return nonce_and_id + proof, _keys(common_secret, purpose, call_payload, nonce_and_id)


def accept(purpose: bytes, call_payload: bytes, challenge_payload: bytes, secrets: Sequence[bytes]) -> Keys:
    """The keys of the connection for the caller, which sent ``call_payload`` and received ``challenge_payload``.

    Raises:
        AuthenticationFailed: the listener has none of ``secrets``, or its proof is wrong.
    """
    if not challenge_payload:
        raise AuthenticationFailed("the peer does not accept the group secret of this replica")
    if len(challenge_payload) != CHALLENGE_BYTES:
        raise AuthenticationFailed(f"the challenge has {len(challenge_payload)} bytes; expected: {CHALLENGE_BYTES}")
    nonce_and_id, proof = challenge_payload[:-_PROOF_BYTES], challenge_payload[-_PROOF_BYTES:]
    common_secret = next((secret for secret in secrets if secret_id(secret) == nonce_and_id[NONCE_BYTES:]), None)
    if common_secret is None:
        raise AuthenticationFailed("the peer uses a different group secret")
    if not hmac.compare_digest(proof, _proof(common_secret, purpose, call_payload, nonce_and_id)):
        raise AuthenticationFailed("the peer does not have the group secret that it names")
    return _keys(common_secret, purpose, call_payload, nonce_and_id)


class Seal:
    """Tags of the frames in one direction of a connection: one object creates them, one on the other side checks them.

    A frame that is altered, omitted, repeated or reordered has another tag.
    """

    __slots__ = ("_count", "_start")

    def __init__(self, key: bytes) -> None:
        self._start = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._count = 0

    def tag(self, first: Buffer, last: Buffer = b"") -> bytes:
        """Return the tag of the next frame. ``first`` and ``last`` are the parts that it covers."""
        state = self._start.copy()
        state.update(_PLACE.pack(self._count, len(first)))
        self._count += 1
        state.update(first if len(first) <= _DIRECT_BYTES_MAX else hashlib.sha256(first).digest())
        if last:
            state.update(last if len(last) <= _DIRECT_BYTES_MAX else hashlib.sha256(last).digest())
        return state.digest()

    def forget_last(self) -> None:
        """Forget the last tag, whose frame is not sent: the next frame gets its number."""
        self._count -= 1

    def check(self, tag: Buffer, first: Buffer, last: Buffer = b"") -> None:
        """Raise `AuthenticationFailed` unless ``tag`` is the next frame's; then the connection is unusable."""
        if not hmac.compare_digest(self.tag(first, last), tag):
            raise AuthenticationFailed(f"frame {self._count - 1} of the connection was altered or is not from the peer")


def _mac(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over ``parts``, each preceded by its length."""
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in (b"raftmq", *parts)), "sha256")


def _proof(secret: bytes, purpose: bytes, call_payload: bytes, nonce_and_id: bytes) -> bytes:
    return _mac(secret, b"proof of the listener", purpose, call_payload, nonce_and_id)


def _keys(secret: bytes, purpose: bytes, call_payload: bytes, nonce_and_id: bytes) -> Keys:
    return Keys(
        nonce_and_id[NONCE_BYTES:],
        caller=_mac(secret, b"key of the caller", purpose, call_payload, nonce_and_id),
        listener=_mac(secret, b"key of the listener", purpose, call_payload, nonce_and_id),
    )
