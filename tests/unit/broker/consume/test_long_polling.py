"""Pulls that wait: who is woken, who expires, what is bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consume.long_polling import LongPolling
from mq.protocol.numbers import QueueOffset
from mq.store.dispatch import QUEUE_ENTRY

KEY = ("T", 0)


@dataclass(frozen=True)
class Pull:
    """Wants messages with one of these tag codes; any, if there are none."""

    name: str
    codes: frozenset[int] = frozenset()

    def matches(self, code: int) -> bool:
        return not self.codes or code in self.codes


def entries(*codes: int) -> bytes:
    return b"".join(QUEUE_ENTRY.pack(100 * number, 100, code) for number, code in enumerate(codes))


@pytest.fixture
def polling() -> LongPolling[Pull]:
    return LongPolling()


def test_message_wakes_the_pulls_of_its_queue_in_order_of_arrival(polling: LongPolling[Pull]) -> None:
    for name in ("a", "b"):
        assert polling.hold(KEY, QueueOffset(5), 10.0, Pull(name), "c1")
    assert polling.hold(("T", 1), QueueOffset(5), 10.0, Pull("other queue"), "c1")
    assert polling.hold(("U", 0), QueueOffset(5), 10.0, Pull("other topic"), "c1")
    assert polling.wake(KEY, entries(0)) == [Pull("a"), Pull("b")]
    assert polling.wake(KEY, entries(0)) == []
    assert len(polling) == 2


@pytest.mark.parametrize(
    ("codes", "woken"), [((1,), ["one"]), ((2,), []), ((2, 3, 1), ["one", "three"]), ((-5,), ["negative"]), ((), [])]
)
def test_waiting_pull_wakes_only_for_a_matching_tag(
    codes: tuple[int, ...], woken: list[str], polling: LongPolling[Pull]
) -> None:
    for name, code in (("one", 1), ("three", 3), ("negative", -5)):
        polling.hold(KEY, QueueOffset(0), 10.0, Pull(name, frozenset([code])), "c1")
    assert [pull.name for pull in polling.wake(KEY, entries(*codes))] == woken
    assert len(polling) == 3 - len(woken)


def test_waiting_pull_wakes_only_for_entries_from_its_offset(polling: LongPolling[Pull]) -> None:
    polling.hold(KEY, QueueOffset(12), 10.0, Pull("late", frozenset([1])), "c1")
    assert polling.wake(KEY, entries(1, 1), first_offset=QueueOffset(10)) == []
    assert polling.wake(KEY, entries(1, 2, 3), first_offset=QueueOffset(11)) == []
    assert polling.wake(KEY, entries(2, 1), first_offset=QueueOffset(11)) == [Pull("late", frozenset([1]))]


@dataclass(frozen=True)
class Rival(Pull):
    """Of a group, whose pulls take messages from each other."""

    group: str = "g"


def test_waking_a_group_stops_when_no_pull_takes_more() -> None:
    polling: LongPolling[Rival] = LongPolling()
    for number in range(100):
        for group in ("g", "h"):
            pull = Rival(str(number), group=group)
            assert polling.hold(KEY, QueueOffset(0), 10.0, pull, "c1", rivals=group)
    asked = list[Rival]()

    def one_of_each(pull: Rival) -> bool | None:
        asked.append(pull)
        return True if pull.name == "0" else None

    assert polling.take_matching(KEY, one_of_each) == [Rival("0", group="g"), Rival("0", group="h")]
    assert [pull.name for pull in asked] == ["0", "1", "0", "1"]
    polling.check_invariants()
    assert polling.take_matching(KEY, lambda pull: pull.group == "h") == [
        Rival(str(number), group="h") for number in range(1, 100)
    ]
    assert {pull.group for pull in polling.waiting_for(KEY)} == {"g"}
    polling.check_invariants()
    assert len(polling.take_topic("T")) == 99
    assert not polling.queue_keys
    polling.check_invariants()


def test_resumed_pulls_wait_for_the_next_message() -> None:
    polling: LongPolling[Rival] = LongPolling()
    for number in range(40):
        assert polling.hold(KEY, QueueOffset(0), 10.0, Rival(str(number)), "c1", rivals="g")
    asked = list[str]()

    def hold_again(pull: Rival) -> bool:
        asked.append(pull.name)
        if int(pull.name) < 32:
            assert polling.hold(KEY, QueueOffset(0), 20.0, Rival(str(100 + int(pull.name))), "c1", rivals="g")
        return True

    taken = polling.take_matching(KEY, hold_again)
    assert [pull.name for pull in taken] == asked == [str(number) for number in range(40)]
    assert len(polling) == 32
    polling.check_invariants()


def test_pulls_expire_at_their_deadline_earliest_first(polling: LongPolling[Pull]) -> None:
    assert polling.next_deadline() == math.inf
    for name, deadline in (("late", 30.0), ("early", 10.0), ("middle", 20.0)):
        polling.hold(KEY, QueueOffset(0), deadline, Pull(name), "c1")
    assert polling.next_deadline() == 10.0
    assert polling.take_expired(9.99) == []
    assert [pull.name for pull in polling.take_expired(20.0)] == ["early", "middle"]
    assert polling.next_deadline() == 30.0
    assert polling.take_expired(20.0) == []
    assert [pull.name for pull in polling.take_expired(99.0)] == ["late"]
    assert len(polling) == 0


def test_pulls_woken_in_portions_wait_for_their_turn(polling: LongPolling[Pull]) -> None:
    for number in range(6):
        polling.hold(KEY, QueueOffset(0), 10.0 + number, Pull(str(number)), f"c{number}")
    woken = polling.take_satisfied(KEY, entries(0))
    assert next(woken).name == "0"
    polling.hold(KEY, QueueOffset(1), 99.0, Pull("later"), "c9")
    polling.drop_connection("c2")
    assert [pull.name for pull in polling.take_expired(11.0)] == ["1"]
    assert next(woken).name == "3"
    polling.check_invariants()
    assert polling.count_at(KEY) == 3
    assert [pull.name for pull in polling.wake(KEY, entries(0))] == ["4", "5", "later"]
    assert list(woken) == []
    assert len(polling) == polling.count_at(KEY) == 0


def test_pulls_that_expire_together_are_answered_in_portions(polling: LongPolling[Pull]) -> None:
    """Pops that came together, such as after a restart, were all answered in one turn."""
    for number in range(100):
        polling.hold(KEY, QueueOffset(0), 10.0, Pull(f"{number:02}"), "c1")
    now, answered = 20.0, list[str]()
    for portion in (64, 36, 0):
        before = len(answered)
        for pull in polling.take_expired_for(0.005, lambda: now):
            answered.append(pull.name)
            now += 0.0001  # 50 in the time
        assert len(answered) - before == portion
    assert answered == sorted(answered)
    assert len(polling) == 0


def test_woken_pull_does_not_expire_or_set_the_next_deadline(polling: LongPolling[Pull]) -> None:
    polling.hold(KEY, QueueOffset(0), 10.0, Pull("a", frozenset([1])), "c1")
    polling.hold(KEY, QueueOffset(0), 20.0, Pull("b", frozenset([2])), "c1")
    polling.wake(KEY, entries(1))
    assert polling.next_deadline() == 20.0
    assert polling.take_expired(15.0) == []
    assert polling.take_expired(20.0) == [Pull("b", frozenset([2]))]


def test_expired_pull_is_not_woken(polling: LongPolling[Pull]) -> None:
    polling.hold(KEY, QueueOffset(0), 10.0, Pull("a"), "c1")
    polling.take_expired(10.0)
    assert polling.wake(KEY, entries(0)) == []


def test_closing_a_connection_drops_its_pulls(polling: LongPolling[Pull]) -> None:
    polling.hold(KEY, QueueOffset(0), 10.0, Pull("a"), "c1")
    polling.hold(("T", 1), QueueOffset(0), 10.0, Pull("b"), "c1")
    polling.hold(KEY, QueueOffset(0), 10.0, Pull("c"), "c2")
    assert polling.drop_connection("c1") == 2
    assert polling.drop_connection("c1") == 0
    assert polling.wake(KEY, entries(0)) == [Pull("c")]
    assert polling.take_expired(99.0) == []


def test_infinite_deadline_expires_all_pulls(polling: LongPolling[Pull]) -> None:
    assert polling.take_expired(math.inf) == []
    assert polling.hold(KEY, QueueOffset(5), 10.0, Pull("a"), "c1")
    assert polling.take_expired(math.inf) == [Pull("a")]
    assert polling.take_expired(math.inf) == []


def test_pulls_beyond_the_total_limit_are_refused() -> None:
    polling: LongPolling[Pull] = LongPolling(held_max=2)
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("a"), "c1")
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("b"), "c2")
    assert not polling.hold(KEY, QueueOffset(0), 10.0, Pull("c"), "c3")
    assert len(polling.wake(KEY, entries(0))) == 2
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("c"), "c3")


def test_waiting_pulls_are_bounded_in_bytes() -> None:
    polling: LongPolling[Pull] = LongPolling(held_bytes_max=100)
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("a"), "c1", 60)
    assert not polling.hold(KEY, QueueOffset(0), 10.0, Pull("b"), "c2", 41)
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("c"), "c3", 40)
    assert polling.nbytes == 100
    polling.drop_connection("c1")
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("b"), "c2", 41)
    polling.take_expired(10.0)
    assert polling.nbytes == 0


def test_overload_of_one_connection_does_not_affect_others() -> None:
    polling: LongPolling[Pull] = LongPolling(held_per_connection_max=1)
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("a"), "c1")
    assert not polling.hold(KEY, QueueOffset(0), 10.0, Pull("b"), "c1")
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("c"), "c2")
    polling.drop_connection("c1")
    assert polling.hold(KEY, QueueOffset(0), 10.0, Pull("d"), "c1")


def test_answered_pulls_do_not_pile_up(polling: LongPolling[Pull]) -> None:
    polling.hold(("quiet", 0), QueueOffset(0), 1e9, Pull("quiet"), "c0")
    for _ in range(2000):
        polling.hold(KEY, QueueOffset(0), 1e9, Pull("a"), "c1")
        polling.wake(KEY, entries(0))
    assert polling.memory_count() < 200
    assert len(polling) == 1


_steps = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.integers(1, 30)),
    st.tuples(st.just("new"), st.integers(0, 2), st.lists(st.integers(1, 3), max_size=3)),
    st.tuples(st.just("drop"), st.integers(0, 2)),
    st.tuples(st.just("later"), st.integers(0, 15)),
)


@given(steps=st.lists(_steps, max_size=40))
def test_long_polling_agrees_with_a_list(steps: list[tuple[object, ...]]) -> None:
    """Every pull ends exactly once, and for the right reason."""
    polling: LongPolling[Pull] = LongPolling(held_max=8, held_per_connection_max=4)
    model: list[tuple[int, int, Pull, int]] = []
    now = 0
    for number, step in enumerate(steps):
        match step:
            case ("hold", int(queue_id), int(code), int(connection), int(seconds)):
                pull = Pull(str(number), frozenset([code] if code else []))
                room = len(model) < 8 and sum(row[3] == connection for row in model) < 4
                assert polling.hold(("T", queue_id), QueueOffset(0), float(now + seconds), pull, connection) == room
                if room:
                    model.append((queue_id, now + seconds, pull, connection))
            case ("new", int(queue_id), list(codes)):
                woken = [row for row in model if row[0] == queue_id and any(map(row[2].matches, codes))]
                assert polling.wake(("T", queue_id), entries(*codes)) == [row[2] for row in woken]
                model = [row for row in model if row not in woken]
            case ("drop", int(connection)):
                dropped = [row for row in model if row[3] == connection]
                assert polling.drop_connection(connection) == len(dropped)
                model = [row for row in model if row not in dropped]
            case ("later", int(seconds)):
                now += seconds
                over = sorted((row for row in model if row[1] <= now), key=lambda row: row[1])
                assert polling.take_expired(float(now)) == [row[2] for row in over]
                model = [row for row in model if row not in over]
            case _:
                raise AssertionError(f"unknown step {step}")
        assert len(polling) == len(model)
        assert polling.next_deadline() == min((row[1] for row in model), default=math.inf)


def test_only_the_requested_number_of_pulls_expire_at_once(polling: LongPolling[Pull]) -> None:
    for number in range(5):
        polling.hold(KEY, QueueOffset(0), float(number), Pull(str(number)), "c1")
    assert [pull.name for pull in polling.take_expired(3.0, 3)] == ["0", "1", "2"]
    assert [pull.name for pull in polling.take_expired(3.0, 3)] == ["3"]
    assert polling.take_expired(3.0, 3) == []
    assert len(polling) == 1
