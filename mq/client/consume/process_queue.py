"""Unfinished messages of one assigned queue. Pure: no I/O, no clock.

Offsets enter in increasing order and leave in any order. The offset to commit is the smallest one that is not
acknowledged; a message that keeps failing holds it back, so a restart skips nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from mq.client.message import MessageQueue, ReceivedMessage


class FlowLimits:
    """The limits at which pulling pauses. A queue may exceed each limit by one pull at most.

    `count_max` messages, `bytes_max` bytes of bodies, and `span_max` offsets between the oldest unacknowledged message
    and the newest one (which limits redelivery after a restart).
    """

    __slots__ = ("bytes_max", "count_max", "span_max")

    def __init__(self, count_max: int = 1000, bytes_max: int = 32 * 1024 * 1024, span_max: int = 2000) -> None:
        for name, value in (("count_max", count_max), ("bytes_max", bytes_max), ("span_max", span_max)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.span_max = span_max


class ProcessQueue:
    """Buffers the messages of one assigned queue between pulls, handlers and offset commits.

    `next_offset` is where the next pull begins. Once `dropped` is set (another member owns the queue, or the broker
    moved the offset), nothing more is delivered and acknowledgements do not affect commits. Nothing is delivered
    after `held_until` either: then the lock on the queue has expired, unless it was renewed. While `paused`, nothing is
    delivered or pulled.
    """

    __slots__ = (
        "_acknowledged",
        "_later",
        "_ready",
        "_unacknowledged",
        "_watchers",
        "blocked_until",
        "cached_bytes",
        "cached_count",
        "dropped",
        "held_until",
        "leased",
        "next_offset",
        "paused",
        "queue",
    )

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.dropped = False
        self.leased = False
        self.paused = False
        self.blocked_until = float("-inf")
        self.held_until = float("inf")
        self.cached_count = 0
        self.cached_bytes = 0
        self._ready: deque[ReceivedMessage[Any]] = deque()
        self._later: list[tuple[float, int, ReceivedMessage[Any]]] = []
        self._unacknowledged: deque[int] = deque()
        self._acknowledged: set[int] = set()
        self._watchers: set[Callable[[], None]] = set()

    @property
    def commit_offset(self) -> int:
        """The smallest unacknowledged offset."""
        return self._unacknowledged[0] if self._unacknowledged else self.next_offset

    def oldest(self, count: int) -> list[int]:
        """List the first `count` unacknowledged offsets, or all."""
        offsets = (offset for offset in self._unacknowledged if offset not in self._acknowledged)
        return list(islice(offsets, count))

    @property
    def ready_count(self) -> int:
        """The number of messages that can be taken now: all but those that wait for a retry."""
        return len(self._ready)

    def available_at(self, now: float) -> float | None:
        """Return when `take` will return a message: `now`, a later retry time, or None if no message waits."""
        if not (self._ready or self._later) or not self.may_go_on(now):
            return None
        at = now if self._ready else self._later[0][0]
        return max(at, self.blocked_until, now)

    def may_go_on(self, now: float) -> bool:
        """Return whether taken messages may be handled: this member still has the queue, and it is not paused."""
        return not (self.dropped or self.paused) and now < self.held_until

    def is_full(self, limits: FlowLimits) -> bool:
        """Return whether pulling must pause."""
        return (
            self.cached_count >= limits.count_max
            or self.cached_bytes >= limits.bytes_max
            or self._span() >= limits.span_max
        )

    def drop(self) -> None:
        """Deliver nothing more: this member lost the queue, or reads it again from another offset."""
        self.dropped = True
        for watcher in list(self._watchers):
            watcher()

    @contextmanager
    def watch(self, watcher: Callable[[], None]) -> Iterator[None]:
        """Call `watcher` when the queue is dropped during the block."""
        self._watchers.add(watcher)
        try:
            yield
        finally:
            self._watchers.discard(watcher)

    def full_reason(self, limits: FlowLimits) -> str:
        """Say why pulling pauses while `is_full`."""
        if self._span() >= limits.span_max and self.cached_count < self._span():
            return (
                f"the message at offset {self.commit_offset} is not finished, and {self._span()} offsets were pulled "
                "from it on, as many as span_max allows"
            )
        return "too many messages were pulled, and none of them is handled, acknowledged or polled"

    def _span(self) -> int:
        return self.next_offset - self.commit_offset

    def put(self, messages: Iterable[ReceivedMessage[Any]], next_offset: int) -> None:
        """Add the messages of a pull, in the order of their offsets. The next pull starts at `next_offset`."""
        unacknowledged, ready = self._unacknowledged, self._ready
        previous = unacknowledged[-1] if unacknowledged else -1
        count = nbytes = 0
        for message in messages:
            offset = message.queue_offset
            assert offset > previous, f"{self.queue}: offset {offset} came after {previous}"
            previous = offset
            unacknowledged.append(offset)
            ready.append(message)
            count += 1
            nbytes += len(message.raw_body)
        self.cached_count += count
        self.cached_bytes += nbytes
        assert next_offset >= self.next_offset, f"{self.queue}: next {next_offset} < {self.next_offset}"
        self.next_offset = next_offset

    def take(self, count: int, now: float) -> list[ReceivedMessage[Any]]:
        """Take up to `count` messages: due retries first, then in offset order."""
        if now < self.blocked_until or not self.may_go_on(now):
            return []
        messages: list[ReceivedMessage[Any]] = []
        while self._later and self._later[0][0] <= now and len(messages) < count:
            messages.append(heappop(self._later)[2])
        ready = self._ready
        if not messages and len(ready) <= count:
            messages.extend(ready)
            ready.clear()
        else:
            messages.extend(ready.popleft() for _ in range(min(len(ready), count - len(messages))))
        return messages

    def acknowledge(self, message: ReceivedMessage[Any]) -> None:
        """Finish a message that was taken, and was not acknowledged or returned since."""
        offset = message.queue_offset
        unacknowledged, acknowledged = self._unacknowledged, self._acknowledged
        assert unacknowledged, f"{self.queue}: offset {offset} acknowledged, but none is outstanding"
        assert unacknowledged[0] <= offset, f"{self.queue}: offset {offset} acknowledged twice"
        assert offset not in acknowledged, f"{self.queue}: offset {offset} acknowledged twice"
        self.cached_count -= 1
        self.cached_bytes -= len(message.raw_body)
        if unacknowledged[0] != offset:
            acknowledged.add(offset)
            return
        unacknowledged.popleft()
        while unacknowledged and unacknowledged[0] in acknowledged:
            acknowledged.remove(unacknowledged.popleft())

    def give_back(self, messages: Iterable[ReceivedMessage[Any]], not_before: float) -> None:
        """Put unfinished messages back: they are delivered again at `not_before`, and others in the meantime."""
        for message in messages:
            heappush(self._later, (not_before, message.queue_offset, message))

    def block(self, messages: list[ReceivedMessage[Any]], until: float) -> None:
        """Put unfinished messages back, and deliver nothing of the queue until they are delivered again at `until`.

        This is `give_back` for ordered consumption.
        """
        self._ready.extendleft(reversed(messages))
        self.blocked_until = until

    def check_invariants(self) -> None:
        """Assert the invariants of the queue. For tests, between calls."""
        offsets = list(self._unacknowledged)
        assert offsets == sorted(set(offsets)), f"{self.queue}: offsets out of order: {offsets}"
        assert self._acknowledged < set(offsets) or not self._acknowledged, "acknowledged offsets linger"
        assert not offsets or offsets[0] not in self._acknowledged, "the commit offset could advance"
        assert self.cached_count == len(offsets) - len(self._acknowledged), "cached_count is wrong"
        assert self.commit_offset <= self.next_offset, f"{self.commit_offset} > {self.next_offset}"
