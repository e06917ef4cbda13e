"""Polling for a condition. Tests never wait for a guessed time instead."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

PAUSE_SECONDS = 0.005
PAUSE_SECONDS_MAX = 0.025
"""Of long waits: many a condition asks a broker, which costs more than a millisecond of a processor each time."""


async def until(condition: Callable[[], object], *, seconds: float = 120) -> None:
    """Wait until ``condition()`` is true, or what it returns after it was awaited. TimeoutError after ``seconds``."""
    pause = PAUSE_SECONDS
    with anyio.fail_after(seconds):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await anyio.sleep(pause)
            pause = min(pause * 1.05, PAUSE_SECONDS_MAX)


async def cancelled_when(condition: Callable[[], object], action: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Cancel ``action()`` as soon as ``condition()`` is true: after a guessed time, it may not have begun."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(action)
        await until(condition)
        tasks.cancel_scope.cancel()


def wait_until(condition: Callable[[], object], *, seconds: float = 60) -> None:
    """As `until`, in a thread without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {inspect.getsource(condition).strip()}")
        time.sleep(PAUSE_SECONDS)
