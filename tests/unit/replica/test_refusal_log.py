"""Warnings about refused frames: one a minute per peer and reason."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from raftlog.net.refusal_log import REASONS_MAX, RefusalLog


def test_refusals_differing_in_numbers_are_logged_once_a_minute() -> None:
    now, error = 0.0, ""
    with capture_logs() as lines:
        log = RefusalLog(structlog.get_logger(), lambda: now)
        for number in range(100):
            now = number / 10
            error = f"n1 sends term {2**63 + number}, at most {number} is accepted, chain {number:08x}"
            log.warning("peer_message_invalid", source="n1", peer="n1", error=error)
        log.warning("peer_message_invalid", source="n2", peer="n2", error="n1 sends term 7")
        log.warning("peer_message_invalid", source="n1", peer="n1", error="something else")
        assert [(line["peer"], "times" in line) for line in lines] == [("n1", False), ("n2", False), ("n1", False)]
        now = 70.0
        log.warning("peer_message_invalid", source="n1", peer="n1", error=error)
    assert (lines[-1]["peer"], lines[-1]["times"]) == ("n1", 100)


def test_remembered_refusals_are_bounded() -> None:
    with capture_logs() as lines:
        log = RefusalLog(structlog.get_logger(), lambda: 0.0)
        for number in range(3 * REASONS_MAX):
            log.warning("peer_message_invalid", source=f"10.0.{number // 256}.{number % 256}", error="zeros")
        assert len(log._known) == REASONS_MAX
    assert len(lines) == 3 * REASONS_MAX
