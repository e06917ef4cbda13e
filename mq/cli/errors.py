"""The errors of commands, and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")

EXIT_FAILED = 1
"""The command ran, but its result is negative."""

EXIT_REFUSED = 2
"""The command could not start: an option, an address, a directory or a file is wrong."""


class CommandFailed(Exception):
    """Ends the command with one message and an exit code, without a traceback."""

    def __init__(self, message: str, exit_code: int = EXIT_REFUSED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def or_exit(run: Callable[[], object]) -> None:
    """Run a command. On CommandFailed, print one line to standard error and exit with its code."""
    try:
        run()
    except CommandFailed as error:
        print(f"raftmq: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run_trio(main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` on trio. A single exception is raised without the groups of nurseries around it."""
    import trio  # imported here, so that commands without an event loop start fast, such as --version

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        raise _only(group) from None


@asynccontextmanager
async def lone_errors() -> AsyncIterator[None]:
    """If the block raises a single exception within exception groups, raise it without them."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
