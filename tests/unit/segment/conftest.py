"""Fixtures of the log's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.segment.log_home import LogHome


@pytest.fixture
def home() -> Iterator[LogHome]:
    """A directory on a disk in memory, with segments of 4 KiB."""
    home = LogHome()
    yield home
    home.close_all()
