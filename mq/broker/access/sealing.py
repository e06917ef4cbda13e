"""Encrypts the secret keys of users with the secret of the broker group (AES-256-GCM).

Checking a signature needs the secret key itself, so a hash is not enough. Sealed keys can be stored in the log, in
snapshots and in backups: only replicas of the group can open them, and only for the same user.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from typing import Final

from raftlog.net.authentication import secret_id

NONCE_BYTES: Final = 12
_ID_BYTES: Final = len(secret_id(b""))
_PURPOSE: Final = b"secrets of users, version 1"


class SealBroken(Exception):
    """A sealed key cannot be opened: it was sealed with another secret, for another user, or was modified."""


def seal(group_secret: bytes, user: str, secret_key: str, nonce: bytes) -> str:
    """Encrypt ``secret_key`` to text that reveals only its length. ``nonce``: `NONCE_BYTES` fresh random bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # takes 30 ms, only needed if there are users

    assert len(nonce) == NONCE_BYTES, f"a nonce of {len(nonce)} bytes"
    ciphertext = AESGCM(_key(group_secret)).encrypt(nonce, secret_key.encode(), user.encode())
    text = b64encode(secret_id(group_secret) + nonce + ciphertext).decode()
    assert is_sealed_with(group_secret, text), f"{len(text)} characters do not name the secret that sealed them"
    return text


def unseal(group_secrets: Sequence[bytes], user: str, text: str) -> str:
    """Decrypt the secret key of a user. Raises SealBroken."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    for group_secret in group_secrets:
        if is_sealed_with(group_secret, text):
            data = b64decode(text)[_ID_BYTES:]
            try:
                return (
                    AESGCM(_key(group_secret)).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], user.encode()).decode()
                )
            except (InvalidTag, ValueError) as error:
                raise SealBroken("the secret was sealed for another user, or altered") from error
    raise SealBroken("the secret was sealed with a group secret that this replica lacks")


def is_sealed_with(group_secret: bytes, text: str) -> bool:
    """Return whether ``text`` names this group secret as the one that sealed it."""
    try:
        return b64decode(text, validate=True)[:_ID_BYTES] == secret_id(group_secret)
    except (NotBase64, ValueError):
        return False


def _key(group_secret: bytes) -> bytes:
    return hmac.digest(group_secret, _PURPOSE, "sha256")
