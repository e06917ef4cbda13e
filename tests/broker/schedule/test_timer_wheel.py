"""Timers against a plain table: whatever is sent, recalled, committed or lost, and whoever leads by whatever clock."""

from __future__ import annotations

import pytest
from hypothesis import settings

from mq.broker.schedule.timer_wheel import TimerWheel
from mq.broker.state.completion_marks import QueueMarks
from mq.protocol.messages.delay import timer_slot
from mq.protocol.names import TIMER_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import QueueFileDamaged
from tests.support.timer_model import DAY, HOUR, MINUTE, SECOND, START_MS, TimerMachine

TestTimers = pytest.mark.slow(TimerMachine.TestCase)
TestTimers.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_recall_refused_for_a_due_message_does_not_delay_its_delivery(machine: TimerMachine) -> None:
    machine.send(5 * SECOND, 0, 1)
    machine.store_pending()
    machine.run_timers(50)
    machine.pass_time(5 * SECOND)
    client = machine.try_recall(0, True)
    machine.run_timers(1)
    other = machine.try_recall(0, True)
    machine.run_timers(1)
    assert other.outcome == "open", "another recall is under way"
    machine.fill_disk(True)
    machine.start_round()
    assert client.outcome == "refused"


def test_refused_timer_delivery_is_retried(machine: TimerMachine) -> None:
    machine.send(5 * SECOND, 0, 1)
    machine.store_pending()
    machine.run_timers(50)
    machine.pass_time(5 * SECOND)
    machine.run_timers(1)
    machine.fill_disk(True)
    machine.start_round()
    machine.run_timers(1)
    assert not machine.visible


def test_recall_of_a_message_in_delivery_is_refused(machine: TimerMachine) -> None:
    machine.send(5 * SECOND, 0, 2)
    machine.store_pending()
    machine.run_timers(50)
    machine.pass_time(5 * SECOND)
    machine.run_timers(1)
    clients = [machine.try_recall(0, True), machine.try_recall(1, False)]
    machine.store_pending()
    machine.run_timers(2)
    assert [client.outcome for client in clients] == ["refused", "refused"]


def test_message_recalled_after_the_wheel_gathered_it_is_not_delivered(machine: TimerMachine) -> None:
    machine.send(5 * SECOND, 0, 2)
    machine.store_pending()
    machine.run_timers(50)
    client = machine.try_recall(0, True)
    machine.store_pending()
    assert client.outcome == "recalled"
    machine.pass_time(5 * SECOND)


def test_message_due_after_a_day_is_not_early(machine: TimerMachine) -> None:
    machine.send(DAY + HOUR, 0, 1)
    machine.store_pending()
    for _ in range(25):
        machine.pass_time(HOUR)
        machine.run_timers(50)
        machine.store_pending()
        machine.run_timers(1)
    assert machine.timers.roll_count == 1
    assert machine.timers.delivery_count == 1


def test_endless_recalls_do_not_stop_deliveries_after_a_failure(machine: TimerMachine) -> None:
    machine.send(SECOND, 0, 1)
    machine.send(DAY, 0, 3)
    machine.send(DAY, 0, 3)
    machine.store_pending()
    machine.pass_time(SECOND)
    machine.fill_disk(True)
    machine.run_timers(10)
    machine.start_round()
    machine.fill_disk(False)
    for number in range(1, 7):
        machine.try_recall(number, hint=True)
        machine.start_round()
        machine.run_timers(10)
        machine.pass_time(2 * SECOND)
        machine.run_timers(10)
        machine.start_round()
        machine.commit(len(machine.log.ends) - machine.log.committed - (number < 6))
    assert machine.visible["m0"] == 1
    assert all(machine.messages[f"m{number}"].is_recalled for number in range(1, 7))


def test_failed_recall_after_a_failed_delivery_leaves_its_message_deliverable(machine: TimerMachine) -> None:
    machine.send(SECOND, 0, 1)
    machine.send(10 * SECOND, 0, 1)
    machine.store_pending()
    machine.pass_time(SECOND)
    machine.fill_disk(True)
    machine.run_timers(10)
    machine.start_round()
    client = machine.try_recall(1, hint=True)
    machine.pass_time(20 * SECOND)
    machine.run_timers(10)  # begins anew, and leaves out what is being recalled
    machine.start_round()
    assert client.outcome == "refused"


