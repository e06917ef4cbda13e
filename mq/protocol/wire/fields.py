"""Maps our field names to names on the wire: camel case, except where another name is given.

`I32` and `I64` are the ranges of Java's int and long: a number outside is refused on input, before it could be sent to
a client that cannot parse it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated

import msgspec

from mq.protocol.numbers import PhysicalOffset, QueueOffset

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
I32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
I64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]

QueueOffset64 = Annotated[QueueOffset, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
PhysicalOffset64 = Annotated[PhysicalOffset, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]


def wire(**special: str) -> Callable[[str], str]:
    """Return a ``rename`` for a Struct: ``our_name="nameOnTheWire"`` for each exception, camel case for the rest."""

    return lambda name: special.get(name) or camel_case(name)


def camel_case(name: str) -> str:
    """Convert a name such as ``queue_id`` to ``queueId``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


class HeaderFields(msgspec.Struct, gc=False, kw_only=True, rename=wire()):
    """Base of the header fields of requests and of responses."""

    def fields(self) -> dict[str, str]:
        """Return the header fields: values as text by wire name, without those that are None."""
        return {
            wire_name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, wire_name in _wire_names(type(self))
            if (value := getattr(self, name)) is not None
        }


@cache
def _wire_names(kind: type[HeaderFields]) -> tuple[tuple[str, str], ...]:
    """Our name and the wire name of each field."""
    return tuple((each.name, each.encode_name) for each in msgspec.structs.fields(kind))
