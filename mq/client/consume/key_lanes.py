"""Handles the messages of each sharding key in order, and messages of different keys at the same time.

Theory of operation. A *lane* has the unfinished messages of one key of one queue, in order, and a task that handles
them one after the other; it ends with the last one. A failed message is retried in its lane, and only its lane waits,
until pulling pauses: the failed message holds the offset of its queue, and at most `span_max` offsets from there on
are pulled (`FlowLimits`). If its queue is dropped, it is not retried here, and the lane continues at once. A message
without a key has a lane of its own. At most `concurrency` handlers run at once; lanes that wait for a retry do not
count. What a lane has not finished when it is told to end goes back to its queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any

import anyio
import anyio.abc

from mq.client.consume.process_queue import ProcessQueue
from mq.client.message import ReceivedMessage

Lane = deque[tuple[ProcessQueue, ReceivedMessage[Any]]]


class KeyLanes:
    """The lanes of one `run`: one per sharding key that has unfinished messages.

    `handle` handles a message once; it returns None if it is done, or when to retry it. `give_back` returns a message
    to its queue.
    """

    def __init__(
        self,
        concurrency: int,
        handle: Callable[[ProcessQueue, ReceivedMessage[Any]], Awaitable[float | None]],
        give_back: Callable[[ProcessQueue, ReceivedMessage[Any]], None],
    ) -> None:
        self._slots = anyio.Semaphore(concurrency)
        self._handle = handle
        self._give_back = give_back
        self._lanes: dict[Hashable, Lane] = {}
        self._wake_events: set[anyio.Event] = set()
        self._is_ending = False

    def add(
        self, tasks: anyio.abc.TaskGroup, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage[Any]]
    ) -> None:
        """Add messages to the lanes of their keys. New lanes run in `tasks`."""
        for message in messages:
            key: Hashable = object() if message.sharding_key is None else (message.queue, message.sharding_key)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = deque()
                tasks.start_soon(self._run, key, lane)
            lane.append((process_queue, message))

    def stop(self) -> None:
        """Start no more handlers; running handlers finish."""
        self._is_ending = True
        for wakes in self._wake_events:
            wakes.set()

    async def _run(self, key: Hashable, lane: Lane) -> None:
        try:
            while lane:
                process_queue, message = lane[0]
                retry_at: float | None = None
                async with self._slots:
                    if self._is_ending:
                        return
                    if process_queue.may_go_on(anyio.current_time()):
                        retry_at = await self._handle(process_queue, message)
                    elif not process_queue.dropped:
                        return  # paused, or its lock has expired
                if retry_at is None:
                    lane.popleft()
                elif not process_queue.dropped:
                    await self._wait(process_queue, retry_at)
        finally:
            del self._lanes[key]
            for process_queue, message in lane:
                self._give_back(process_queue, message)

    async def _wait(self, process_queue: ProcessQueue, until: float) -> None:
        """Wait until a time, until the queue is dropped, or until `stop`."""
        wakes = anyio.Event()
        self._wake_events.add(wakes)
        try:
            with process_queue.watch(wakes.set), anyio.move_on_at(until):
                await wakes.wait()
        finally:
            self._wake_events.discard(wakes)
