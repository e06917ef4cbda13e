"""Offsets that a consumer gives to a transaction, whose producer stores them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mq.client.message import MessageQueue, ReceivedMessage


class ConsumedOffsets(NamedTuple):
    """Messages that a consumer of `group` has taken: for each queue the first offset, and the one behind the last.

    One of the functions is called when the transaction has ended. `not_committed` also if it is not known how it ended:
    then the consumer takes the messages again, and if they were consumed after all, that transaction is refused.
    `fenced`: another transaction has consumed some of them.
    """

    group: str
    ranges: Mapping[MessageQueue, tuple[int, int]]
    committed: Callable[[], Awaitable[None]]
    not_committed: Callable[[], Awaitable[None]]
    fenced: Callable[[], Awaitable[None]]


class ConsumingClient(Protocol):
    """A consumer that can give its offsets to a transaction: `PullConsumer` or `PushConsumer`."""

    def _consumed_offsets(self, messages: Sequence[ReceivedMessage[Any]] | None) -> ConsumedOffsets:
        """The consumed messages, to commit. Raises ValueError if no offset can express them, TransactionFenced."""
