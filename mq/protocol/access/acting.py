"""Requests that a gRPC proxy makes for a user: the header fields that our proxy adds and that brokers check.

A client of the gRPC protocol signs only the time of its call: HMAC-SHA1 with its secret key. The proxy does not know
the key. It passes the signature on, in a request that it signs as itself, and the broker checks both.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hmac import compare_digest
from typing import Final, NamedTuple

from mq.protocol.access.signing import Signer

_USER: Final = "raftmqUser"
_TIME: Final = "raftmqUserTime"
_SIGNATURE: Final = "raftmqUserSignature"
_ADDRESS: Final = "raftmqUserAddress"
NOT_AUTHENTICATED: Final = "not authenticated: "
"""The beginning of a refusal, if it is not known who the user is."""


class ActsFor(NamedTuple):
    """The user for whom a proxy makes a request.

    Attributes:
        user: the access key.
        time: the text that the client has signed.
        signature: in hexadecimal.
        address: the client's address, without port.
    """

    user: str
    time: str
    signature: str
    address: str

    def fields(self) -> dict[str, str]:
        """Return the header fields that name the user."""
        return {_USER: self.user, _TIME: self.time, _SIGNATURE: self.signature, _ADDRESS: self.address}

    def is_signed(self, signer: Signer) -> bool:
        """Whether the user's signature was made with the secret key of `signer`. Compares in constant time."""
        try:
            signature = b64encode(bytes.fromhex(self.signature))
        except ValueError:
            return False
        return compare_digest(signature, signer.signature({"": self.time}, b""))


def acts_for(fields: Mapping[str, str]) -> ActsFor | None:
    """Return the user for whom a proxy makes a request; None if the sender makes the request for itself."""
    user = fields.get(_USER)
    if user is None:
        return None
    return ActsFor(user, fields.get(_TIME, ""), fields.get(_SIGNATURE, ""), fields.get(_ADDRESS, ""))
