"""The base of all requests; the requests themselves are in `mq.protocol.requests`.

The wire name of a field is in its class's ``rename``. A field without a default is required. `I32` and `I64` are the
ranges of Java's int and long; numbers outside are refused before any handler sees them.
"""

from __future__ import annotations

import msgspec

from mq.protocol.wire.fields import I32, HeaderFields


class Ext(HeaderFields):
    """Base of the header fields of one request code."""


class Request(msgspec.Struct, gc=False, kw_only=True, tag_field="code"):
    """Base of all requests. ``flag`` bit 1 means one-way; ``language`` is a name in `LANGUAGES`."""

    opaque: I32 = 0
    flag: I32 = 0
    version: I32 = 0
    language: str | None = None

    @property
    def code(self) -> int:
        """The request code, which is the same for all instances of a class."""
        return int(self.__struct_config__.tag)  # type: ignore[arg-type]
