"""The end of a call: gRPC's status codes, refusals, and how a status is sent."""

from __future__ import annotations

import enum
from typing import Final


class Status(enum.IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallRefused(Exception):
    """Ends a call with this status. Raised by a method, or by the transport for a call that it cannot serve.

    Attributes:
        status: not OK.
        reason: for the client, any text.
        accepts_encodings: whether the answer lists the encodings that are supported.
    """

    def __init__(self, status: Status, reason: str, *, accepts_encodings: bool = False) -> None:
        assert status is not Status.OK, f"a call cannot be refused with OK: {reason}"
        super().__init__(f"{status.name}: {reason}")
        self.status = status
        self.reason = reason
        self.accepts_encodings = accepts_encodings


class BrokenCall(Exception):
    """The call is over: its client cancelled it, is gone, or does not read. The last messages may be lost."""


REASON_BYTES_MAX: Final = 1024
"""A longer reason is cut: clients limit the size of headers."""


def percent_encoded(reason: str) -> bytes:
    """Encode ``grpc-message``: UTF-8, with %XX for all but printable ASCII, cut at `REASON_BYTES_MAX`."""
    data = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX]
    return b"".join(b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in data)
