"""Iterators that run on another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice

import pytest

from raftlog.segment.read_ahead import read_ahead


def test_items_come_in_order_and_from_another_thread() -> None:
    threads = set()

    def items() -> Iterator[int]:
        for number in range(100):
            threads.add(threading.get_ident())
            yield number

    assert list(read_ahead(items(), 3)) == list(range(100))
    assert threading.get_ident() not in threads
    assert len(threads) == 1


def test_error_of_the_iterator_comes_after_its_items() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("damaged")

    ahead = read_ahead(items())
    assert list(islice(ahead, 5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="damaged"):
        next(ahead)


def test_closing_read_ahead_ends_its_thread() -> None:
    before = threading.active_count()
    with closing(read_ahead(count())) as ahead:
        assert list(islice(ahead, 3)) == [0, 1, 2]
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
