"""Polling for a condition. Tests never wait for a guessed time instead."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

import anyio

_Found = TypeVar("_Found")
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


@overload
async def until_found(look: Callable[[], Awaitable[_Found | None]], *, seconds: float = 120) -> _Found: ...
@overload
async def until_found(look: Callable[[], _Found | None], *, seconds: float = 120) -> _Found: ...
async def until_found(look: Callable[[], Any], *, seconds: float = 120) -> Any:
    """Wait as `until`, and return the first true thing that ``look()`` returned, or the awaitable of it."""
    found: list[Any] = []

    async def is_found() -> bool:
        given = look()
        if inspect.isawaitable(given):
            given = await given
        found[:] = [given] if given else []
        return bool(found)

    await until(is_found, seconds=seconds)
    return found[0]


async def until_accepted(
    call: Callable[[], Awaitable[object]], *refusals: type[Exception], seconds: float = 120
) -> None:
    """Wait until ``call()`` raises none of the ``refusals`` any more."""

    async def is_accepted() -> bool:
        try:
            await call()
        except refusals:
            return False
        return True

    await until(is_accepted, seconds=seconds)


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
