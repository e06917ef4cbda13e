"""What a turn of the reactor does for each client, and what it leaves to the next one; the clock counts work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from raftlog._runtime import TURN_SECONDS, Reactor


class Stage:
    """A reactor whose clock moves only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reactor = Reactor(lambda: self.now)
        self.served: list[str] = []
        self._fds: list[int] = []

    def work(self, name: str, seconds: float) -> None:
        self.served.append(name)
        self.now += seconds

    def add(self, handler: Callable[[], None], *, patient: bool) -> int:
        """A descriptor that is always ready."""
        fd = os.eventfd(1, os.EFD_NONBLOCK)
        self._fds.append(fd)
        self.reactor.add(fd, lambda events: handler(), patient=patient)
        return fd

    def add_client(self, name: str, seconds: float) -> None:
        """A client that always has something to do, for so long."""
        self.add(lambda: self.work(name, seconds), patient=True)

    def turn(self) -> list[str]:
        self.served = []
        self.reactor._turn(self.reactor._epoll.poll(0, 512))
        return self.served

    def close(self) -> None:
        self.reactor.close()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with closing(Stage()) as made:
        yield made


def test_clients_that_a_long_turn_did_not_reach_come_first_in_the_next(stage: Stage) -> None:
    for name in ("a", "b", "c", "d"):
        stage.add_client(name, 0.6 * TURN_SECONDS)
    turns = [stage.turn() for _ in range(4)]
    assert [len(turn) for turn in turns] == [2, 2, 2, 2]
    assert sorted(turns[0] + turns[1]) == ["a", "b", "c", "d"]
    assert sorted(turns[2] + turns[3]) == ["a", "b", "c", "d"]


def test_peers_are_heard_in_every_turn_however_long(stage: Stage) -> None:
    for number in range(5):
        stage.add_client(f"client {number}", 2 * TURN_SECONDS)
    stage.add(lambda: stage.work("peer", 0.0), patient=False)
    for _ in range(5):
        assert stage.turn().count("peer") == 1


def test_what_is_unfinished_goes_on_behind_those_who_had_nothing_yet(stage: Stage) -> None:
    def finishes_never() -> None:
        while not stage.reactor.share_used():
            stage.work("greedy", TURN_SECONDS / 20)
        stage.reactor.go_on_later(finishes_never)

    for _ in range(50):
        stage.reactor.go_on_later(finishes_never)
    stage.add(lambda: stage.work("modest", 0.0), patient=True)
    for _ in range(5):
        begun_at = stage.now
        turn = stage.turn()
        assert turn[0] == "modest"
        assert turn.count("greedy") >= 2
        assert stage.now - begun_at <= 2 * TURN_SECONDS


def test_unfinished_work_gets_on_although_others_fill_the_turn(stage: Stage) -> None:
    stage.reactor.go_on_later(lambda: stage.work("unfinished", 0.0))
    for number in range(20):
        stage.add_client(f"client {number}", TURN_SECONDS)
    assert "unfinished" in stage.turn()


def test_turn_that_left_something_is_followed_by_another_one(stage: Stage) -> None:
    stage.turn()
    for number in range(3):
        stage.add_client(f"client {number}", 2 * TURN_SECONDS)
    assert len(stage.turn()) == 1
    assert len(stage.turn()) == 1


def test_descriptor_that_was_left_and_closed_is_not_served(stage: Stage) -> None:
    stage.add(lambda: stage.work("first", 2 * TURN_SECONDS), patient=True)
    gone = stage.add(lambda: stage.work("gone", 0.0), patient=True)
    assert stage.turn() == ["first"]
    stage.reactor.remove(gone)
    assert "gone" not in [*stage.turn(), *stage.turn()]
