"""The base of the header fields of all responses, which are next to their requests in `mq.protocol.requests`.

A field without a default is required. Unknown fields are ignored: brokers of other releases send more.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from mq.protocol.errors import ReplyError
from mq.protocol.wire.fields import HeaderFields


class Reply(HeaderFields):
    """Base of the header fields of responses."""


ReplyT = TypeVar("ReplyT", bound=Reply)


def read_reply(kind: type[ReplyT], ext: dict[str, str]) -> ReplyT:
    """Decode the header fields of a response. Raises ReplyError if a field is missing or invalid."""
    try:
        return msgspec.convert(ext, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ReplyError(f"{kind.__name__}: {error}") from error
