"""Errors in data from the other side."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of all errors that this package raises for outside data."""


class FrameError(ProtocolError):
    """The stream can no longer be split into frames: close the connection, no answer is possible."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HeaderError(ProtocolError):
    """One request is malformed, but the stream is not: answer with SYSTEM_ERROR and this remark, and continue.

    ``code`` is None if the request code is missing. ``opaque`` is 0 if it is missing.
    """

    def __init__(self, code: int | None, opaque: int, remark: str) -> None:
        super().__init__(f"request code {code}, opaque {opaque}: {remark}")
        self.code = code
        self.opaque = opaque
        self.remark = remark


class BodyError(ProtocolError):
    """A body does not match its request or response code."""


class ReplyError(ProtocolError):
    """The header of a reply lacks a field, or has an invalid one."""
