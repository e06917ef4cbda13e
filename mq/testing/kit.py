"""`Kit` and `SyncKit`: brokers for a test with an event loop, and for a test without one."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from mq.client.application_code import runs_on_asyncio
from mq.client.message import ReceivedMessage
from mq.client.sync.loop_thread import LoopThread
from mq.protocol.names import dead_letter_topic
from mq.testing.cluster import Cluster
from mq.testing.core import Core
from mq.testing.directory import warn_not_closed
from mq.testing.faults import Faults
from mq.testing.pending import Pending

T = TypeVar("T")

HOPS_MAX = 1000
"""The number of times that `advance_until` moves to the next due time."""
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.001, 0.05


class _BrokerLoop(Protocol):
    """Calls functions in the event loop of the brokers."""

    def read(self, function: Callable[[], T]) -> T: ...


class _SameLoop:
    """Calls the brokers in the event loop of the test."""

    def read(self, function: Callable[[], T]) -> T:
        return function()

    async def wait(self, function: Callable[[], Awaitable[T]]) -> T:
        return await function()


class _OtherLoop:
    """Calls the brokers in the event loop of another thread."""

    def __init__(self, portal: anyio.from_thread.BlockingPortal) -> None:
        self._portal = portal
        self._process = os.getpid()
        self.is_closed = False

    def read(self, function: Callable[[], T]) -> T:
        return self._require_portal().call(function)

    def wait_here(self, function: Callable[[], Awaitable[T]]) -> T:
        return self._require_portal().call(function)

    async def wait(self, function: Callable[[], Awaitable[T]]) -> T:
        return await anyio.to_thread.run_sync(self._require_portal().call, function, abandon_on_cancel=True)

    def _require_portal(self) -> anyio.from_thread.BlockingPortal:
        """Return the portal. Raises RuntimeError if the kit is closed, or belongs to another process."""
        if self._process != os.getpid():
            raise RuntimeError(
                f"process {os.getpid()} was forked from {self._process}, which has the brokers of this test kit: "
                "look at them there, or use the fixture raftmq_broker, whose brokers are processes"
            )
        if self.is_closed:
            raise RuntimeError("this test kit is closed: its block has ended")
        return self._portal


class _Inspection:
    """Shows the state of the brokers in both kinds of kits, without a consumer."""

    def __init__(self, core: Core, cluster: Cluster, loop: _BrokerLoop) -> None:
        self._core = core
        self._reads = loop
        self.namesrv = cluster.namesrv
        self.faults: Faults = cluster.network.faults

    def now(self) -> dt.datetime:
        """Return the brokers' time, in UTC."""
        return self._core.now()

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages of a topic that consumers could ever see, in the order in which they were stored."""
        return self._reads.read(lambda: self._core.messages(topic))

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Return the dead letters of a consumer group."""
        return self.messages(dead_letter_topic(group))

    def pending(self, topic: str | None = None) -> list[Pending]:
        """List the messages that wait for their time, the next one first; of one topic if it is named."""
        return self._reads.read(lambda: self._core.pending(topic))

    def topics(self) -> list[str]:
        """List the topics that have messages, including those of brokers and groups."""
        return self._reads.read(self._core.topics)

    def describe(self) -> str:
        """Describe in words the messages that the brokers have, and those that wait for their time."""
        return self._reads.read(self._core.describe)

    @property
    def leader(self) -> str | None:
        """The replica that leads; None during an election."""
        return self._reads.read(lambda: self._core.leader)

    def assert_stored(self, topic: str, *bodies: bytes) -> None:
        """Assert that the topic has messages with exactly these bodies, in any order."""
        stored_bodies = [message.body for message in self.messages(topic)]
        lacks, extra = _without(bodies, stored_bodies), _without(stored_bodies, bodies)
        if lacks or extra:
            raise AssertionError(
                f"{topic} lacks the expected {lacks}, and has the unexpected {extra}\n{self.describe()}"
            )

    def assert_no_dead_letters(self, group: str) -> None:
        """Assert that the group has no dead letters."""
        if letters := self.dead_letters(group):
            raise AssertionError(f"{group} has {len(letters)} dead letters; the first is {letters[0]!r}")

    def break_connections(self) -> None:
        """Break the connections of all clients, which may connect again."""
        self._reads.read(self._core.break_connections)

    def _still_false(self, began: dt.datetime, hops: int) -> AssertionError:
        return AssertionError(
            f"the condition is still false; {self.now() - began} went by for the brokers, and {hops} times something "
            f"was due\n{self.describe()}"
        )


