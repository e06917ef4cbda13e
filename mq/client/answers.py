"""Reading the fields and bodies of answers, with one error for everything a server may get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mq.client.errors import UnreadableAnswer
from mq.protocol.errors import ProtocolError
from mq.protocol.headers import Response

__all__ = ["int_field", "read_body"]

T = TypeVar("T")


def int_field(response: Response, name: str) -> int:
    """The extension field `name` as a number. Raises UnreadableAnswer."""
    try:
        return int(response.ext[name])
    except (KeyError, ValueError) as error:
        raise UnreadableAnswer(f"code {response.code} with {name}: {error!r}") from error


def read_body(decode: Callable[[memoryview], T], body: memoryview) -> T:
    """`decode(body)`. Raises UnreadableAnswer."""
    try:
        return decode(body)
    except ProtocolError as error:
        raise UnreadableAnswer(str(error)) from error
