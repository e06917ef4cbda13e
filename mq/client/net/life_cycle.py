"""Opens and closes clients of every kind.

Theory of operation. While a client is open, its session runs in a task of its own, the host: a client may be closed by
another task than the one that opened it. On asyncio the host is a task, on trio a system task. `async with` adds what
makes it a block of structured concurrency: it ends after the session, and if the session fails, its body is cancelled
and the block raises the failure.

| state | `open` | `aclose` | everything else |
|---|---|---|---|
| never opened, or closed | opens it, as a new client to the brokers | does nothing | ClientClosed |
| being opened | AlreadyOpen | cancels that, and `open` raises ClientClosed | ClientClosed |
| open | AlreadyOpen | closes it | works |
| being closed | AlreadyOpen | waits for the end | ClientClosed |
| failed | opens it | raises the failure, once | ClientClosed |
| opened by the parent of this process | opens it, as another client | forgets the parent's session | ClientForked |
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import anyio
import anyio.lowlevel

from mq.client.application_code import runs_on_asyncio
from mq.client.errors import AlreadyOpen, ClientClosed, ClientForked
from mq.client.events import Health, OnEvent
from mq.client.limits import DEFAULT, ClientLimits
from mq.client.logs import log
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.forks import call_in_children, forks
from mq.client.net.ping import PING_SECONDS, ping

if TYPE_CHECKING:
    import asyncio

_host_here: contextvars.ContextVar[_ClientHost | None] = contextvars.ContextVar("_host_here", default=None)
_hosts: dict[int, weakref.ref[_ClientHost]] = {}


class Client:
    """Base of all clients. Use it as a context manager, or call `open` and `aclose`."""

    _core: ClientCore | None = None
    _remoting_settings: RemotingSettings | None = None
    _on_event: OnEvent | None = None
    _pings_first = False
    """Whether opening it checks its addresses."""
    _host: _ClientHost | None = None
    _block: _ClientHost | None = None

    def _take_settings(self, remoting: RemotingSettings | None) -> None:
        """Set the settings. Raises TypeError for a value that is not a RemotingSettings."""
        settings: Any = remoting
        if settings is not None and not isinstance(settings, RemotingSettings):
            raise TypeError(f"remoting is a RemotingSettings, not {settings!r}")
        self._remoting_settings = remoting

    @property
    def _limits(self) -> ClientLimits:
        return DEFAULT if self._remoting_settings is None else self._remoting_settings.limits

    async def open(self) -> Self:
        """Open the client until `aclose`, which any task of this event loop may call; `async with` does both.

        Raises AlreadyOpen, and what prevents opening; the client is closed then. If cancelled, too.
        """
        await self._open()
        return self

    async def aclose(self) -> None:
        """Close the client: wait for sends in flight, store offsets, unregister. The end of its block does the same.

        Any task may call it. A closed client may be opened again, and is a new one to the brokers. If cancelled, it
        waits only for the rest, some seconds at most. Raises what made a task of the client fail. Called by a check or
        a callback of the client, it does not wait.
        """
        await self._close(finish=True)

    async def ping(self, *topics: str, timeout: float = PING_SECONDS) -> None:
        """Check that a name server and a leader answer, and that these topics exist.

        Raises within `timeout` seconds, and says what to do: NameServersUnavailable, ConnectFailed, NoRoute,
        TopicNotFound, BrokerError. With the option `ping=True`, opening a client does the same.
        """
        self._check_open()
        assert self._core is not None, "open without connections"
        await ping(self._core, topics, timeout)

    def health(self) -> Health:
        """Return whether the client can work now, and its problems. It sends no request, and does not wait."""
        try:
            self._check_open()
        except ClientClosed as error:
            cause = "" if error.__cause__ is None else f", because of {error.__cause__!r}"
            return Health((f"{error}{cause}",))
        return Health(tuple(dict.fromkeys(self._troubles())))

    async def __aenter__(self) -> Self:
        self._block = await self._open()
        self._block.enter_body()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        host = self._block
        assert host is not None, "a block ends that was never entered"
        outcome = error
        try:
            await host.take_cancellation(error)  # noqa: ASYNC102
            await self._close(finish=error is None)  # noqa: ASYNC102 - shields itself
        except BaseException as failure:  # noqa: ASYNC103
            outcome = host.merge(error, failure)
        rest = host.leave_body(outcome)
        if rest is not error:
            raise rest or ClientClosed("its event loop has ended")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or sent to another process: make it there")

    async def _open(self) -> _ClientHost:
        if self._host is not None and not self._host.is_over and not self._host.is_parents:
            raise AlreadyOpen(f"{self!r} is already open; a client has one block or one open() at a time")
        self._renew()
        host = self._host = _ClientHost(self)
        host.start()
        try:
            await host.opening_ended.wait()
        except BaseException:
            await host.end()  # noqa: ASYNC102 - shields itself
            raise
        host.raise_failure()
        if not host.is_open:
            raise ClientClosed("the client was closed while it was being opened")
        return host

    async def _close(self, *, finish: bool) -> None:
        host = self._host
        if host is None:
            return
        if host.is_parents:
            self._host = None
            return
        if not host.is_at_home():
            if host.is_over or host.is_lost():
                return
            raise ClientClosed("it was opened in another event loop, and is closed there")
        if _host_here.get() is host:
            host.close_event.set()
            return
        if host.is_finishing:
            await host.end_event.wait()  # another task closes it
        elif host.is_open and finish:
            host.is_finishing, host.is_open = True, False
            try:
                await self._finish()
            finally:
                await host.end()  # noqa: ASYNC102 - shields itself
        else:
            await host.end()
        host.raise_failure()

    # For the kinds of clients.

    @abstractmethod
    def _session(self) -> AbstractAsyncContextManager[object]:
        """Run the client's tasks and resources while it is open."""

    def _troubles(self) -> Iterator[str]:
        """Yield the problems that keep the open client from working."""
        if self._core is not None:
            yield from self._core.troubles()

    def _open_connections(self) -> int:
        return 0 if self._core is None else self._core.open_connections

    async def _ping_first(self, core: ClientCore) -> None:
        """Called when connections can be opened, before any other request."""
        await anyio.lowlevel.checkpoint()
        if self._pings_first:
            await ping(core, self._checked_topics(), PING_SECONDS)

    def _checked_topics(self) -> Collection[str]:
        """Return the topics that must exist when the client is opened with `ping=True`."""
        return ()

    def _renew(self) -> None:
        """Start a new session, with a new identity and without the state of the last one."""

    async def _finish(self) -> None:
        """Wait for requests in flight before the session ends, unless it ends with an exception."""

    def _pending_messages(self) -> int:
        """Return the number of messages that are lost, or may be, if the process ends now."""
        return 0

    def _mark_own_task(self) -> None:
        """Mark this task as one that runs an async function of the application: `aclose` cannot wait in it."""
        _host_here.set(self._host)

    def _check_open(self) -> None:
        """Raise ClientClosed or ClientForked unless the client can be used."""
        if self._is_usable():
            return
        host = self._host
        self._check_process()
        name = type(self).__name__
        if host is None:
            raise ClientClosed(f"open it first: async with {name}(...) as client, or await client.open()")
        if host.is_open:
            raise ClientClosed(f"this {name} was opened in another event loop: open one here")
        raise ClientClosed(f"this {name} is closed") from host.failure

    def _is_usable(self) -> bool:
        """Return whether `_check_open` would raise nothing; faster, for sends."""
        host = self._host
        try:
            return host is not None and host.is_open and host.here() is host.home
        except RuntimeError:  # no event loop runs here
            return False

    def _check_process(self) -> None:
        """Refuse use in a forked process. Raises ClientForked."""
        host = self._host
        if host is not None and host.is_parents:
            raise ClientForked(type(self).__name__, host.process)


