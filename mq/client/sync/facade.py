"""The base of the synchronous clients: an asynchronous client, and the thread that runs its event loop."""

from __future__ import annotations

import atexit
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

import anyio

from mq.client.errors import AlreadyOpen, ClientClosed, ClientError, ClientForked
from mq.client.events import Health
from mq.client.logs import log
from mq.client.net.forks import forks
from mq.client.net.life_cycle import Client
from mq.client.net.ping import PING_SECONDS
from mq.client.sync.loop_thread import LoopThread

C = TypeVar("C", bound=Client)
C_co = TypeVar("C_co", bound=Client, covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

EXIT_FLUSH_SECONDS = 2.0
"""Seconds at the end of the program for messages in flight of a client that was not closed."""
EXIT_SECONDS = 6.0
"""Seconds at the end of the program for all such clients together."""

_open: dict[int, Facade[Any]] = {}
_local = threading.local()
"""`facade`: the one whose handler or check runs in this thread."""


def run_without_event_loop(make: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `make` in a thread without an event loop, so that its result belongs to no event loop.

    The caller may be in an event loop: in a notebook, or in `python -m asyncio`. Events and limiters would bind to it.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(functools.partial(make, *args, **kwargs)).result()


class Facade(Generic[C_co]):
    """Wraps an asynchronous client. While it is open, a thread runs the client's event loop.

    `help` shows the arguments of the wrapped class, `of`.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, *, of: type) -> None:
        super().__init_subclass__()
        cls.__signature__ = inspect.signature(of)

    def __init__(self, client: C_co) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        self._forks = forks()
        self._lock = threading.Lock()
        self._at_end = (0, "")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or sent to another process: make it there")

    # Life cycle.

    def open(self) -> Self:
        """Open the client, until `close` or the end of the program. `with` does both.

        Raises AlreadyOpen, and what prevents opening; the client is closed then.
        """
        if self._forks != forks():  # a thread of the parent may hold the lock
            self._forks, self._lock, self._thread = forks(), threading.Lock(), None
        with self._lock:
            if self._thread is not None:
                raise AlreadyOpen(f"this {type(self).__name__} is already open")
            thread = LoopThread(f"{type(self).__name__} of mq.client", self._client._limits)
            try:
                thread.call(self._client.open)
            except BaseException:
                thread.stop("opening")
                raise
            self._thread = thread
            _open[id(self)] = self
        return self

    def close(self) -> None:
        """Close the client: wait for sends in flight, store offsets, unregister. The end of its block does the same.

        Any thread may call it, but no handler. A closed client may be opened again.
        """
        self._close(finish=True)

    def ping(self, *topics: str, timeout: float = PING_SECONDS) -> None:
        """Check that a name server and a leader answer, and that these topics exist.

        Raises within `timeout` seconds, and says what to do: NameServersUnavailable, ConnectFailed, NoRoute,
        TopicNotFound, BrokerError. With the option `ping=True`, opening a client does the same.
        """
        self._call(functools.partial(self._client.ping, *topics, timeout=timeout))

    def health(self) -> Health:
        """Return whether the client can work now, and its problems. It sends no request."""
        try:
            return self._call_now(self._client.health)
        except (ClientForked, ClientClosed) as error:  # closed by another thread meanwhile
            return Health((str(error),))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(finish=error is None)

    def _close(self, *, finish: bool) -> None:
        if self._is_parents():
            self._thread = None  # the parent's thread and connections are not here
            _open.pop(id(self), None)
            return
        if self._runs_here():
            raise ClientError(
                "a handler, check or callback cannot close its client, which waits for it: close it in another thread"
                + (", or call stop()" if hasattr(self, "stop") else "")
            )
        self._before_close()
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            waits_for = "messages in flight, or a handler or a check that still runs"
            try:
                thread.call(functools.partial(self._client._close, finish=finish), waits_for=waits_for)
            finally:
                self._thread = None
                _open.pop(id(self), None)
                thread.stop(waits_for)

    def _before_close(self) -> None:
        """Called in any thread when the client is about to be closed."""

    def _for_thread(self, function: Callable[[Any], R]) -> Callable[[Any], R]:
        """Wrap a function of the application that the client calls in another thread, and waits for."""

        def call(argument: Any) -> R:
            _local.facade = self
            try:
                return function(argument)
            finally:
                _local.facade = None

        return call

    def _runs_here(self) -> bool:
        """Return whether this thread runs its event loop, or one of its handlers or checks."""
        is_loop = self._thread is not None and self._thread.is_current()
        return is_loop or getattr(_local, "facade", None) is self

    def _is_parents(self) -> bool:
        """Return whether the parent of this forked process opened the client."""
        return self._thread is not None and self._forks != forks()

    # Calls.

    def _open_thread(self) -> LoopThread:
        """Return the thread of the open client. Raises ClientClosed, ClientForked."""
        self._check_process()
        if self._thread is None:
            name = type(self).__name__
            raise ClientClosed(f"open it first: with {name}(...) as client, or client.open()")
        return self._thread

    def _check_process(self) -> None:
        if self._is_parents():
            host = self._client._host
            raise ClientForked(type(self).__name__, 0 if host is None else host.process)

    def _call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a coroutine function in the event loop."""
        return self._open_thread().call(functools.partial(function, *args, **kwargs))

    def _call_now(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function in the event loop, or directly if there is none."""
        self._check_process()
        if self._thread is None:
            return function(*args, **kwargs)

        async def call() -> R:
            return function(*args, **kwargs)

        return self._thread.call(call)

    # The end of the program.

    def _begin_end(self) -> Future[int]:
        """Start to close the client. The future has the number of lost messages."""
        assert self._thread is not None, "the end of a client that is not open"
        self._at_end = self._client._pending_messages(), repr(self)

        async def end() -> int:
            self._at_end = self._client._pending_messages(), repr(self)  # here nothing changes between the two
            if (host := self._client._host) is not None:
                host.is_open = False  # threads that do not end with the program send nothing more
            with anyio.move_on_after(EXIT_FLUSH_SECONDS):
                await self._client._finish()
            lost_count = self._client._pending_messages()
            await self._client._close(finish=False)
            return lost_count

        return self._thread.portal.start_task_soon(end)


def waits(method: Callable[Concatenate[C, P], Awaitable[R]]) -> Callable[Concatenate[Facade[C], P], R]:
    """Make the blocking method that calls a coroutine function."""

    @functools.wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._call(method, facade._client, *args, **kwargs)

    return call


def at_once(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Facade[C], P], R]:
    """Wrap a method that does not wait, so that any thread can call it."""

    @functools.wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._call_now(method, facade._client, *args, **kwargs)

    return call


@atexit.register
def _close_at_exit() -> None:
    """Close the clients that the program left open, within some seconds. Warn of those that lose messages."""
    ends: list[tuple[Facade[Any], Future[int]]] = []
    for facade in list(_open.values()):
        if facade._is_parents():
            continue
        try:
            ends.append((facade, facade._begin_end()))
        except RuntimeError as error:  # its event loop has failed
            log.debug("close_failed", client=repr(facade), reason=str(error))
    deadline = time.monotonic() + EXIT_SECONDS
    for facade, end in ends:
        try:
            lost_count = end.result(max(deadline - time.monotonic(), 0.0))
        except Exception as error:
            log.warning("close_failed", client=repr(facade), reason=str(error) or type(error).__name__)
            lost_count = facade._at_end[0]
        pending_count, text = facade._at_end
        if pending_count:
            log.warning("not_closed", client=text, pending=pending_count, lost=lost_count, missing="client.close()")
