"""Reading ahead: iterators on another thread, and objects that several requests at a time read in order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice

import pytest

from raftlog.segment.ranges_ahead import RANGES_AT_ONCE, RangesAhead
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


OBJECTS = {f"log/{size}": random.Random(size).randbytes(size) for size in (1, 99, 100, 101, 350, 1000)}


def fetch(name: str, length: int, offset: int) -> bytes:
    return OBJECTS[name][offset : offset + length]


def test_all_ranges_come_in_order_and_ends_are_known() -> None:
    ahead = RangesAhead(fetch, [(name, len(content)) for name, content in OBJECTS.items()], 100)
    for name, content in OBJECTS.items():
        found, is_end = b"", False
        while not is_end:
            taken = ahead.take(name, len(found))
            assert taken is not None
            found, is_end = found + taken[0], taken[1]
        assert found == content
    assert ahead.take("log/1", 0) is None
    ahead.close()


def test_object_longer_than_announced_has_no_last_range() -> None:
    ahead = RangesAhead(fetch, [("log/350", 349)], 100)
    ends = [taken[1] for at in (0, 100, 200, 300) if (taken := ahead.take("log/350", at)) is not None]
    assert ends == [False] * 4
    ahead.close()


def test_ranges_ahead_raise_failures_and_ignore_other_ranges() -> None:
    def fails(name: str, length: int, offset: int) -> bytes:
        if offset == 200:
            raise OSError("of the store")
        return fetch(name, length, offset)

    ahead = RangesAhead(fails, [("log/1000", 1000)], 100)
    assert ahead.take("log/1000", 100) is None
    assert ahead.take("log/350", 0) is None
    assert ahead.take("log/1000", 0) is not None
    assert ahead.take("log/1000", 100) is not None
    with pytest.raises(OSError, match="of the store"):
        ahead.take("log/1000", 200)
    ahead.close()


def test_few_ranges_are_requested_ahead() -> None:
    asked: list[int] = []
    all_asked = threading.Event()

    def noted(name: str, length: int, offset: int) -> bytes:
        asked.append(offset)
        if len(asked) == RANGES_AT_ONCE + 1:
            all_asked.set()
        return fetch(name, length, offset)

    ahead = RangesAhead(noted, [("log/1000", 1000)], 100)
    assert ahead.take("log/1000", 0) is not None
    assert all_asked.wait(10)
    ahead.close()
    assert sorted(asked) == [100 * number for number in range(RANGES_AT_ONCE + 1)]