class _ClientHost:
    """One session of a client, from its opening to its end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._forks = forks()
        self.process = os.getpid()
        self.is_asyncio = runs_on_asyncio()
        if self.is_asyncio:
            import asyncio

            self.here: Callable[[], object] = asyncio.get_running_loop
        else:
            import trio

            self.here = trio.lowlevel.current_trio_token
        self.home = self.here()
        self.opening_ended = anyio.Event()
        """Open, or failed to open."""
        self.close_event = anyio.Event()
        self.is_open = False
        """Whether it may be used; no more in a process that is forked from this one."""
        self.is_finishing = False
        """Whether it ends when nothing is in flight any more."""
        self.failure: BaseException | None = None
        self._is_raised = False
        self.end_event = anyio.Event()
        self._scope = anyio.CancelScope()
        self._body: _BlockBody | None = None
        self._is_interrupted = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self.end_event.is_set()

    @property
    def is_parents(self) -> bool:
        """Whether the session runs in the parent of this forked process."""
        return self._forks != forks()

    def is_at_home(self) -> bool:
        """Return whether the caller runs in the session's event loop."""
        try:
            return self.here() is self.home
        except RuntimeError:  # none runs here
            return False

    def is_lost(self) -> bool:
        """Return whether the session's event loop was closed before the session ended."""
        if not self.is_asyncio:
            return False
        import asyncio

        assert isinstance(self.home, asyncio.AbstractEventLoop), f"the home of a client on asyncio is {self.home}"
        return self.home.is_closed()

    def start(self) -> None:
        """Run the session in a separate task."""
        _hosts[id(self)] = weakref.ref(self)
        name = f"{type(self._client).__name__} of mq.client"
        if self.is_asyncio:
            import asyncio

            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)
        else:
            import trio

            trio.lowlevel.spawn_system_task(self._run, name=name, context=contextvars.copy_context())

    async def _run(self) -> None:
        pending_count, text = 0, ""
        try:
            with self._scope:
                async with self._client._session():
                    self.is_open = True
                    self.opening_ended.set()
                    try:
                        await self.close_event.wait()
                    except BaseException:
                        pending_count, text = self._client._pending_messages(), repr(self._client)
                        self.interrupt()
                        raise
        except anyio.get_cancelled_exc_class():
            # The event loop ends, and the client was not closed.
            self.failure = ClientClosed("its event loop has ended")
            self._is_raised = True
            _warn_not_closed(text, pending_count)
            raise
        except BaseException as error:  # noqa: ASYNC103 - it is raised where the client is closed
            self._fail(error)
        finally:
            self.is_open = False
            _hosts.pop(id(self), None)
            self.opening_ended.set()
            self.end_event.set()

    def _fail(self, error: BaseException) -> None:
        was_open = self.opening_ended.is_set()
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        self.failure = error
        if was_open and self._body is None:
            log.exception("client_failed", error, client=repr(self._client))

    async def end(self) -> None:
        """End the session, and wait for that, even if cancelled: some seconds at most."""
        if not self.opening_ended.is_set():
            self._scope.cancel()
        self.close_event.set()
        with anyio.CancelScope(shield=True):
            await self.end_event.wait()

    def raise_failure(self) -> None:
        """Raise the error that ended the session, once."""
        if self.failure is not None and not self._is_raised:
            self._is_raised = True
            raise self.failure

    # The body of `async with`.

    def enter_body(self) -> None:
        """Prepare to cancel the body, which starts in this task."""
        self._body = _AsyncioBody() if self.is_asyncio else _TrioBody()
        if self._is_interrupted:
            self._body.cancel()

    def interrupt(self) -> None:
        """Cancel the body, because a task of the client has failed."""
        self._is_interrupted = True
        if self._body is not None:
            self._body.cancel()

    async def take_cancellation(self, error: BaseException | None) -> None:
        """Take the cancellation of a body that ended without an error before it noticed."""
        if self._body is not None and self._is_interrupted and error is None:
            with contextlib.suppress(anyio.get_cancelled_exc_class()):
                await anyio.lowlevel.checkpoint()

    def leave_body(self, error: BaseException | None) -> BaseException | None:
        """End the body. Returns its `error` without the cancellation that this session requested."""
        body, self._body = self._body, None
        return error if body is None else body.leave(error)

    def merge(self, error: BaseException | None, failure: BaseException) -> BaseException:
        """Return the error of a block whose body raised `error`, and whose end raised `failure`."""
        if error is None or failure is not self.failure or isinstance(error, ClientClosed):
            return failure
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return failure  # the body was cancelled because of it
        return BaseExceptionGroup("the body of a client's block and a task of the client failed", [error, failure])


