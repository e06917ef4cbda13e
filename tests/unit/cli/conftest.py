"""Commands run in the process of the tests, which must not lose its priority."""

from __future__ import annotations

import pytest

from mq.cli import backup


@pytest.fixture(autouse=True)
def keep_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "yield_processors", lambda: None)
