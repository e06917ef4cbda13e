"""Packs messages for a filter into one buffer, which is copied into the filter's memory at once. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from struct import pack
from typing import Final, NamedTuple

BLOCK_MAX: Final = 1024
"""Messages of one block."""

MessageSpans = tuple[int, int, int, int]
"""Address and size of a message's encoded properties, address and size of its body, not compressed."""


class Message(NamedTuple):
    """The part of a message that a filter sees: its encoded properties, and its body, not compressed."""

    properties: bytes
    body: bytes


class Block:
    """Several messages in one buffer. The part of each begins where the previous one ends.

    Attributes:
        data: the buffer with all messages.
        ends: the index after the part of each message.
    """

    __slots__ = ("_places", "data", "ends")

    def __init__(self, data: bytes, places: Sequence[MessageSpans], ends: Sequence[int]) -> None:
        assert len(places) == len(ends) <= BLOCK_MAX, f"{len(places)} places and {len(ends)} ends"
        self.data = data
        self.ends = ends
        self._places = places

    def __len__(self) -> int:
        return len(self.ends)

    def begin_of(self, number: int) -> int:
        """Return the index at which the part of message ``number`` begins."""
        return self.ends[number - 1] if number else 0

    def spans_of(self, number: int) -> MessageSpans:
        """Return where the properties and the body of a message are."""
        return self._places[number]

    def message(self, number: int) -> Message:
        """Return a copy of one message."""
        at, size, body_at, body_size = self._places[number]
        return Message(self.data[at : at + size], self.data[body_at : body_at + body_size])

    def encoded_places(self) -> bytes:
        """Encode the places of all messages: four ``u32`` each, little-endian."""
        return pack(f"<{4 * len(self._places)}I", *chain.from_iterable(self._places))

    def end_within(self, begin: int, room: int) -> int:
        """Return the number of the first message from ``begin`` on that no longer fits into ``room`` bytes."""
        limit, ends = self.begin_of(begin) + room, self.ends
        return len(ends) if ends[-1] <= limit else bisect_right(ends, limit, begin)


def block_of(messages: Sequence[Message], heads: Sequence[bytes] = ()) -> Block:
    """Copy messages into a new buffer, each after its head if there are heads."""
    places: list[MessageSpans] = []
    ends: list[int] = []
    parts: list[bytes] = []
    at = 0
    for number, (properties, body) in enumerate(messages):
        head = heads[number] if heads else b""
        at += len(head)
        body_at = at + len(properties)
        places.append((at, len(properties), body_at, len(body)))
        parts += head, properties, body
        at = body_at + len(body)
        ends.append(at)
    return Block(b"".join(parts), places, ends)
