"""What of the log is on disk, told by tickets of writes that complete in order.

A ticket remembers where the log ended when it was issued; when it completes, the log is durable up to there. Entries
may be cut off and replaced while their write is under way. Then the ticket's end is lowered to the cut, so that the
completion of an old write never speaks for the entries that took its place.
"""

from __future__ import annotations

from collections import deque


class WriteTickets:
    """Numbers writes and keeps ``durable``, the last index that is on disk."""

    __slots__ = ("_ends", "_hard_state_ticket", "done", "durable", "issued")

    def __init__(self, durable: int) -> None:
        self.durable = durable
        self.issued = 0
        self.done = 0
        self._hard_state_ticket = 0
        # The log's end when each outstanding ticket was issued, oldest first.
        self._ends: deque[int] = deque()

    @property
    def hard_state_durable(self) -> bool:
        """Whether every hard state that was issued is on disk."""
        return self._hard_state_ticket <= self.done

    @property
    def outstanding(self) -> int:
        """Number of writes under way."""
        return len(self._ends)

    def issue(self, last_index: int, *, with_hard_state: bool) -> int:
        """The ticket of a write after which the log is durable up to ``last_index``."""
        self.issued += 1
        self._ends.append(last_index)
        if with_hard_state:
            self._hard_state_ticket = self.issued
        return self.issued

    def complete(self, ticket: int) -> bool:
        """Everything up to ``ticket`` is on disk; returns whether that made more of the log durable."""
        assert ticket <= self.issued, f"ticket {ticket} completed, {self.issued} is the newest issued"
        end = 0
        while self.done < ticket:
            end = self._ends.popleft()
            self.done += 1
        if end <= self.durable:
            return False
        self.durable = end
        return True

    def truncate(self, last_index: int) -> None:
        """Entries behind ``last_index`` are cut off; no write under way may vouch for them."""
        if self.durable > last_index:
            self.durable = last_index
        if self._ends and max(self._ends) > last_index:
            self._ends = deque(min(end, last_index) for end in self._ends)