def test_leader_with_a_lagging_clock_finds_messages_stored_again_by_another(machine: TimerMachine) -> None:
    machine.send(2 * DAY + SECOND, 0, 1)
    machine.store_pending()
    machine.pass_time(DAY + SECOND)
    machine.run_timers(50)
    machine.store_pending()
    assert machine.timers.roll_count == 1
    machine.change_leader(-SECOND, 0)
    machine.try_recall(0, hint=False)
    machine.store_pending()
    assert machine.messages["m0"].is_recalled


def test_unreadable_messages_are_counted_once_even_on_a_full_disk(machine: TimerMachine) -> None:
    machine.send(HOUR, 0, 3)
    machine.store_pending()
    queue = machine.store.get(TIMER_TOPIC, timer_slot(START_MS + HOUR))
    assert queue is not None
    machine.pass_time(HOUR)
    machine.fill_disk(True)
    queue.begin_at(QueueOffset(2))
    for _ in range(5):
        machine.run_timers(10)
        machine.start_round()
        machine.pass_time(2 * SECOND)
    machine.fill_disk(False)
    machine.run_timers(10)
    machine.pass_time(2 * SECOND)
    machine.run_timers(10)
    machine.store_pending()
    assert (machine.timers.expiry_count, machine.visible["m2"]) == (2, 1)
    for name in ("m0", "m1"):
        del machine.messages[name]


def test_unreadable_timer_slot_does_not_delay_others(machine: TimerMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    for minutes in (1, 5, 6):
        machine.send(minutes * MINUTE, 0, 1)
    machine.store_pending()
    unreadable = machine.store.get(TIMER_TOPIC, timer_slot(START_MS + 5 * MINUTE))
    read = ConsumeQueue.read

    def read_or_fail(queue: ConsumeQueue, offset: int, count: int) -> bytes:
        if queue is unreadable:
            raise QueueFileDamaged("path", "short read", 20, 0)
        return read(queue, QueueOffset(offset), count)

    with monkeypatch.context() as patched:
        patched.setattr(ConsumeQueue, "read", read_or_fail)
        machine.pass_time(HOUR)
        machine.change_leader(0, 0)
        machine.run_timers(50)
        machine.store_pending()
        assert sorted(machine.visible) == ["m0", "m2"]


def test_too_fast_producers_do_not_stop_deliveries(machine: TimerMachine) -> None:
    machine.send(SECOND, 0, 3)
    machine.store_pending()
    machine.pass_time(SECOND)
    machine.appender.pending_bytes += 2**25
    machine.run_timers(10)
    machine.store_pending()
    assert len(machine.visible) == 3
    machine.appender.pending_bytes -= 2**25


def test_timers_see_late_messages_at_once_under_load() -> None:
    queues: dict[int, list[bytes]] = {}

    class Slot:
        min_offset = FIRST_OFFSET

        def __init__(self, queue_id: int) -> None:
            self.entries = queues.setdefault(queue_id, [QUEUE_ENTRY.pack(0, 1, START_MS + DAY)])

        @property
        def max_offset(self) -> QueueOffset:
            return QueueOffset(len(self.entries))

        def read(self, offset: QueueOffset, count: int) -> bytes:
            return b"".join(self.entries[offset : offset + count])

    now_ms = START_MS + 12 * HOUR
    wheel = TimerWheel(Slot, lambda queue_id: QueueMarks())
    Slot(timer_slot(now_ms - MINUTE)).entries.append(QUEUE_ENTRY.pack(0, 1, now_ms - 1))
    for _ in range(3):
        for due_ms in (now_ms, now_ms + MINUTE):
            Slot(timer_slot(due_ms)).entries.append(QUEUE_ENTRY.pack(0, 1, now_ms + DAY))
        wheel.advance(now_ms)
    assert wheel.next_ms == now_ms - 1
    assert wheel.head() == (timer_slot(now_ms - MINUTE), 1)


def test_recall_without_hint_works_after_a_clock_step_back(machine: TimerMachine) -> None:
    machine.send(1, 0, 1)
    machine.store_pending()
    machine.step_clock(1 - 2 * DAY)
    client = machine.try_recall(0, hint=False)
    assert client.outcome != "refused"
