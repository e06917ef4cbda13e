"""Timers whose record a disk does not give: they hold up no others, and are given up only with the log they are in."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mq.broker.schedule.read_backoff import KNOWN_MAX, PAUSE_MS_MAX, PAUSE_MS_MIN, ReadBackoff
from mq.broker.write_path.outcome import Stored
from mq.protocol.messages.delay import timer_slot
from mq.protocol.messages.records import RecordError
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import QueueOffset
from tests.support.timer_model import HOUR, MINUTE, SECOND, START_MS, TimerMachine


def test_unreadable_message_is_retried_at_growing_intervals(
    machine: TimerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.send(5 * SECOND, 0, 2)
    machine.store_pending()
    tries: list[int] = []
    damage(machine, monkeypatch, 0, tries)
    for _ in range(10 * 60 * 4):
        machine.pass_time(SECOND // 4)
        machine.run_timers(3)
        machine.store_pending()
    assert machine.visible == {"m1": 1}
    started_ms = START_MS + 5 * SECOND
    assert [(at - started_ms) // SECOND for at in tries[:7]] == [0, 1, 3, 7, 15, 31, 63]
    assert all(60 * SECOND <= later - at <= 62 * SECOND for at, later in pairwise(tries[6:]))
    assert len(tries) in (14, 15)
    assert machine.timers.counters()["timers_unreadable"] == 1
    monkeypatch.undo()
    machine.pass_time(MINUTE)
    machine.run_timers(50)
    machine.store_pending()
    assert machine.visible["m0"] == 1
    assert machine.timers.counters()["timers_unreadable"] == 0


def test_unreadable_timer_is_dropped_once_its_log_file_is_deleted(
    machine: TimerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.send(5 * SECOND, 0, 2)
    machine.store_pending()
    damage(machine, monkeypatch, 0, [])
    machine.pass_time(HOUR)
    machine.run_timers(50)
    machine.store_pending()
    assert (machine.timers.pending, machine.timers.counters()["timers_unreadable"]) == (1, 1)
    queue = machine.store.get(TIMER_TOPIC, timer_slot(START_MS + 5 * SECOND))
    assert queue is not None
    queue.begin_at(QueueOffset(1))
    machine.pass_time(MINUTE)
    machine.run_timers(50)
    machine.store_pending()
    assert (machine.timers.pending, machine.timers.counters()["timers_unreadable"]) == (0, 0)
    assert machine.timers.expired == 1
    del machine.messages["m0"]


def test_remembered_unreadable_messages_are_bounded() -> None:
    unreadable = ReadBackoff()
    for offset in range(KNOWN_MAX + 5):
        assert unreadable.failed((1, offset), 0) == (PAUSE_MS_MIN if offset < KNOWN_MAX else PAUSE_MS_MAX)
    assert len(unreadable) == KNOWN_MAX
    assert unreadable.postponed_until((1, KNOWN_MAX), 0) is None
    assert unreadable.postponed_until((1, 0), 0) == PAUSE_MS_MIN
    assert unreadable.postponed_until((1, 0), -HOUR) is None, "the clock went back"
    unreadable.gone(1, QueueOffset(KNOWN_MAX - 1))
    unreadable.gone(2, QueueOffset(KNOWN_MAX))
    assert len(unreadable) == 1


def damage(machine: TimerMachine, monkeypatch: pytest.MonkeyPatch, number: int, tries: list[int]) -> None:
    """The disk gives the record of a waiting message no more; when it was tried is noted."""
    outcome = machine.messages[f"m{number}"].outcome
    assert isinstance(outcome, Stored)
    read = machine.log.read

    def read_or_fail(position: int, size: int) -> bytes:
        if position == outcome.physical_offset:
            tries.append(machine.now_ms)
            raise RecordError(0, "the body's checksum is wrong")
        return read(position, size)

    assert machine.timers._delivery is not None
    monkeypatch.setattr(machine.timers._delivery, "_read", read_or_fail)
