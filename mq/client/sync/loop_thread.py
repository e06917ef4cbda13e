"""Runs an event loop in a thread, which other threads call."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from importlib.util import find_spec
from typing import Generic, TypeVar

import anyio
import anyio.from_thread

from mq.client.errors import ClientClosed
from mq.client.limits import DEFAULT, ClientLimits
from mq.client.logs import log

R = TypeVar("R")

CANCEL_SECONDS = 5.0
"""Time for an interrupted call to end; its thread continues then."""

SIGNAL_SECONDS = 1.0
"""Seconds after which a waiting thread wakes up to run signal handlers, in case a signal did not wake it.

Python runs them in the main thread only. That thread keeps sleeping if another thread receives the signal, or if the
signal arrives just before the sleep begins.
"""


def event_loop() -> str:
    """Return the library for the event loop in the thread: trio if it is installed, else asyncio."""
    return "asyncio" if find_spec("trio") is None else "trio"


class LoopThread:
    """A thread that runs an event loop. It does not keep the process alive."""

    def __init__(self, name: str, limits: ClientLimits = DEFAULT) -> None:
        self._name = name
        self._warn_seconds = limits.close_warn_seconds
        start_result: Future[anyio.from_thread.BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, args=(start_result,), name=name, daemon=True)
        self._thread.start()
        self._soon: Callable[[Callable[[], None]], object]
        self.portal = start_result.result()

    def _run(self, start_result: Future[anyio.from_thread.BlockingPortal]) -> None:
        async def main() -> None:
            async with anyio.from_thread.BlockingPortal() as portal:
                self._soon = _caller()
                start_result.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(main, backend=event_loop())
        except BaseException as error:  # noqa: ASYNC103 - of a thread
            if not start_result.done():
                start_result.set_exception(error)
            else:
                log.exception("event_loop_failed", error, thread=self._name)

    def is_current(self) -> bool:
        """Return whether the caller is in this thread, which cannot wait for itself."""
        return self._thread is threading.current_thread()

    def call(self, function: Callable[[], Awaitable[R]], *, waits_for: str | None = None) -> R:
        """Await `function()` in the event loop, and wait for its result. If `waits_for` is set, log a long wait.

        If the waiting thread is interrupted, as by ctrl-C, the call is cancelled, and has ended when this raises.
        Raises ClientClosed if the loop has ended.
        """
        call = _ThreadCall(function)
        try:
            future = self.portal.start_task_soon(call.run)
        except RuntimeError as error:
            if self.is_current():
                raise
            raise ClientClosed("the client is closed") from error
        try:
            self._wait(future, waits_for)
        except CancelledError:
            raise ClientClosed("the client was closed during this call") from None  # noqa: ASYNC104 - of a future
        except BaseException:  # of a signal
            if future.cancel():
                call.end_event.wait(CANCEL_SECONDS)
            raise
        return call.result()

    def _wait(self, future: Future[None], waits_for: str | None) -> None:
        """Wait for a call without limit; with `waits_for`, log that every `close_warn_seconds`."""
        warn_at = time.monotonic() + self._warn_seconds
        while True:
            with contextlib.suppress(TimeoutError):  # the call's own failure is a value
                return future.result(min(SIGNAL_SECONDS, self._warn_seconds))
            if waits_for is not None and time.monotonic() >= warn_at:
                log.warning("close_waits", client=self._name, waits_for=waits_for)
                warn_at += self._warn_seconds

    def soon(self, function: Callable[[], None]) -> None:
        """Call a plain function in the event loop, in order, without waiting. The function must not raise.

        Costs a third of `call`. Raises ClientClosed if the loop has ended.
        """
        try:
            self._soon(function)
        except RuntimeError as error:
            raise ClientClosed("the client is closed") from error

    def stop(self, waits_for: str) -> None:
        """Stop the loop, and wait until all calls have ended. A log line names `waits_for` if that takes long."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.portal.start_task_soon(self.portal.stop).result()
        while self._thread.is_alive():
            self._thread.join(self._warn_seconds)
            if self._thread.is_alive():
                log.warning("close_waits", client=self._name, waits_for=waits_for)


def _caller() -> Callable[[Callable[[], None]], object]:
    """Return a function that any thread can call to run another function in this event loop."""
    if event_loop() == "asyncio":
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


class _ThreadCall(Generic[R]):
    """One call, whose outcome is a value: an exception that is not an `Exception` would end the event loop, too."""

    def __init__(self, function: Callable[[], Awaitable[R]]) -> None:
        self._function = function
        self._results: list[R] = []
        self._error: BaseException | None = None
        self.end_event = threading.Event()

    async def run(self) -> None:
        try:
            self._results.append(await self._function())
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: ASYNC103
            self._error = error
        finally:
            self.end_event.set()

    def result(self) -> R:
        if self._error is not None:
            raise self._error
        [result] = self._results
        return result
