"""Fixtures of the tests of checkers and workloads."""

from __future__ import annotations

import pytest

from tests.unit.jepsen.histories import Script


@pytest.fixture
def script() -> Script:
    """A history in which nothing was done so far."""
    return Script()
