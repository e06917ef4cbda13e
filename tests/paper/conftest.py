"""Fixtures of the tests of the consensus core."""

from __future__ import annotations

import pytest

from tests.paper.group import A, Group


@pytest.fixture
def group() -> Group:
    """Three voters, led by A."""
    return Group(3).led_by(A)
