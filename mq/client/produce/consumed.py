"""Offsets that a consumer gives to a transaction, whose producer stores them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mq.client.message import MessageQueue, ReceivedMessage


class ConsumedOffsets(NamedTuple):
    """The messages that a consumer of `group` has taken: the first offset of each queue, and the one after the last.

    One of the functions is called when the transaction has ended. `on_abort` also if it is not known how it ended:
    then the consumer takes the messages again, and if they were consumed after all, that transaction is refused.
    `on_fence`: another transaction has consumed some of them.
    """

    group: str
    ranges: Mapping[MessageQueue, tuple[int, int]]
    on_commit: Callable[[], Awaitable[None]]
    on_abort: Callable[[], Awaitable[None]]
    on_fence: Callable[[], Awaitable[None]]


class ConsumingClient(Protocol):
    """A consumer that can give its offsets to a transaction: `PullConsumer` or `PushConsumer`."""

    def _consumed_offsets(self, messages: Sequence[ReceivedMessage[Any]] | None) -> ConsumedOffsets:
        """The consumed messages, to commit. Raises ValueError if no offset can express them, TransactionFenced."""
