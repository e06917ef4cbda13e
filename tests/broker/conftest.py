"""What several tests of the broker begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mq.broker.broker import Broker
from tests.support.cold_disk import Reads, cold_disk
from tests.support.name_server_and_broker import cluster
from tests.support.running_broker import Client, RunningBroker, note_brokers, running
from tests.support.timer_model import TimerMachine
from tests.support.waiting_messages import WallClock


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> list[Broker]:
    """The brokers that a test starts, in a list that grows."""
    return note_brokers(monkeypatch)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """A leading broker with production limits, except that it looks for what is due all the time."""
    async with running(tmp_path) as broker:
        yield broker


@pytest.fixture
async def client(broker: RunningBroker) -> Client:
    """A client of the test's broker."""
    return await broker.connect()


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a name server that knows a broker with topic T."""
    async with cluster(tmp_path) as namesrv:
        yield namesrv


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """The wall clock of the brokers of a test."""
    clock = WallClock()
    monkeypatch.setattr("raftlog.Machine.wall_clock_ms", clock)
    # Tests set it between two requests: what rests looks at it at each of its intervals, not once a second.
    monkeypatch.setattr("mq.broker.base.periodic_task.REST_SECONDS_MAX", 0.001)
    return clock


@pytest.fixture
def machine() -> Iterator[TimerMachine]:
    """The model of timers, with everything delivered once at the end that nobody took back."""
    machine = TimerMachine()
    yield machine
    machine.teardown()
    assert all(machine.visible[name] or message.is_recalled for name, message in machine.messages.items())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """What brokers read of their logs' files, none of which is in the page cache."""
    noted = Reads()
    monkeypatch.setattr("raftlog.net.machine.RealDisk", cold_disk(noted))
    yield noted
    noted.gate.set()
