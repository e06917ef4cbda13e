"""Caches answers of brokers and name servers for some seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class BriefCache(Generic[KeyT, ValueT]):
    """Caches each value that `ask` returns for `seconds`. Callers that want the same value at once share one call.

    An error is not remembered, and every caller asks again. At most `entries_max` values are kept; above, the oldest
    are forgotten.
    """

    def __init__(self, ask: Callable[[KeyT], Awaitable[ValueT]], *, seconds: float, entries_max: int = 10_000) -> None:
        self._ask = ask
        self._seconds = seconds
        self._entries_max = entries_max
        self._values: dict[KeyT, tuple[ValueT, float]] = {}
        self._locks: dict[KeyT, trio.Lock] = {}

    async def get(self, key: KeyT) -> ValueT:
        """Return the cached value, or ask for it. Raises what `ask` raises."""
        entry = self._fresh(key)
        if entry is not None:
            return entry[0]  # noqa: ASYNC910 - each call asks for what is known already
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                entry = self._fresh(key)
                if entry is None:
                    value = await self._ask(key)
                    self._values.pop(key, None)
                    entry = self._values[key] = value, trio.current_time() + self._seconds
                    while len(self._values) > self._entries_max:
                        del self._values[next(iter(self._values))]
                return entry[0]
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    def forget(self, key: KeyT) -> None:
        """Drop the cached value: the next `get` asks again."""
        self._values.pop(key, None)

    def _fresh(self, key: KeyT) -> tuple[ValueT, float] | None:
        entry = self._values.get(key)
        return entry if entry is not None and entry[1] > trio.current_time() else None
