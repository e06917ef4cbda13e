"""Holds pulls that wait for a message, as entries of a table and a heap instead of tasks.

Ten thousand idle consumers cost ten thousand small objects and no CPU (measured: 0.15 us to hold a pull, against 11 us
and 2 KiB for a task). Holding, waking and expiring are plain calls; the caller resumes the pulls that they return.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from mq.protocol.numbers import QueueOffset
from mq.store.dispatch import QUEUE_ENTRY

HELD_MAX = 100_000
HELD_PER_CONNECTION_MAX = 10_000
HELD_BYTES_MAX = 128 * 1024 * 1024
_COPIED_FIRST = 32
"""Most messages satisfy a few pulls: only these are looked at before all others are."""

ANSWERED_AT_ONCE = 32
"""Pulls that are answered before the time they took is looked at."""

QueueKey = tuple[str, int]


class WaitingPull(Protocol):
    """A pull that waits for new messages."""

    def matches(self, code: int, /) -> bool:
        """Return whether a message with this tag code may match the pull."""
        ...


PullT = TypeVar("PullT", bound=WaitingPull)


class _QueuedPull(Generic[PullT]):
    """A pull with its deadline. Once answered, it has no pull and is only left in the heap."""

    __slots__ = ("connection", "deadline", "key", "nbytes", "number", "pull", "rivals", "wanted_offset")

    def __init__(
        self,
        key: QueueKey,
        wanted_offset: QueueOffset,
        deadline: float,
        number: int,
        pull: PullT,
        connection: Hashable,
        nbytes: int,
        rivals: Hashable,
    ) -> None:
        self.key = key
        self.wanted_offset = wanted_offset
        self.deadline = deadline
        self.number = number
        self.pull: PullT | None = pull
        self.connection = connection
        self.nbytes = nbytes
        self.rivals = rivals

    def __lt__(self, other: _QueuedPull[PullT]) -> bool:
        return (self.deadline, self.number) < (other.deadline, other.number)


class LongPolling(Generic[PullT]):
    """Holds waiting pulls by queue. `wake` or a ``take`` method returns each once, or it is dropped with its
    connection.

    Args:
        held_max, held_per_connection_max, held_bytes_max: above these, `hold` refuses and the pull is answered at once.

    Attributes:
        nbytes: of the waiting pulls, as passed to `hold`.
    """

    def __init__(
        self,
        *,
        held_max: int = HELD_MAX,
        held_per_connection_max: int = HELD_PER_CONNECTION_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        assert held_max >= 1, f"held_max is {held_max}"
        assert held_per_connection_max >= 1, f"held_per_connection_max is {held_per_connection_max}"
        self._held_max = held_max
        self._held_per_connection_max = held_per_connection_max
        self._held_bytes_max = held_bytes_max
        self.nbytes = 0
        self._by_queue: dict[QueueKey, dict[Hashable, dict[int, _QueuedPull[PullT]]]] = {}
        """The pulls of each queue, by ``rivals`` and then by number."""
        self._by_connection: dict[Hashable, dict[int, _QueuedPull[PullT]]] = {}
        self._heap: list[_QueuedPull[PullT]] = []
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    @property
    def queue_keys(self) -> Collection[QueueKey]:
        """The queues with waiting pulls, as a live view."""
        return self._by_queue

    def hold(
        self,
        key: QueueKey,
        wanted_offset: QueueOffset,
        deadline: float,
        pull: PullT,
        connection: Hashable,
        nbytes: int = 0,
        rivals: Hashable = None,
    ) -> bool:
        """Hold ``pull`` until queue ``key`` gets a matching message at ``wanted_offset`` or later.

        ``deadline`` is monotonic seconds; ``nbytes`` is the memory of the client's texts in ``pull``. Pulls of a queue
        with the same ``rivals`` take messages from each other, see `take_matching`. Returns False, holding nothing, if
        too many wait already.
        """
        assert nbytes >= 0, f"a request with {nbytes} bytes of text is held"
        of_connection = self._by_connection.get(connection)
        if (
            self._count >= self._held_max
            or self.nbytes + nbytes > self._held_bytes_max
            or (of_connection is not None and len(of_connection) >= self._held_per_connection_max)
        ):
            return False
        if of_connection is None:
            of_connection = self._by_connection[connection] = {}
        number = self._number = self._number + 1
        entry = _QueuedPull(key, wanted_offset, deadline, number, pull, connection, nbytes, rivals)
        of_connection[number] = entry
        self._by_queue.setdefault(key, {}).setdefault(rivals, {})[number] = entry
        heapq.heappush(self._heap, entry)
        self._count += 1
        self.nbytes += nbytes
        return True

    def wake(self, key: QueueKey, entries: bytes | bytearray, first_offset: QueueOffset | None = None) -> list[PullT]:
        """Remove and return the pulls that new entries of a queue may satisfy; see `take_satisfied`."""
        return list(self.take_satisfied(key, entries, first_offset)) if key in self._by_queue else []

    def take_satisfied(
        self, key: QueueKey, entries: bytes | bytearray, first_offset: QueueOffset | None = None
    ) -> Iterator[PullT]:
        """Iterate over the waiting pulls that new entries of a queue may satisfy, longest waiting first.

        A pull is removed when it is yielded: until then it is held, and another method may take it.
        ``entries`` are consume queue entries, 20 bytes each. ``first_offset`` is the queue offset of the first; without
        it all entries count, which is right for pulls held at the end of the queue.
        """
        codes = [code for _, _, code in QUEUE_ENTRY.iter_unpack(entries)]
        return self._take_tagged(self._entries(key), codes, first_offset)

    def _take_tagged(
        self, entries: list[_QueuedPull[PullT]], codes: list[int], first_offset: QueueOffset | None
    ) -> Iterator[PullT]:
        distinct = set(codes)
        for entry in entries:
            tag_codes = distinct
            if first_offset is not None and entry.wanted_offset > first_offset:
                tag_codes = set(codes[entry.wanted_offset - first_offset :])
            if (pull := entry.pull) is not None and any(map(pull.matches, tag_codes)):
                self._release(entry)
                yield pull

    def take_matching(self, key: QueueKey, matches: Callable[[PullT], bool | None]) -> list[PullT]:
        """Remove and return the pulls of a queue for which ``matches`` is true; among rivals, longest waiting first.

        ``matches`` returns None if it is neither true for this pull nor for any later one of its rivals: thousands that
        wait for the same message then cost no more than a few.
        """
        woken: list[PullT] = []
        newest = self._number
        for rivals in list(self._by_queue.get(key, {}).values()):
            for entry in _in_order(rivals, newest):
                if entry.pull is None:
                    continue
                is_wanted = matches(entry.pull)
                if is_wanted is None:
                    break
                if is_wanted:
                    woken.append(entry.pull)
                    self._release(entry)
        return woken

    def take_topic(self, topic: str) -> list[PullT]:
        """Remove and return the pulls of all queues of a topic."""
        keys = [key for key in self._by_queue if key[0] == topic]
        return [pull for key in keys for pull in self.take_matching(key, lambda _: True)]

    def take_connection(self, connection: Hashable, matches: Callable[[PullT], bool]) -> list[PullT]:
        """Remove and return the pulls of a connection for which ``matches`` is true, longest waiting first."""
        pulls: list[PullT] = []
        for entry in list(self._by_connection.get(connection, {}).values()):
            if entry.pull is not None and matches(entry.pull):
                pulls.append(entry.pull)
                self._release(entry)
        return pulls

    def count_at(self, key: QueueKey) -> int:
        """Return the number of waiting pulls of a queue."""
        return sum(map(len, self._by_queue.get(key, {}).values()))

    def waiting_for(self, key: QueueKey) -> Iterator[PullT]:
        """Yield the waiting pulls of a queue, grouped by rivals, and longest waiting first in each group."""
        return (entry.pull for entry in self._entries(key) if entry.pull is not None)

    def _entries(self, key: QueueKey) -> list[_QueuedPull[PullT]]:
        return [entry for rivals in self._by_queue.get(key, {}).values() for entry in rivals.values()]

    def take_expired(self, now: float, count_max: int | None = None) -> list[PullT]:
        """Remove and return at most ``count_max`` pulls whose deadline has come by ``now``, earliest first."""
        over: list[PullT] = []
        while self.next_deadline() <= now and self._heap and (count_max is None or len(over) < count_max):
            entry = heapq.heappop(self._heap)
            assert entry.pull is not None, f"pull {entry.number} of {entry.key} is over already"
            over.append(entry.pull)
            self._release(entry)
        return over

    def take_expired_for(self, seconds: float, clock: Callable[[], float]) -> Iterator[PullT]:
        """Remove and yield pulls whose deadline has passed, for about ``seconds``; the next call yields the rest.
        Iterate to the end: each removed pull must be answered.
        """
        now = clock()
        while over := self.take_expired(now, ANSWERED_AT_ONCE):
            yield from over
            if clock() >= now + seconds:
                return

    def next_deadline(self) -> float:
        """Return the latest time at which to call `take_expired`; infinity if no pull waits."""
        while self._heap and self._heap[0].pull is None:
            heapq.heappop(self._heap)
        return self._heap[0].deadline if self._heap else math.inf

    def drop_connection(self, connection: Hashable) -> int:
        """Drop the pulls of a closed connection, and return how many there were."""
        entries = list(self._by_connection.get(connection, {}).values())
        for entry in entries:
            self._release(entry)
        return len(entries)

    def memory_count(self) -> int:
        """Return the number of pulls in memory: waiting ones, and answered ones that are still in the heap."""
        return len(self._heap)

    def check_invariants(self) -> None:
        """Assert that both tables have the same pulls and count them right, and that the heap has each, for tests."""
        by_queue = {entry.number: entry for key in self._by_queue for entry in self._entries(key)}
        empty = [key for key, table in self._by_queue.items() if not table or not all(table.values())]
        assert not empty, f"tables of queues without pulls remain: {empty}"
        by_connection = {number for table in self._by_connection.values() for number in table}
        assert by_queue.keys() == by_connection, f"{len(by_queue)} pulls by queue, {len(by_connection)} by connection"
        assert len(by_queue) == self._count <= self._held_max, f"{len(by_queue)} pulls wait, {self._count} are counted"
        nbytes = sum(entry.nbytes for entry in by_queue.values())
        assert nbytes == self.nbytes <= self._held_bytes_max, f"{nbytes} bytes are held, {self.nbytes} are counted"
        due = {entry.number for entry in self._heap if entry.pull is not None}
        assert due == by_queue.keys(), f"{len(due)} pulls have a deadline, {len(by_queue)} wait"

    def _release(self, entry: _QueuedPull[PullT]) -> None:
        assert entry.pull is not None, f"pull {entry.number} of {entry.key} is over already"
        entry.pull = None
        of_queue = self._by_queue[entry.key]
        rivals = of_queue[entry.rivals]
        del rivals[entry.number]
        if not rivals:
            del of_queue[entry.rivals]
            if not of_queue:
                del self._by_queue[entry.key]
        of_connection = self._by_connection[entry.connection]
        del of_connection[entry.number]
        if not of_connection:
            del self._by_connection[entry.connection]
        self._count -= 1
        self.nbytes -= entry.nbytes
        assert self._count >= 0, f"{self._count} pulls are held"
        assert self.nbytes >= 0, f"{self._count} pulls of {self.nbytes} bytes are held"
        # Answered pulls stay in the heap until their deadline; on a busy queue they would accumulate.
        if len(self._heap) > 2 * self._count + 64:
            self._heap = [each for each in self._heap if each.pull is not None]
            heapq.heapify(self._heap)


def _in_order(rivals: dict[int, _QueuedPull[PullT]], newest: int) -> Iterator[_QueuedPull[PullT]]:
    """Yield the held pulls up to number ``newest``, in order. The table may change meanwhile."""
    last = -1
    for count in (_COPIED_FIRST, None):
        for entry in list(itertools.islice(rivals.values(), count)):
            if last < entry.number <= newest:
                last = entry.number
                yield entry
