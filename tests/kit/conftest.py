"""Browsers of a console in front of the brokers of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mq.testing import SyncKit
from tests.support.console_browser import Browser, console


@pytest.fixture
async def browser(kit: SyncKit) -> AsyncIterator[Browser]:
    """Of a console that only shows."""
    async with console(kit.namesrv) as browser:
        yield browser


@pytest.fixture
async def operator(kit: SyncKit) -> AsyncIterator[Browser]:
    """The browser of somebody whose console may change things."""
    async with console(kit.namesrv, allow_changes=True) as browser:
        yield browser
