"""Rates and the time until a mirror has caught up."""

from __future__ import annotations

import pytest

from mq.cli.mirror.progress import Progress, duration


def test_mirror_eta_includes_arriving_messages() -> None:
    progress = Progress()
    progress.note(0.0, 0, 10_000)
    figures = progress.note(10.0, 5_000, 6_000)  # 1,000 arrived
    assert figures.rate == 500
    assert figures.eta_seconds == 15
    assert figures.text() == "5,000 copied, 6,000 behind, 500 messages/s, caught up in 15 s"


def test_progress_reports_a_mirror_falling_behind() -> None:
    progress = Progress()
    progress.note(0.0, 0, 1_000)
    assert progress.note(1.0, 100, 2_000).text().endswith("does not come closer")
    assert progress.note(2.0, 2_100, 0).text().endswith("caught up")


def test_rates_cover_the_last_half_minute() -> None:
    progress = Progress()
    for second in range(100):
        figures = progress.note(float(second), min(second, 50) * 100, 7)
    assert figures.rate == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (3600 * 3 + 1200, "3 h 20 min"), (3600 * 52, "2 d 4 h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
