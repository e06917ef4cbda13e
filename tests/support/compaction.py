"""Compacted topics whose messages are old at once."""

from __future__ import annotations

import pytest

from mq.broker.admin import topic_compaction
from mq.broker.admin.topic_compaction import TopicCompaction


def shorten_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is old after a millisecond, and goes at once when it is not needed any more."""
    monkeypatch.setattr(topic_compaction, "_HOUR_MS", 1)
    monkeypatch.setattr(topic_compaction, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(topic_compaction, "_LINGER_SECONDS", 0.0)
    monkeypatch.setattr(topic_compaction, "_STEP_SECONDS", 0.005)
    monkeypatch.setattr(topic_compaction, "_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(TopicCompaction, "_rests_until", lambda self: float("-inf"))
