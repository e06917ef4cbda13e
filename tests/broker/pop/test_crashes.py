"""Pops, acknowledgements and what comes again, with leaders that die between any two steps.

The service runs on a log in memory. What it adds waits until the test commits it; when the leader dies, some of what
waits is in the log and the rest is not, nobody is answered, and another service goes on with the applied state.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings

from mq.broker.limits import DEFAULT, ConsumeLimits, PopLimits
from mq.broker.write_path.pending import InternalRecord
from mq.store.dispatch import QUEUE_ENTRY
from tests.support.pop_crashes import INVISIBLE_MS, Connection, CrashMachine, started

CrashMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_no_message_is_lost_or_hidden_for_ever = pytest.mark.slow(CrashMachine.TestCase)
BODY_AT = 88
"""Of a record with IPv4 hosts."""


def test_next_pop_returns_the_messages_of_a_refused_one() -> None:
    machine = started(6)
    for _ in range(2):
        machine.pop(2, 0, 0, False)
    machine.refuse(1)
    machine.pop(2, 0, 0, False)
    machine.commit(10)
    machine.pop(2, 0, 0, True)
    assert sorted(machine.held) == [b"0", b"1", b"2", b"3"]
    machine.teardown()


def test_message_is_redelivered_after_a_refused_acknowledgement() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True)
    machine.ask_ack(machine.held[b"0"])
    machine.pops.acks.flush()
    machine.run(2 * INVISIBLE_MS)
    machine.refuse(0)
    machine.run(2 * INVISIBLE_MS)
    machine.commit(1)
    machine.pop(1, 0, 0, True)
    assert machine.held[b"0"].message.reconsume_times == 1
    machine.teardown()


def test_message_on_its_way_to_the_retry_topic_is_not_acknowledged() -> None:
    machine = started(2)
    machine.pop(2, 0, 0, True)
    first, second = machine.held.values()
    machine.ask_ack(first)
    machine.pops.acks.flush()
    machine.run(2 * INVISIBLE_MS)  # only the second one comes again
    machine.ask_ack(second)
    machine.commit(10)
    assert machine.acked == {first.body}
    machine.pop(2, 0, 0, True)
    assert machine.held[second.body].message.reconsume_times == 1
    machine.teardown()


def test_previous_receipt_cannot_acknowledge_an_ordered_message_popped_again() -> None:
    machine = started(1)
    machine.pop(1, 0, 0, True, in_order=True)
    before = machine.held[b"0"]
    machine.run(2 * INVISIBLE_MS)
    machine.pop(1, 0, 0, False, in_order=True)  # on its way into the log
    machine.ask_ack(before)
    machine.pops.acks.flush()
    machine.commit(10)
    assert not machine.acked
    assert machine.held[b"0"].receipt.pop_time_ms > before.receipt.pop_time_ms


def test_popped_messages_deleted_from_the_log_are_counted() -> None:
    machine = started(3)
    machine.pop(3, 0, 0, True)
    machine.log.queues["T", 0].min_offset = 2
    machine.run(2 * INVISIBLE_MS)
    machine.commit(10)
    assert (machine.pops.revival.loss_count, machine.pops.revival.revive_count) == (2, 1)
    assert machine.metadata.pops.count == 0
    machine.pop(3, 0, 0, True)
    assert machine.held[b"2"].message.reconsume_times == 1


def test_unreadable_message_does_not_block_others_and_is_retried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = started(3)
    machine.pop(3, 0, 0, True)
    entries = machine.log.queues["T", 0].entries
    damaged, (position, _, _) = entries[0], QUEUE_ENTRY.unpack(entries[0])
    flipped = machine.log.data[position + BODY_AT]
    machine.log.data[position + BODY_AT] ^= 0xFF
    tries: list[int] = []
    read = machine.log.read

    def noted(at: int, nbytes: int) -> bytes:
        if at == position:
            tries.append(machine.now_ms)
        return read(at, nbytes)

    monkeypatch.setattr(machine.log, "read", noted)
    began_ms = machine.now_ms + 2 * INVISIBLE_MS
    for _ in range(600):
        machine.run(100)
        machine.commit(10)
    assert machine.pops.revival.revive_count == 2
    assert [round((at - began_ms) / 1000) for at in tries] == [0, 1, 3, 7, 15, 31]
    machine.log.data[position + BODY_AT] = flipped
    machine.run(64_000)
    machine.commit(10)
    assert (machine.pops.revival.revive_count, entries[0]) == (3, damaged)
    assert machine.metadata.pops.count == 0


def test_late_losses_are_counted_and_other_messages_redelivered() -> None:
    machine = started(3)
    machine.pop(3, 0, 0, True)
    entries = machine.log.queues["T", 0].entries
    entries[:2] = [QUEUE_ENTRY.pack(-1, 1, 0)] * 2
    machine.run(2 * INVISIBLE_MS)  # and the queue is told
    machine.run(20)
    machine.commit(10)
    assert (machine.pops.revival.loss_count, machine.pops.revival.revive_count) == (2, 1)
    assert machine.metadata.pops.count == 0


def test_pops_beyond_the_limit_of_open_pops_return_nothing() -> None:
    few = replace(DEFAULT, pop=PopLimits(checkpoints_max=5, checkpoints_per_queue_max=2))
    machine = started(5, few)
    machine.send(5, 1)
    codes: list[int] = []
    for queue_id in (0, 0, 0, 1, 1):
        before = set(machine.held)
        machine.pop(1, queue_id, 0, True)
        codes.append(len(set(machine.held) - before))
    assert codes == [1, 1, 0, 1, 0]
    machine.run(2 * INVISIBLE_MS)
    machine.teardown()


def test_message_larger_than_a_group_is_redelivered_alone() -> None:
    machine = CrashMachine()
    machine.begin()
    for letter, size in ((b"a", 10), (b"b", 100_000), (b"c", 10)):
        machine.log.append("T", 0, letter * size)
    machine.pop(3, 0, 0, True)
    machine.run(2 * INVISIBLE_MS)
    sizes = [
        [len(item.body) for item in group if isinstance(item, InternalRecord)] for group in machine.appender.groups
    ]
    assert sizes == [[10], [100_000], [10]]
    machine.commit(10)
    assert machine.metadata.pops.count == 0


def test_message_is_not_kept_hidden_for_a_disconnected_client() -> None:
    machine = CrashMachine()
    machine.begin()
    for queue_id in (0, -1):
        machine.pop(1, queue_id, 50, False)
    machine.connection.closed = True
    machine.connection = Connection(machine.serve)
    for queue_id in (0, -1):
        machine.pop(1, queue_id, 50, False)
    machine.send(1, 0)
    machine.commit(1)
    assert list(machine.held) == [b"0"]
    machine.run(1)
    assert machine.connection.held_pulls == 1


def test_pop_of_a_disconnected_client_is_visible_again_at_once() -> None:
    """A worker that stops drops its pop; the messages waited for the end of their invisible time."""
    machine = started(2)
    machine.pop(2, 0, 0, False)
    machine.connection.closed = True
    machine.connection = Connection(machine.serve)
    for _ in range(4):  # the pop, the changed times, the moves to the retry topic
        machine.commit(10)
        machine.run(1)
    for _ in range(2):
        machine.pop(2, -1, 0, True)
    assert sorted(machine.held) == [b"0", b"1"]
    assert {each.message.reconsume_times for each in machine.held.values()} == {1}
    machine.teardown()


def test_message_being_loaded_is_not_kept_for_a_disconnected_client() -> None:
    machine = CrashMachine()
    machine.begin()
    machine.pop(1, 0, 50, False)
    gone = machine.connection
    machine.connection = Connection(machine.serve)
    machine.pop(1, 0, 50, False)
    machine.is_cold = True
    machine.send(1, 0)
    gone.closed = True
    machine.loading.pop()()
    machine.loading.pop()()
    machine.commit(1)
    assert list(machine.held) == [b"0"]
    assert gone.held_pulls == machine.connection.held_pulls == 0


def test_messages_are_loaded_once_for_a_pop() -> None:
    machine = CrashMachine()
    machine.begin()
    machine.send(2, 0)
    machine.is_cold = True
    machine.pop(2, 0, 50, False)
    machine.loading.pop()()
    assert not machine.loading
    machine.commit(1)
    assert sorted(machine.held) == [b"0", b"1"]


def test_pop_with_long_texts_does_not_wait_for_loading() -> None:
    machine = CrashMachine()
    machine.limits = replace(DEFAULT, consume=ConsumeLimits(old_text_bytes_max=-1))
    machine.begin()
    machine.send(1, 0)
    machine.is_cold = True
    machine.pop(1, 0, 50, False)
    assert not machine.loading
    machine.commit(1)
    assert list(machine.held) == [b"0"]
    assert machine.connection.held_pulls == 0
