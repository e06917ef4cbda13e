"""Decodes the bodies of received messages, and applies the policies to bodies that cannot be decoded.

A body that cannot be decoded now will not be later: without a policy, its message becomes a dead letter. Policies are
those for handlers, by exception: `on_error={BodyNotDecoded: Skip}`. Whatever they say is logged and told to `on_event`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from mq.client.body_codecs import BodyCodec, decode_body
from mq.client.consume.policies import DeadLetter, HandlingPolicy, OnError, RetryLater, Skip, StopConsumer, policy_of
from mq.client.consume.send_back import failure_text
from mq.client.errors import BodyNotDecoded
from mq.client.events import ClientEvent
from mq.client.logs import log
from mq.client.message import ReceivedMessage

RETRY_SECONDS = 1.0
"""Seconds until a message is decoded again that no broker has stored as a dead letter."""


def policy_of_failure(error: BaseException, *mappings: OnError) -> HandlingPolicy | None:
    """Return the policy for a failed message; None for the usual retry. An undecodable body is not retried that way."""
    policy = policy_of(error, *mappings)
    return DeadLetter() if policy is None and isinstance(error, BodyNotDecoded) else policy


class BodyDecoder:
    """Decodes the message bodies of one consumer.

    `codec_of` is the codec for the messages of a topic, None for bytes. `on_error` are the policies where no handler
    has its own. `give_up` makes a dead letter, in bounded time, and says whether a broker stored it. `emit` gets the
    events.
    """

    def __init__(
        self,
        group: str,
        codec_of: Callable[[str], BodyCodec[Any] | None],
        on_error: OnError,
        *,
        give_up: Callable[[ReceivedMessage[Any], BaseException], Awaitable[bool]],
        emit: Callable[[ClientEvent], None],
    ) -> None:
        self.is_on = False
        """Set when the consumer gets a codec; until then bodies are bytes."""
        self._group = group
        self._codec_of = codec_of
        self._on_error = on_error
        self._give_up = give_up
        self._emit = emit
        self.on_settled: Callable[[str, str], None] | None = None
        """Gets the topic of a message that was put aside, and what became of it."""

    def first(self, messages: list[ReceivedMessage[Any]]) -> tuple[list[ReceivedMessage[Any]], BodyNotDecoded | None]:
        """Return the leading messages that can be decoded; if there are none, the first message and its error."""
        if self.is_on:
            for count, message in enumerate(messages):
                codec = self._codec_of(message.topic)
                if codec is not None and (error := decode_body(message, codec)) is not None:
                    return (messages[:count], None) if count else ([message], self._report_failure(message, error))
        return messages, None

    def failure(self, message: ReceivedMessage[Any]) -> BodyNotDecoded | None:
        """Decode the body of a message. If that fails, report the error to the application and return it."""
        return self.first([message])[1]

    def _report_failure(self, message: ReceivedMessage[Any], error: BodyNotDecoded) -> BodyNotDecoded:
        log.error("body_not_decoded", group=self._group, message=message, reason=error.reason)
        self._emit(ClientEvent("undecodable", message.topic, str(error), frozenset((message.queue,))))
        return error

    async def put_aside(self, message: ReceivedMessage[Any], error: BodyNotDecoded) -> float | None:
        """Apply the policy to a message that no handler gets, because its body cannot be decoded.

        Returns None if it is done, or after how many seconds to try it again. Raises the error for `StopConsumer`.
        """
        policy = policy_of_failure(error, self._on_error)
        if isinstance(policy, StopConsumer):
            raise error
        if isinstance(policy, RetryLater):
            self._on_settle(message, "retried")
            return policy.seconds
        if isinstance(policy, Skip):
            self._on_settle(message, "skipped")
            log.info("message_skipped", group=self._group, message=message, reason=failure_text(error))
            return None
        with anyio.CancelScope(shield=True):
            is_stored = await self._give_up(message, error)
        if not is_stored:
            return RETRY_SECONDS
        log.warning("message_given_up", group=self._group, message=message, attempts=message.attempt)
        self._on_settle(message, "dead_letter")
        return None

    def _on_settle(self, message: ReceivedMessage[Any], outcome: str) -> None:
        if self.on_settled is not None:
            self.on_settled(message.topic, outcome)
