"""The record of changes."""

from __future__ import annotations

import structlog

from mq.console.records import RECORDS_MAX, TEXT_MAX, Record, Records


def test_huge_forms_use_little_memory_when_recorded() -> None:
    records = Records(structlog.get_logger("test"))
    with structlog.testing.capture_logs() as logs:
        for number in range(RECORDS_MAX + 1):
            records.add(Record(number, "", "resume a transaction", "t" * 250_000, "no message " + "o" * 250_000, False))
    kept = records.all()
    assert len(kept) == RECORDS_MAX
    assert kept[0].at_ms == RECORDS_MAX
    assert all(len(each.target) + len(each.outcome) < 2 * TEXT_MAX + 10 for each in kept)
    assert len(repr(logs[0])) < 3 * TEXT_MAX
