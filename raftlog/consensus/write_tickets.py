"""Tracks how much of the log is durable: writes get tickets, and complete in the order of these.

A ticket records the log's end when it was issued; when it completes, the log is durable up to there. Entries may be
truncated and replaced while their write is in flight. Then the ticket's end is lowered to the cut, so that the
completion of an old write never counts for the replacing entries.
"""

from __future__ import annotations

from collections import deque

from raftlog.log_numbers import NO_INDEX, LogIndex


class WriteTickets:
    """Numbers writes and tracks ``durable``, the last durable index.

    Attributes:
        last_issued, last_done: the newest ticket, and the newest that is complete.
        hard_state_ticket: the newest one that wrote a hard state; 0 before the first.
    """

    __slots__ = ("_ends", "durable", "hard_state_ticket", "last_done", "last_issued")

    def __init__(self, durable: LogIndex) -> None:
        self.durable = durable
        self.last_issued = 0
        self.last_done = 0
        self.hard_state_ticket = 0
        # The log's end when each outstanding ticket was issued, oldest first.
        self._ends: deque[LogIndex] = deque()

    @property
    def hard_state_durable(self) -> bool:
        """Whether every issued hard state is durable."""
        return self.hard_state_ticket <= self.last_done

    def issue(self, last_index: LogIndex, *, with_hard_state: bool) -> int:
        """Return a new ticket for a write after which the log is durable up to ``last_index``."""
        self.last_issued += 1
        self._ends.append(last_index)
        if with_hard_state:
            self.hard_state_ticket = self.last_issued
        return self.last_issued

    def complete(self, ticket: int) -> bool:
        """Record that everything up to ``ticket`` is durable. Returns whether more of the log is durable now."""
        assert ticket <= self.last_issued, f"ticket {ticket} completed, {self.last_issued} is the newest issued"
        end = NO_INDEX
        while self.last_done < ticket:
            end = self._ends.popleft()
            self.last_done += 1
        if end <= self.durable:
            return False
        self.durable = end
        return True

    def truncate(self, last_index: LogIndex) -> None:
        """Record that entries after ``last_index`` were cut, so that writes in flight do not make them durable."""
        if self.durable > last_index:
            self.durable = last_index
        if self._ends and max(self._ends) > last_index:
            self._ends = deque(min(end, last_index) for end in self._ends)
