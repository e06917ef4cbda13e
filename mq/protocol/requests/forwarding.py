"""Encodes frames of our own request 9002, in which a follower forwards a client's request to the leader.

The body of the request is the client's request as a complete frame, the body of its answer the complete frame for the
client. The code of the answer says how the request ended:

- SUCCESS: the body is the answer for the client, empty if it wants none;
- SERVICE_NOT_AVAILABLE and NO_PERMISSION: it was not served, and may be forwarded to another replica;
- anything else: the outcome is unknown.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mq.protocol.codes import RequestCode
from mq.protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX, JSON, PREFIX_BYTES, encode_prefix
from mq.protocol.wire.encoding import encode_header

_encode: Final = msgspec.json.Encoder().encode


FORWARDED_TO: Final = "forwardedTo"
"""Header field of an answer that was forwarded: the leader's address. Our own."""

_EXT: Final = b'"extFields":'


class TooLarge(ValueError):
    """The request is too large to be put into a forwarding frame."""


class ForwardEncoder:
    """Encodes request 9002. ``identity`` is the identity of the replicated log."""

    __slots__ = ("_header",)

    def __init__(self, identity: str) -> None:
        ext = {
            "bornHost": "BORN",
            "serialization": "ENCODING",
            "clientId": "CLIENT",
            "user": "USER",
            "identity": identity,
        }
        header = encode_header(RequestCode.FORWARD, 0, 0, ext=ext, version=0)
        assert b'"opaque":0,' in header, f"no opaque in {header!r}"
        text = header.replace(b"%", b"%%")
        for placeholder, conversion in (
            (b"BORN", b"%s"),
            (b"ENCODING", b"%d"),
            (b'"CLIENT"', b"%s"),
            (b'"USER"', b"%s"),
        ):
            text = text.replace(placeholder, conversion, 1)
        before, _, behind = text.rpartition(b'"opaque":0,')
        self._header = before + b'"opaque":%d,' + behind

    def encode(
        self,
        opaque: int,
        born_host: bytes,
        request: Any,
        body: bytes,
        serialization: int,
        client_id: str = "",
        user: str = "",
    ) -> tuple[bytes, int]:
        """Encode a request as a frame. Returns the frame, and the position of the client's request in it.

        Unknown header fields are omitted: no handler sees them on any replica.

        Raises:
            TooLarge: the request would exceed the limits of a frame.
        """
        header = self._header % (
            born_host.hex().encode(),
            serialization,
            _encode(client_id) if client_id else b'""',
            _encode(user) if user else b'""',
            opaque,
        )
        inner = _encode(request)
        inner_bytes = 8 + len(inner) + len(body)
        if len(inner) > HEADER_BYTES_MAX or 4 + len(header) + inner_bytes > FRAME_BYTES_MAX:
            raise TooLarge(f"too large to be forwarded: a header of {len(inner)} bytes, a body of {len(body)}")
        prefix = encode_prefix(JSON, len(header), inner_bytes)
        frame = b"".join((prefix, header, encode_prefix(JSON, len(inner), len(body)), inner, body))
        return frame, len(frame) - inner_bytes


class WrapEncoder:
    """Encodes responses to request 9002, each with the response for the client inside."""

    __slots__ = ("_header",)

    def __init__(self) -> None:
        header = encode_header(0, 0, 1)
        assert b'"opaque":0,' in header, f"no opaque in {header!r}"
        self._header = header.replace(b'"opaque":0,', b'"opaque":%d,')

    def encode(self, opaque: int, inner: bytes) -> bytes:
        """Encode a response as a complete frame. ``inner`` is the client's response, a complete frame, or empty."""
        header = self._header % opaque
        return b"".join((encode_prefix(JSON, len(header), len(inner)), header, inner))


def mark_forwarded(frame: bytes, leader: str) -> bytes:
    """Add the leader's address to the client's response, so that our own SDK refreshes its route at once.

    Only JSON headers get it. Other clients ignore the unknown field.
    """
    header_end = PREFIX_BYTES + int.from_bytes(frame[5:PREFIX_BYTES], "big")
    header = frame[PREFIX_BYTES:header_end]
    if frame[4] != JSON or not header.startswith(b"{"):
        return frame
    field = b'"%s":%s' % (FORWARDED_TO.encode(), _encode(leader))
    # Quotes within strings are escaped, so this does not occur in one.
    before, separator, behind = header.partition(_EXT + b"{")
    if separator:
        header = before + separator + field + (behind if behind.startswith(b"}") else b"," + behind)
    elif _EXT not in header:
        header = b"{" + _EXT + b"{" + field + b"}," + header[1:]
    else:
        return frame
    return b"".join((encode_prefix(JSON, len(header), len(frame) - header_end), header, frame[header_end:]))