class _BlockBody(ABC):
    """The body of a block, which is cancelled if the session fails."""

    @abstractmethod
    def cancel(self) -> None: ...

    @abstractmethod
    def leave(self, error: BaseException | None) -> BaseException | None: ...


class _TrioBody(_BlockBody):
    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._scope.__enter__()

    def cancel(self) -> None:
        self._scope.cancel()

    def leave(self, error: BaseException | None) -> BaseException | None:
        try:
            is_swallowed = self._scope.__exit__(
                type(error) if error else None, error, error.__traceback__ if error else None
            )
        except BaseException as rest:  # noqa: ASYNC103
            return rest  # noqa: ASYNC104
        return None if is_swallowed else error


class _AsyncioBody(_BlockBody):
    """A task group as `asyncio.TaskGroup` has it; its block may be left in another task than it was entered in."""

    def __init__(self) -> None:
        import asyncio

        self._current_task: Callable[[], asyncio.Task[Any] | None] = asyncio.current_task
        self._task = asyncio.current_task()
        self._is_cancelled = False

    def cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._is_cancelled = self._task.cancel()

    def leave(self, error: BaseException | None) -> BaseException | None:
        if self._is_cancelled and self._task is not None and self._current_task() is self._task:
            self._task.uncancel()
        return error


def _warn_not_closed(client: str, pending_count: int) -> None:
    if pending_count:
        log.warning("not_closed", client=client, pending=pending_count, missing="await client.aclose()")


def _leave_parents_clients() -> None:
    for each in list(_hosts.values()):
        if (host := each()) is not None:
            host.is_open = False


call_in_children(_leave_parents_clients)


@atexit.register
def _warn_at_exit() -> None:
    """Name the clients whose event loop stopped without their end."""
    for each in list(_hosts.values()):
        host = each()
        if host is not None and host.is_open and not host.is_parents:
            _warn_not_closed(repr(host._client), host._client._pending_messages())
