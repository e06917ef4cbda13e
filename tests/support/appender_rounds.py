"""An appender without other parts, and rounds controlled by a test."""

from __future__ import annotations

from typing import Any

from mq.broker.state.commands import decode_command
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender, Log
from mq.broker.write_path.outcome import OnOutcome, Stored
from mq.protocol.messages.records import encode_host
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.wire.encoding import SendReplyTemplate

HOST = encode_host("127.0.0.1", 10911)


def lone_appender(log: Log, *, host: bytes = HOST, **given: Any) -> Appender:
    """A real appender of a leader without other parts; `given` are its arguments."""
    chosen: dict[str, Any] = {
        "entry_bytes_max": 100_000,
        "rounds_in_flight": 1,
        "wall_clock_ms": lambda: 1_700_000_000_000,
        "disk_used": lambda: 0.5,
        "uncommitted_bytes_max": 2**20,
    }
    return Appender(log=log, store_host=host, reply_template=SendReplyTemplate(host), **chosen | given)


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
