"""Runs an iterator on another thread, so that its items are ready when they are wanted."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Queue
from typing import Final, TypeVar

T = TypeVar("T")

ITEMS_AHEAD: Final = 8


class _IteratorEnd:
    """Comes after the last item; ``error`` is what the iterator raised."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


def read_ahead(items: Iterable[T], ahead: int = ITEMS_AHEAD) -> Generator[T, None, None]:
    """Compute the items on another thread, in the same order, up to ``ahead`` of them before they are wanted.

    Raises what the iterator raises, after its last item. Close this generator before anything that the iterator uses is
    used or closed elsewhere: then that thread has ended.
    """
    queue: Queue[T | _IteratorEnd] = Queue(ahead)
    stop = threading.Event()

    def produce() -> None:
        error: Exception | None = None
        try:
            for item in items:
                queue.put(item)
                if stop.is_set():
                    break
        except Exception as raised:  # raised again on the other thread
            error = raised
        finally:
            queue.put(_IteratorEnd(error))

    thread = threading.Thread(target=produce, name="read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _IteratorEnd):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        while thread.is_alive():
            while not queue.empty():
                queue.get()
            thread.join(0.01)
