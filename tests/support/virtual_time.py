"""Tests in virtual time: nobody sleeps, the clock jumps to the moment that the next task waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing


def _run(test: Callable[[], Awaitable[Any]], *, clock: None, instruments: Sequence[trio.abc.Instrument]) -> Any:
    return trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


VIRTUAL_TIME = pytest.mark.trio(run=_run)
"""The mark of such a test; its asynchronous fixtures are in virtual time as well."""
