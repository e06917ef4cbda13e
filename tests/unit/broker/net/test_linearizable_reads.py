"""Reads over a change of leadership."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.net.linearizable_reads import PATIENCE_SECONDS, LinearizableReads


class World:
    def __init__(self, waiting_max: int = 100) -> None:
        self.now = 100.0
        self.asked: list[Callable[[bool], None]] = []
        self.told: list[bool] = []
        self.reads = LinearizableReads(self.asked.append, lambda: self.now, waiting_max)

    def answer(self, known: bool) -> None:
        asked, self.asked[:] = list(self.asked), []
        for on_read in asked:
            on_read(known)


def test_successful_read_is_reported_at_once() -> None:
    world = World()
    world.reads.read(world.told.append)
    world.answer(True)
    assert world.told == [True]


def test_failed_linearizable_read_is_retried_silently() -> None:
    world = World()
    world.reads.read(world.told.append)
    for _ in range(3):
        world.answer(False)
        assert (world.told, world.asked) == ([], [])
        world.now += 0.1
        world.reads.try_again()
    world.answer(True)
    assert world.told == [True]


def test_linearizable_read_fails_after_patience_seconds() -> None:
    world = World()
    world.reads.read(world.told.append)
    world.answer(False)
    world.now += PATIENCE_SECONDS
    world.reads.try_again()
    assert world.told == [False]
    assert world.asked == []


def test_single_attempt_fails_when_roles_are_known() -> None:
    world = World()
    world.reads.read_once(world.told.append)
    world.answer(False)
    assert world.told == []
    world.reads.try_again()
    assert (world.told, world.asked) == ([False], [])


def test_waiting_linearizable_reads_are_bounded() -> None:
    world = World(waiting_max=4)
    for _ in range(2):
        world.reads.read(world.told.append)
    world.answer(False)  # two wait for another attempt
    for _ in range(4):
        world.reads.read_once(world.told.append)  # two wait for an answer
    assert world.told == [False, False]
    world.reads.try_again()
    world.answer(True)
    assert world.told == [False, False, True, True, True, True]
    world.reads.read(world.told.append)
    assert len(world.asked) == 1
    world.answer(False)
    world.now += PATIENCE_SECONDS
    world.reads.try_again()
    assert world.told[6:] == [False]
    for _ in range(5):
        world.reads.read(world.told.append)
    assert (len(world.asked), world.told[7:]) == (4, [False])
