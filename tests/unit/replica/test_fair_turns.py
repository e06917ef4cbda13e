"""What a turn of the reactor does for each client, and what it leaves to the next one; the clock counts work."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import trio
import trio.lowlevel

from raftlog.net.reactor import TURN_SECONDS, Reactor


class Stage:
    """A reactor whose clock moves only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.reactor = Reactor(lambda: self.now, lambda: self.cpu)
        self.served: list[str] = []
        self._fds: list[int] = []

    def work(self, name: str, seconds: float, *, cpu: float | None = None) -> None:
        self.served.append(name)
        self.now += seconds
        self.cpu += seconds if cpu is None else cpu

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


def test_clients_not_reached_in_a_long_turn_are_served_first_next(stage: Stage) -> None:
    for name in ("a", "b", "c", "d"):
        stage.add_client(name, 0.6 * TURN_SECONDS)
    first, second = stage.turn(), stage.turn()
    assert len(first) == 2
    assert sorted(first + second[:2]) == ["a", "b", "c", "d"]
    served = [name for _ in range(20) for name in stage.turn()]
    counts = [served.count(name) for name in ("a", "b", "c", "d")]
    assert max(counts) - min(counts) <= 2


def test_peers_are_served_in_every_long_turn(stage: Stage) -> None:
    for number in range(5):
        stage.add_client(f"client {number}", 2 * TURN_SECONDS)
    stage.add(lambda: stage.work("peer", 0.0), patient=False)
    for _ in range(5):
        assert stage.turn().count("peer") == 1


def test_unfinished_work_continues_behind_clients_not_yet_served(stage: Stage) -> None:
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


def test_unfinished_turn_is_followed_by_another_turn(stage: Stage) -> None:
    stage.turn()
    for number in range(3):
        stage.add_client(f"client {number}", 2 * TURN_SECONDS)
    first, second, third = stage.turn(), stage.turn(), stage.turn()
    assert len(first) == 1
    assert {*first, second[0], third[0]} == {"client 0", "client 1", "client 2"}


def test_descriptor_that_was_left_and_closed_is_not_served(stage: Stage) -> None:
    stage.add(lambda: stage.work("first", 2 * TURN_SECONDS), patient=True)
    gone = stage.add(lambda: stage.work("gone", 0.0), patient=True)
    assert stage.turn() == ["first"]
    stage.reactor.remove(gone)
    assert "gone" not in [*stage.turn(), *stage.turn()]


def test_client_above_its_share_is_served_after_others(stage: Stage) -> None:
    for number in range(10):
        stage.add_client(f"slow {number}", 5 * TURN_SECONDS)
    for _ in range(30):  # each of them has been measured
        stage.turn()
    stage.add_client("modest", 0.0)
    turns = [stage.turn() for _ in range(20)]
    for turn in turns:
        assert turn[0] == "modest"
        assert len(turn) == 2
    slow = [turn[1] for turn in turns]
    assert {slow.count(f"slow {number}") for number in range(10)} <= {1, 2, 3}


def test_client_back_below_its_share_regains_its_place(stage: Stage) -> None:
    seconds = 2 * TURN_SECONDS
    stage.add(lambda: stage.work("mended", seconds), patient=True)
    assert [stage.turn(), stage.turn()] == [["mended"], ["mended"]]
    seconds = 0.0
    stage.add(lambda: stage.work("modest", 0.0), patient=True)
    assert stage.turn() == ["modest", "mended"]
    assert stage.turn() == ["mended", "modest"]


def test_debtors_and_unfinished_work_take_turns(stage: Stage) -> None:
    def finishes_never() -> None:
        stage.work("unfinished", TURN_SECONDS)
        stage.reactor.go_on_later(finishes_never)

    stage.add(lambda: stage.work("slow", 2 * TURN_SECONDS), patient=True)
    stage.turn()
    stage.turn()
    stage.add(lambda: stage.work("modest", TURN_SECONDS), patient=False)
    stage.reactor.go_on_later(finishes_never)
    turns = [stage.turn() for _ in range(4)]
    assert sorted(turn[1] for turn in turns) == ["slow", "slow", "unfinished", "unfinished"]


def test_peer_that_takes_long_is_heard_in_every_turn(stage: Stage) -> None:
    stage.add(lambda: stage.work("peer", 2 * TURN_SECONDS), patient=False)
    assert [stage.turn() for _ in range(3)] == [["peer"]] * 3


def test_closed_waiting_client_is_not_served(stage: Stage) -> None:
    slow = stage.add(lambda: stage.work("slow", 2 * TURN_SECONDS), patient=True)
    assert stage.turn() == ["slow"]
    stage.add(lambda: stage.work("peer", 2 * TURN_SECONDS), patient=False)
    stage.reactor.go_on_later(lambda: stage.work("unfinished", TURN_SECONDS))
    while "slow" in stage.turn():
        stage.reactor.go_on_later(lambda: stage.work("unfinished", TURN_SECONDS))
    stage.reactor.remove(slow)
    stage.reactor.add(slow, lambda events: stage.work("new", 0.0), patient=True)
    turns = [stage.turn() for _ in range(4)]
    assert [turn.count("new") for turn in turns].count(1) >= 2
    assert not any("slow" in turn for turn in turns)


