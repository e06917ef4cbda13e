"""Distinguishes failures of the application's functions from cancellation and from the end of the program.

A function of the application may end with an exception that is not an `Exception`. The worst is asyncio's
CancelledError: a handler that awaits a task which it has cancelled gets one, and it looks as if somebody had cancelled
the task that called the handler. Passed on, it would end that task, and with it the client, without a word. So it is a
cancellation only if a scope around the caller is cancelled; any other one is a failure of the function, like every
other exception. SystemExit and KeyboardInterrupt are for the whole program, and are always passed on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import anyio
import anyio.abc

from mq.client.logs import log

if TYPE_CHECKING:
    import asyncio

WARN_SECONDS: Final = 60.0
"""Between two warnings that spans or metrics are missing."""

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def is_async(function: object) -> bool:
    """Return whether a call of `function` returns a coroutine: `async def`, or an object with such a `__call__`."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def ends_program(error: BaseException) -> bool:
    """Return whether an exception ends the whole program, or is a group with one that does."""
    return program_end_in(error) is not None


def program_end_in(error: BaseException) -> BaseException | None:
    """Return the SystemExit or KeyboardInterrupt that an exception is or contains; None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next((end for each in error.exceptions if (end := program_end_in(each)) is not None), None)
    return error if isinstance(error, SystemExit | KeyboardInterrupt) else None


def runs_on_asyncio() -> bool:
    """Return whether the caller's event loop is asyncio's. Imports neither asyncio nor trio, to save time."""
    return anyio.get_cancelled_exc_class().__module__ == "asyncio.exceptions"


def calling_task() -> asyncio.Task[Any] | None:
    """Return the current task of asyncio; None on trio."""
    if not runs_on_asyncio():
        return None
    import asyncio

    return asyncio.current_task()


def task_finder() -> Callable[[], object]:
    """Return a function that finds the current task of the caller's event loop."""
    if runs_on_asyncio():
        import asyncio

        return asyncio.current_task
    import trio

    return trio.lowlevel.current_task


async def failure_of(
    function: Callable[[T], Awaitable[object]], argument: T, caller: asyncio.Task[Any] | None = None
) -> BaseException | None:
    """Await a function of the application. Returns the exception that it raised, or None.

    `caller` is the task that started this one (`calling_task`): when asyncio ends, it cancels all tasks one by one,
    without a scope. Raises what ends the program. If cancelled, it raises that.
    """
    try:
        await function(argument)
    except Exception as error:
        return error
    except BaseException as error:  # noqa: ASYNC103 - a cancellation is raised again, if there was one
        if ends_program(error) or _is_cancelled(caller):
            raise
        return error  # noqa: ASYNC104
    return None


def _is_cancelled(caller: asyncio.Task[Any] | None) -> bool:
    if anyio.current_effective_deadline() == float("-inf"):
        return True
    task = calling_task()
    if task is None or not task.cancelling():
        return False
    if caller is not None and caller.cancelling():
        return True
    # The function cancelled the task that called it; the task continues.
    while task.cancelling():
        task.uncancel()
    return False


def failure_in(function: Callable[[T], object], argument: T) -> BaseException | None:
    """Call a plain function of the application. Returns its exception, or None. Raises what ends the program."""
    try:
        function(argument)
    except BaseException as error:  # noqa: ASYNC103 - nothing is awaited, so it cannot have been cancelled
        if ends_program(error):
            raise
        return error  # noqa: ASYNC104
    return None


class NeverRaises:
    """Decorator for functions that only observe: if one fails, it returns None, and the observed code goes on.

    `note` logs the current exception; it is called once a minute.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note
        self.warn_at = float("-inf")
        """When to log the next failure at the earliest, on the monotonic clock."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return the function that does not fail."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except BaseException as error:  # noqa: ASYNC103 - nothing is awaited here
                if ends_program(error):
                    raise
                if (now := time.monotonic()) >= self.warn_at:
                    self.warn_at = now + WARN_SECONDS
                    self._note()
                return None  # noqa: ASYNC104

        return call


def call_back(on_done: Callable[[T], object], outcome: T, tasks: anyio.abc.TaskGroup, message_id: str) -> None:
    """Call a callback of the application, and log its failure.

    If it ends the program, `tasks` fail with that: the caller is in the middle of something, such as reading a
    connection, and must finish it.
    """
    try:
        error = failure_in(on_done, outcome)
    except BaseException as end:  # noqa: ASYNC103
        tasks.start_soon(_raise, end)
        return  # noqa: ASYNC104
    if error is not None:
        log.exception("send_callback_failed", error, message_id=message_id)


async def _raise(error: BaseException) -> None:  # noqa: ASYNC910
    raise error