class Kit(_Inspection):
    """Brokers for a test on trio or asyncio; see `open_kit`.

    Attributes:
        namesrv: the address for clients.
        faults: switches for what goes wrong.
    """

    def __init__(self, core: Core, cluster: Cluster, loop: _SameLoop | _OtherLoop) -> None:
        super().__init__(core, cluster, loop)
        self._loop = loop

    async def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Advance the brokers' clock, and wait until they have delivered what is due by then.

        Raises ValueError for a negative duration.
        """
        duration = _seconds(days, hours, minutes, seconds, milliseconds)
        await self._loop.wait(lambda: self._core.advance(duration))

    async def advance_to_next(self) -> Pending | None:
        """Advance the clock to the next time at which something is due. Returns that; None if nothing waits."""
        return await self._loop.wait(self._core.advance_to_next)

    async def advance_until(self, condition: Callable[[], object], *, timeout: float = 10.0) -> None:
        """Advance the clock from one due time to the next, until ``condition()`` is true.

        In between it waits until clients have done what they can. ``timeout`` is the limit in seconds on the clock of
        the event loop, for what never comes.

        Raises AssertionError if the condition stays false; it says what the brokers have.
        """
        hops, pause, began = 0, _PAUSE_SECONDS_MIN, self.now()
        deadline = anyio.current_time() + timeout
        while True:
            await self.settle()
            if _holds(condition):
                return
            if hops >= HOPS_MAX or anyio.current_time() > deadline:
                raise self._still_false(began, hops)
            if await self._loop.wait(lambda: self._core.hop(pause)):  # noqa: B023 - called at once
                hops, pause = hops + 1, _PAUSE_SECONDS_MIN
            else:
                pause = min(pause * 1.5, _PAUSE_SECONDS_MAX)

    async def settle(self) -> None:
        """Wait until the brokers have nothing to do before their clock advances. Then clients of the same event loop
        have nothing to do either; clients of other loops have been silent for some milliseconds.
        """
        await self._loop.wait(self._core.settle)

    async def lose_leader(self) -> str:
        """Cut the leader off, and wait until another replica leads. Returns the name of the lost one.

        Raises ValueError with a single replica.
        """
        return await self._loop.wait(self._core.lose_leader)

    async def restore(self, replica: str) -> None:
        """Reconnect a lost replica, and wait until it has all entries."""
        await self._loop.wait(lambda: self._core.restore(replica))

    async def wait_ready(self) -> None:
        """Wait until a replica leads and clients find it."""
        await self._loop.wait(self._core.wait_ready)


class SyncKit(_Inspection):
    """Brokers for a test without an event loop, or whose event loop they do not use; see `running_kit`.

    Attributes:
        namesrv: the address for clients, of any thread and event loop.
        faults: switches for what goes wrong.
    """

    def __init__(self, core: Core, cluster: Cluster, loop: _OtherLoop) -> None:
        super().__init__(core, cluster, loop)
        self._loop = loop

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Advance the brokers' clock, as `Kit.advance` does."""
        duration = _seconds(days, hours, minutes, seconds, milliseconds)
        self._loop.wait_here(lambda: self._core.advance(duration))

    def advance_to_next(self) -> Pending | None:
        """Advance the clock to the next due time, as `Kit.advance_to_next` does."""
        return self._loop.wait_here(self._core.advance_to_next)

    def advance_until(self, condition: Callable[[], object], *, timeout: float = 10.0) -> None:
        """Advance the clock until ``condition()`` is true, as `Kit.advance_until` does."""
        hops, pause, began = 0, _PAUSE_SECONDS_MIN, self.now()
        deadline = time.monotonic() + timeout
        while True:
            self.settle()
            if _holds(condition):
                return
            if hops >= HOPS_MAX or time.monotonic() > deadline:
                raise self._still_false(began, hops)
            if self._loop.wait_here(lambda: self._core.hop(pause)):  # noqa: B023 - called at once
                hops, pause = hops + 1, _PAUSE_SECONDS_MIN
            else:
                pause = min(pause * 1.5, _PAUSE_SECONDS_MAX)

    def settle(self) -> None:
        """Wait until the brokers have nothing to do now, as `Kit.settle` does."""
        self._loop.wait_here(self._core.settle)

    def lose_leader(self) -> str:
        """Cut the leader off, and wait until another replica leads, as `Kit.lose_leader` does."""
        return self._loop.wait_here(self._core.lose_leader)

    def restore(self, replica: str) -> None:
        """Reconnect a lost replica, as `Kit.restore` does."""
        self._loop.wait_here(lambda: self._core.restore(replica))

    def wait_ready(self) -> None:
        """Wait until a replica leads and clients find it, as `Kit.wait_ready` does."""
        self._loop.wait_here(self._core.wait_ready)


