"""Records the changes that were made through this console, for a page and for the log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import structlog

RECORDS_MAX: Final = 500
TEXT_MAX: Final = 1000
"""Characters of a target and of an outcome: forms, and what brokers say of them, may be as large as 256 KiB."""

Log = structlog.stdlib.BoundLogger


@dataclass(frozen=True, slots=True)
class Record:
    """A change: its time (milliseconds since 1970), the user, and kind, object and outcome."""

    at_ms: int
    user: str
    change: str
    target: str
    outcome: str
    succeeded: bool


class Records:
    """Keeps the newest changes for the page. The log has all of them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._records: deque[Record] = deque(maxlen=RECORDS_MAX)

    def add(self, record: Record) -> None:
        """Record a change that was made or that failed."""
        record = replace(record, target=_short(record.target), outcome=_short(record.outcome))
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
        """Return the recorded changes, the newest first."""
        return list(self._records)


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + " ..."
