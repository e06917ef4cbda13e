"""Recalls of messages that are somewhere among others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.schedule.recall import SEARCHES_MAX
from mq.protocol.codes import ResponseCode
from tests.support.timer_model import DAY, START_MS, Client, TimerMachine, recall_request


class FewEntries(TimerMachine):
    limits = replace(TimerMachine.limits, recall_entries_max=16)


@pytest.fixture
def machine() -> Iterator[TimerMachine]:
    machine = FewEntries()
    yield machine
    machine.teardown()


def test_recall_finds_each_of_many_rolled_messages(machine: TimerMachine) -> None:
    machine.send(3 * DAY, 0, 40)
    for _ in range(2):
        machine.store_pending()
        machine.pass_time(DAY)
        machine.run_timers(50)
    machine.store_pending()
    assert machine.timers.roll_count == 80
    clients = [machine.try_recall(number, hint=number % 2 == 0) for number in reversed(range(40))]
    machine.run_timers(1000)
    machine.store_pending()
    assert {client.outcome for client in clients} == {"recalled"}
    client: Any = Client()
    with pytest.raises(RequestRefused, match="no such pending message"):
        machine.recalls.handle(Call(client, recall_request("nobody", START_MS + 3 * DAY, 0), b"", 0))


def test_message_is_recalled_after_its_daily_copy(machine: TimerMachine) -> None:
    machine.send(2 * DAY, 0, 3)
    machine.store_pending()
    machine.pass_time(DAY)
    machine.run_timers(50)
    clients = [machine.try_recall(number, hint=number % 2 == 0) for number in range(3)]
    machine.run_timers(3)
    assert {client.outcome for client in clients} == {"open"}
    machine.store_pending()
    machine.run_timers(50)
    machine.store_pending()
    assert (machine.timers.roll_count, {client.outcome for client in clients}) == (3, {"recalled"})


def test_searches_are_bounded_and_restart_with_the_next_leader(machine: TimerMachine) -> None:
    machine.send(DAY, 0, 5)
    machine.store_pending()
    clients = [machine.try_recall(4, hint=False) for _ in range(SEARCHES_MAX)]
    assert {client.outcome for client in clients} == {"open"}
    client: Any = Client()
    request = recall_request("m4", START_MS + DAY, None)
    with pytest.raises(RequestRefused, match="64 recalls are searching") as refused:
        machine.recalls.handle(Call(client, request, b"", 0))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    machine.change_leader(0, 0)
    assert {client.outcome for client in clients} == {"given on"}
