"""What can be wrong with bytes from the other side."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of everything this package raises about data from outside."""


class FrameError(ProtocolError):
    """The stream cannot be cut into frames any more: close the connection, nothing can be answered."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HeaderError(ProtocolError):
    """One request is malformed, the stream is not: answer it with SYSTEM_ERROR and this remark, and go on.

    ``code`` is None when the request does not even say what it asks for. ``opaque`` is 0 when it is missing.
    """

    def __init__(self, code: int | None, opaque: int, remark: str) -> None:
        super().__init__(f"request code {code}, opaque {opaque}: {remark}")
        self.code = code
        self.opaque = opaque
        self.remark = remark


class BodyError(ProtocolError):
    """A body is not what its request or response code says it should be."""


class ReplyError(ProtocolError):
    """The header of a reply lacks a field, or has another than its request code says it should."""
