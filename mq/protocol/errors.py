"""The exceptions for invalid data from the other side."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of all errors that this package raises for outside data."""


class FrameError(ProtocolError):
    """The stream cannot be split into frames any more: close the connection without a response."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HeaderError(ProtocolError):
    """One request is malformed, but the stream is intact: respond with SYSTEM_ERROR and this remark, and continue.

    ``code`` is None if the request code is missing. ``opaque`` is 0 if it is missing.
    """

    def __init__(self, code: int | None, opaque: int, remark: str) -> None:
        super().__init__(f"request code {code}, opaque {opaque}: {remark}")
        self.code = code
        self.opaque = opaque
        self.remark = remark


class BodyError(ProtocolError):
    """A body does not fit the code of its request or response."""


class ReplyError(ProtocolError):
    """The header of a response lacks a field, or has an invalid one."""