@contextlib.asynccontextmanager
async def open_kit(*, replicas: int = 1, **settings: Any) -> AsyncIterator[Kit]:
    """Start brokers for the block. On trio they use the caller's event loop and its clock, which may be virtual; on
    asyncio a thread.

    Args:
        replicas: of the broker group: 1, 3 or 5.
        settings: of the brokers, for example ``transaction_timeout_seconds=1``.

    Raises ValueError, pydantic.ValidationError for settings that a broker does not have.
    """
    if not runs_on_asyncio():
        async with Cluster.open(replicas, settings) as cluster:
            yield Kit(Core(cluster, clients_elsewhere=False), cluster, _SameLoop())
        return
    kit_thread = _KitThread(replicas, settings)
    try:
        await anyio.to_thread.run_sync(kit_thread.open)  # continues if it is cancelled
        yield Kit(*kit_thread.parts)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(kit_thread.close)


@contextlib.contextmanager
def running_kit(*, replicas: int = 1, **settings: Any) -> Iterator[SyncKit]:
    """Start brokers in a thread for the block, for synchronous and other clients; see `open_kit`."""
    kit_thread = _KitThread(replicas, settings)
    kit_thread.open()
    try:
        yield SyncKit(*kit_thread.parts)
    except GeneratorExit:
        kit_thread.warn_if_open()
        raise
    finally:
        kit_thread.close()


class _KitThread:
    """Runs brokers in a thread with an event loop.

    In a process that was forked from the one that has the thread, closing does nothing.
    """

    def __init__(self, replicas: int, settings: dict[str, Any]) -> None:
        self._replicas, self._settings = replicas, settings
        self._process = os.getpid()
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        """Start the brokers, unless the kit is closed. After an exception, as of `open_kit`, there is no thread."""
        with self._lock, contextlib.ExitStack() as stack:
            if self._is_closed:
                return
            thread = LoopThread("raftmq.testing")
            stack.callback(thread.stop, "the brokers of a test kit")
            cluster_context = Cluster.open(self._replicas, self._settings)
            cluster = stack.enter_context(thread.portal.wrap_async_context_manager(cluster_context))
            loop = _OtherLoop(thread.portal)
            self.parts = Core(cluster, clients_elsewhere=True), cluster, loop
            self._stack = stack.pop_all()
            _running_threads.add(self)

    def close(self) -> None:
        """Stop the brokers and end the thread. Waits for an `open` that is under way in another thread."""
        is_own = self._process == os.getpid()
        with self._lock if is_own else contextlib.nullcontext():
            self._is_closed = True
            if self in _running_threads:
                _running_threads.discard(self)
                self.parts[2].is_closed = True
            stack = self._stack.pop_all()
            if is_own:
                stack.close()
            else:
                stack.pop_all()

    def warn_if_open(self) -> None:
        """Warn if the test did not close the kit."""
        if self in _running_threads and self._process == os.getpid():
            warn_not_closed()


_running_threads: set[_KitThread] = set()


@atexit.register
def _close_at_exit() -> None:
    for each in list(_running_threads):
        each.warn_if_open()
        each.close()


def _holds(condition: Callable[[], object]) -> bool:
    """Return whether the condition is true. Raises TypeError for a coroutine function, whose result always is."""
    result = condition()
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"the condition is a plain function (def or lambda), not {condition!r}")
    return bool(result)


def _seconds(days: float, hours: float, minutes: float, seconds: float, milliseconds: float) -> float:
    return dt.timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    ).total_seconds()


def _without(some: Any, others: Any) -> list[bytes]:
    rest = list(others)
    extra = []
    for each in some:
        if each in rest:
            rest.remove(each)
        else:
            extra.append(each)
    return extra
