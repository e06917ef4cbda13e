"""Runs a server in the foreground until a signal, or until the process that started it has ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from mq.cli.errors import run_trio


def run_server(
    serve: Callable[[], Awaitable[None]],
    *,
    until_stdin_closes: bool = False,
    on_stop: Callable[[], None] | None = None,
) -> None:
    """Run ``serve`` until it returns, SIGINT or SIGTERM arrives, or (if requested) standard input ends.

    With ``on_stop``, the first signal only calls that, and ``serve`` is expected to return soon.
    """

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(cancel_on_signal, nursery.cancel_scope, on_stop=on_stop))
            if until_stdin_closes:
                nursery.start_soon(cancel_on_stdin_end, nursery.cancel_scope)
            await serve()
            nursery.cancel_scope.cancel()

    run_trio(main)


async def cancel_on_signal(
    scope: trio.CancelScope,
    *,
    on_stop: Callable[[], None] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Cancel ``scope`` on SIGINT and SIGTERM, and call ``on_stop`` at the first one. Runs until it is cancelled."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if on_stop is None:
                scope.cancel()
            else:
                on_stop()
                on_stop = None


async def cancel_on_stdin_end(scope: trio.CancelScope) -> None:
    """Cancel ``scope`` when standard input ends. Runs until it is cancelled."""
    # The parent process holds the other end of this pipe. The kernel closes it even if the parent is killed, so no
    # server outlives a crashed `raftmq dev`. The blocked thread is a daemon: it does not delay the exit.
    while await trio.to_thread.run_sync(os.read, sys.stdin.fileno(), 4096, abandon_on_cancel=True):
        pass
    scope.cancel()