def test_client_keeps_its_place_when_the_process_did_not_run_meanwhile(stage: Stage) -> None:
    """On a busy machine that is so now and then, whoever is being handled."""
    for number in range(10):
        stage.add_client(f"slow {number}", 5 * TURN_SECONDS)
    for _ in range(30):
        stage.turn()
    stage.add(lambda: stage.work("modest", 3 * TURN_SECONDS, cpu=0.0), patient=True)
    assert [stage.turn()[0] for _ in range(10)] == ["modest"] * 10


def test_state_of_a_client_closed_during_its_measurement_is_removed(stage: Stage) -> None:
    def close() -> None:
        stage.work("closed", 2 * TURN_SECONDS)
        if stage.served.count("closed") and closes:
            stage.reactor.remove(fd)

    closes = False
    fd = stage.add(close, patient=True)
    assert stage.turn() == ["closed"]
    closes = True
    assert stage.turn() == ["closed"]
    assert stage.turn() == []
    stage.reactor.add(fd, lambda events: stage.work("new", 0.0), patient=True)
    assert stage.turn() == ["new"]


async def test_task_in_small_steps_gets_a_turn_after_each_reactor_turn(stage: Stage) -> None:
    """Without giving way, the reactor would serve a client that is always ready for milliseconds in between."""
    stage.add_client("client", 0.0)
    turns: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.reactor.run)
        with stage.reactor.giving_way():
            while len(turns) < 20:
                await trio.lowlevel.checkpoint()
                turns.append(stage.reactor.turns)
        nursery.cancel_scope.cancel()
    # In one pass trio runs both in any order: two turns may be in a row, not hundreds.
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 2
    assert turns[-1] > 3, "it is served meanwhile"


def test_clients_served_together_come_first_and_share_the_remaining_time_equally(stage: Stage) -> None:
    shares: list[bool] = []

    def go_on(name: str, seconds: float) -> None:
        stage.work(name, seconds)
        shares.append(stage.reactor.share_used())

    greedy = stage.add(lambda: stage.work("greedy alone", 0.0), patient=True)
    quick = stage.add(lambda: stage.work("quick alone", 0.0), patient=True)
    stage.add(lambda: stage.work("other", 0.0), patient=True)

    def together(ready: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, Callable[[], None]]]]:
        stage.work("together", 0.0)
        rest = [each for each in ready if each[0] not in (greedy, quick)]
        return rest, [(greedy, lambda: go_on("greedy", 0.4 * TURN_SECONDS)), (quick, lambda: go_on("quick", 0.0))]

    stage.reactor.serve_together(together)
    assert stage.turn() == ["together", "greedy", "quick", "other"]
    assert shares == [True, False]


def test_slow_client_served_together_is_measured_next_time(stage: Stage) -> None:
    begun = 1

    def together(ready: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, Callable[[], None]]]]:
        nonlocal begun
        if not begun:
            return ready, []
        begun = 0
        return [], [(greedy, lambda: stage.work("begun", 2 * TURN_SECONDS))]

    greedy = stage.add(lambda: stage.work("greedy", 2 * TURN_SECONDS), patient=True)
    stage.reactor.serve_together(together)
    assert stage.turn() == ["begun"]
    assert stage.turn() == ["greedy"]
    stage.add(lambda: stage.work("modest", 0.0), patient=True)
    assert stage.turn() == ["modest", "greedy"]


def test_clients_served_together_do_not_lengthen_a_turn(stage: Stage) -> None:
    """What they sent is received already: it waits for the next turns, and nothing behind it is received before."""
    fds = [stage.add(lambda n=n: stage.work(f"alone {n}", 0.0), patient=True) for n in range(4)]  # type: ignore[misc]
    stage.add(lambda: stage.work("other", 0.0), patient=True)
    stage.add(lambda: stage.work("peer", 0.0), patient=False)
    waiting = set(fds)

    def together(ready: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, Callable[[], None]]]]:
        begun = [fd for fd in fds if fd in waiting]
        waiting.clear()
        rest = [each for each in ready if each[0] not in begun]
        return rest, [(fd, lambda fd=fd: stage.work(f"begun {fds.index(fd)}", TURN_SECONDS)) for fd in begun]  # type: ignore[misc]

    stage.reactor.serve_together(together)
    for number in range(3):
        served = stage.turn()
        assert [name for name in served if name.startswith("begun")] == [f"begun {number}"]
        assert {"peer", "other"} <= set(served)
        assert not {f"alone {each}" for each in range(number + 1, 4)} & set(served)
    stage.reactor.remove(fds[3])  # it is closed
    assert "begun 3" not in stage.turn()


def test_turn_that_failed_in_another_task_is_the_last(stage: Stage) -> None:
    """Entries after one that cannot be applied were applied, before the failure had ended the reactor."""

    def fail() -> None:
        raise ZeroDivisionError

    ended = 0

    def count() -> None:
        nonlocal ended
        ended += 1

    stage.reactor.at_turn_end(count)
    stage.turn()
    stage.add(fail, patient=False)
    with pytest.raises(ZeroDivisionError):
        stage.reactor.turn_now()
    stage.reactor.end_turn()
    assert stage.turn() == []
    assert ended == 1

    async def main() -> None:
        with trio.move_on_after(0.05) as scope:
            await stage.reactor.run()
        assert scope.cancelled_caught, "the task whose turn failed ends it"

    trio.run(main)
    assert ended == 1
