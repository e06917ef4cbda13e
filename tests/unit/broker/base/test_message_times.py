"""From where on the messages of a log are young."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.base import message_times
from mq.broker.base.message_times import NEAR, old_until
from raftlog.log_numbers import LogIndex


class Log:
    """A log in which each entry takes 100 bytes, and some have store times."""

    def __init__(self, stamps: Mapping[int, int], first: int, last: int) -> None:
        self.stamps = stamps
        self.first_index, self.last_index = LogIndex(first), LogIndex(last)

    def locate(self, index: LogIndex) -> Any:
        assert self.first_index <= index <= self.last_index
        return SimpleNamespace(pos=100 * index, size=100)

    def read_entries(self, first_index: LogIndex, bytes_max: int) -> Any:
        raise AssertionError("the store times are known")


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored_ms(log: Any, indexes: Iterable[LogIndex]) -> int | None:
        return next((log.stamps[index] for index in indexes if index in log.stamps), None)

    monkeypatch.setattr(message_times, "stored_ms", stored_ms)


def test_log_without_old_messages_has_no_old_end() -> None:
    assert old_until(Log({}, 1, 0), 5) is None, "it is empty"
    assert old_until(Log({}, 1, 3), 5) is None, "nobody knows"
    assert old_until(Log({2: 5, 3: 6}, 1, 3), 5) is None


def test_all_up_to_the_last_old_entry_is_old() -> None:
    log = Log({number: 10 * number for number in range(2, 10)}, 1, 9)
    assert old_until(log, 21) == 300
    assert old_until(log, 51) == 600
    assert old_until(log, 1000) == 1000, "the last entry as well"


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(0, 101), st.data())
@pytest.mark.usefixtures("known_times")
def test_position_of_young_messages_follows_only_old_messages(
    times: list[int], before_ms: int, data: st.DataObject
) -> None:
    stamps = dict(enumerate(sorted(times), 1))
    unstamped = data.draw(st.sets(st.sampled_from(sorted(stamps)), max_size=min(NEAR, len(stamps)) - 1))
    log = Log({index: stamp for index, stamp in stamps.items() if index not in unstamped}, 1, len(times))
    place = old_until(log, before_ms)
    if place is not None:
        assert all(stamp < before_ms for index, stamp in log.stamps.items() if 100 * index < place)
