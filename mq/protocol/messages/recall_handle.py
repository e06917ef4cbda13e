"""Encodes and decodes the handle for recalling a delayed message: Base64 of RocketMQ's five words and one of ours.

``v1 <topic> <broker name> <due ms + 1> <unique key> <queue offset>``. Stock clients parse the first five words to find
the broker; the sixth is the place where the message was stored first. A handle is client input: verify everything in
it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.protocol import properties as props
from mq.protocol.errors import ProtocolError
from mq.protocol.names import RETRY_PREFIX
from mq.protocol.numbers import QueueOffset

_VERSION: Final = "v1"
_HANDLE_LENGTH_MAX: Final = 4096
_DIGITS_MAX: Final = 18


class HandleInvalid(ProtocolError):
    """The text is not a recall handle."""


class RecallHandle(NamedTuple):
    """The content of a recall handle. ``queue_offset`` is None if the handle lacks it."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str
    queue_offset: QueueOffset | None = None

    def encode(self) -> str | None:
        """Encode the handle as text; None if a name contains a blank, which could not be parsed again."""
        words = [_VERSION, self.topic, self.broker_name, str(self.due_ms + 1), self.unique_key]
        if any(" " in word or not word for word in words):
            return None
        if self.queue_offset is not None:
            words.append(str(self.queue_offset))
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Parse a handle, with or without Base64 padding. Raises HandleInvalid."""
        if len(text) > _HANDLE_LENGTH_MAX:
            raise HandleInvalid("recall handle is invalid: it is too long")
        try:
            padded_text = text + "=" * (-len(text) % 4)
            words = base64.b64decode(padded_text, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError) as error:
            raise HandleInvalid("recall handle is invalid") from error
        if len(words) not in (5, 6) or words[0] != _VERSION or not all(words):
            raise HandleInvalid("recall handle is invalid")
        numbers = [_parse_int(word) for word in (words[3], *words[5:])]
        return cls(words[1], words[2], numbers[0] - 1, words[4], QueueOffset(numbers[1]) if len(numbers) > 1 else None)


def recall_fields(
    broker_name: str, topic: str, properties: Mapping[str, str], queue_offset: QueueOffset, unique_key: str
) -> dict[str, str]:
    """Return the response fields for a send to ``topic`` whose message waits in the timer wheel.

    Empty if it cannot be recalled: with a delay level, or in a retry topic.
    """
    if props.DELAY in properties or topic.startswith(RETRY_PREFIX):
        return {}
    due_ms = int(properties[props.TIMER_OUT_MS])
    handle = RecallHandle(topic, broker_name, due_ms, unique_key, queue_offset).encode()
    return {} if handle is None else {"recallHandle": handle}


def _parse_int(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX):
        raise HandleInvalid(f"recall handle is invalid: {word[:40]!r} is not a number")
    return int(word)
