"""A task group that raises the exception of its body unwrapped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def open_task_group() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Open a task group, as `anyio.create_task_group`, that raises an exception of the body alone unwrapped.

    Users need not know that the SDK runs tasks: `except SendRejected` around `async with Producer(...)` must work.
    Tasks are cancelled when the body ends. Failures of several tasks are still raised as an ExceptionGroup.
    """
    body_error: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                body_error = error
                raise
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if body_error is not None and group.exceptions == (body_error,):
            raise body_error from body_error.__cause__
        raise
