"""The changes that were made through this console, for its page and the log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import structlog

RECORDS_MAX: Final = 500

Log = structlog.stdlib.BoundLogger


@dataclass(frozen=True, slots=True)
class Record:
    """A change: when (milliseconds since 1970), who, what, of what, and how it ended."""

    at_ms: int
    user: str
    change: str
    target: str
    outcome: str
    succeeded: bool


class Records:
    """The last changes, the newest first; all of them are in the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._records: deque[Record] = deque(maxlen=RECORDS_MAX)

    def add(self, record: Record) -> None:
        """Note a change, also one that failed."""
        self._records.appendleft(record)
        self._log.info(
            "console_change",
            user=record.user or "the console",
            change=record.change,
            target=record.target,
            outcome=record.outcome,
            succeeded=record.succeeded,
        )

    def all(self) -> list[Record]:
        """The newest first."""
        return list(self._records)
