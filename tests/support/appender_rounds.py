"""Appender rounds controlled by a test."""

from __future__ import annotations

from mq.broker.state.commands import decode_command
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.outcome import OnOutcome, Stored
from mq.protocol.numbers import PhysicalOffset, QueueOffset


class Rounds:
    """Stand-in for the appender: added commands are applied when the test says so."""

    def __init__(self, metadata: Metadata) -> None:
        self.is_open = True
        self._metadata = metadata
        self._pending: list[tuple[bytes, OnOutcome | None]] = []

    @property
    def waiting(self) -> int:
        """The number of uncommitted commands."""
        return len(self._pending)

    has_room = True

    def check_room(self) -> None: ...

    def add_command(
        self,
        command: bytes,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self._pending.append((command, on_outcome))

    def commit(self, count: int) -> None:
        batch, self._pending = self._pending[:count], self._pending[count:]
        assert len(batch) == count
        for command, _ in batch:
            self._metadata.apply(decode_command(command))
        for _, on_outcome in batch:
            if on_outcome is not None:
                on_outcome(Stored(QueueOffset(0), PhysicalOffset(0)))
