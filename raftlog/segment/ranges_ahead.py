"""Reads whole objects one after the other, with several requests at a time.

A store answers one request after the other with a fraction of what it can send: each waits for the one before it to
come, and to be used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

RANGE_BYTES: Final = 8 * 1024 * 1024
RANGES_AT_ONCE: Final = 4
"""The number of ranges requested before they are wanted; all of them may be in memory."""

Fetch = Callable[[str, int, int], bytes]
"""Bytes of an object: name, length, offset. Fewer only at its end. For any thread."""


class RangesAhead:
    """Ranges of some objects, in order. For one thread. Call `close` at the end.

    Args:
        objects: names and sizes.
    """

    def __init__(self, fetch: Fetch, objects: Sequence[tuple[str, int]], range_bytes: int = RANGE_BYTES) -> None:
        self.names = frozenset(name for name, _ in objects)
        self._fetch = fetch
        self._ranges = _ranges(objects, range_bytes)
        self._requests: deque[tuple[str, int, int, Future[bytes]]] = deque()
        self._pool = ThreadPoolExecutor(RANGES_AT_ONCE, "ranges-ahead")

    def take(self, name: str, offset: int) -> tuple[bytes, bool] | None:
        """The next range, and whether the object ends with it; None if the next one is another. Raises as the fetch."""
        self._request()
        if not self._requests or self._requests[0][:2] != (name, offset):
            return None
        _, _, length, future = self._requests.popleft()
        self._request()
        data = future.result()
        return data, len(data) < length

    def close(self) -> None:
        """Request nothing more, and do not wait for open requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _request(self) -> None:
        while len(self._requests) < RANGES_AT_ONCE and (next_range := next(self._ranges, None)) is not None:
            name, offset, length = next_range
            self._requests.append((name, offset, length, self._pool.submit(self._fetch, name, length, offset)))


def _ranges(objects: Sequence[tuple[str, int]], range_bytes: int) -> Iterator[tuple[str, int, int]]:
    """Name, offset and length of each range; the last one of an object is a byte too long, to see that it ends."""
    for name, nbytes in objects:
        for at in range(0, nbytes, range_bytes):
            is_last = at + range_bytes >= nbytes
            yield name, at, nbytes - at + 1 if is_last else range_bytes
