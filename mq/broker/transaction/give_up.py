"""Gives up half messages that are open after the last check-back.

Each is copied to a separate internal topic, in one log entry with the command that ends it
(`mq.broker.schedule.delivery`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.schedule.delivery import Delivery, Due, Moves
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.state.commands import Command
from mq.broker.transaction.half_messages import HALF_QUEUE_ID, HalfMessages
from mq.broker.transaction.transactions import Transactions
from mq.broker.write_path.outcome import OnOutcome
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.record_copy import copy_record
from mq.protocol.messages.records import split_record
from mq.protocol.names import UNENDED_TOPIC
from mq.protocol.numbers import QueueOffset

_GIVE_UPS_PER_ENTRY = 32


class GiveUp:
    """Moves half messages to the topic of given-up ones after their last check-back, while this replica leads."""

    def __init__(
        self, context: BrokerContext, *, halves: HalfMessages, transactions: Transactions, log: RateLimitedLog
    ) -> None:
        self._tails = context.queue_tails
        self._halves = halves
        self._transactions = transactions
        self._unreadable = ReadBackoff()
        self._offsets: list[QueueOffset] = []
        self._delivery = Delivery(
            context, self, unreadable=self._unreadable, log=log, groups_max=1, messages_max=_GIVE_UPS_PER_ENTRY
        )

    def stop(self) -> None:
        """Stop giving up half messages, since this replica stops leading."""
        self._delivery.stop()

    def run(self, offsets: Iterable[QueueOffset], now_ms: int) -> None:
        """Give up some of these half messages, unless earlier ones are in flight."""
        unreadable = self._unreadable
        if unreadable:
            unreadable.forget_before(HALF_QUEUE_ID, self._halves.marks.low)
            offsets = (each for each in offsets if unreadable.postponed_until((HALF_QUEUE_ID, each), now_ms) is None)
        self._offsets = list(islice(offsets, _GIVE_UPS_PER_ENTRY))
        self._delivery.run(now_ms)
        self._offsets = []

    def restart(self) -> None:
        """Do nothing: each `run` starts with new messages."""

    def due(self, now_ms: int) -> Generator[Due[int], int | None]:
        """Yield the messages of this `run` that are stored, and whose transactions do not end now."""
        queue = self._halves.queue
        for offset in self._offsets:
            if queue is not None and offset >= queue.min_offset and not self._transactions.is_ending(offset):
                yield Due(HALF_QUEUE_ID, offset, queue)

    def copy(self, due: Due[int], record: bytes, now_ms: int) -> InternalRecord:
        """Copy a half message for the topic of messages that were given up."""
        raw = split_record(record)
        return copy_record(raw, self._tails.get(UNENDED_TOPIC, 0), raw.properties, transaction=0)

    def mark(self, moves: Moves[int], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """Return the commands that end the transactions of the moved messages, and a callback for the outcome."""
        assert moves, "no half message is given up"
        return self._transactions.give_up([due.offset for due, _ in moves])
