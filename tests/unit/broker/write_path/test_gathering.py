"""Rounds that wait for senders which were just answered: simulated clients, rounds of a constant length."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mq.broker.write_path.gathering import ROUNDS_WITHOUT_MAX, WAIT_SECONDS_MAX, WAIT_SHARE, Gathering

ROUND_SECONDS = 0.002


@dataclass
class Outcome:
    """``latencies`` from sending to the reply; ``waits`` from the time at which a round could have started."""

    rounds: int
    latencies: list[float]
    waits: list[float]


def simulate(
    *, first: list[float], next_after: Callable[[], float] | None, rounds: int, gathers: bool = True
) -> Outcome:
    """Senders of one message each, at the times ``first``. They send again ``next_after()`` seconds after a reply."""
    gathering = Gathering()
    arrivals = list(first)
    heapq.heapify(arrivals)
    waiting: list[float] = []
    latencies: list[float] = []
    waits: list[float] = []
    now = free_at = 0.0
    for done in range(rounds):
        while True:
            while arrivals and arrivals[0] <= now:
                waiting.append(heapq.heappop(arrivals))
            if not waiting:
                if not arrivals:
                    return Outcome(done, latencies, waits)
                now = arrivals[0]
                continue
            left = gathering.seconds_left(now, len(waiting)) if gathers else 0.0
            if left <= 0:
                break
            now = min(now + left, arrivals[0]) if arrivals else now + left
        waits.append(now - max(free_at, min(waiting)))
        gathering.round_started(now)
        now = free_at = now + ROUND_SECONDS
        answered, waiting = waiting, []
        while arrivals and arrivals[0] <= now:
            waiting.append(heapq.heappop(arrivals))
        latencies += [now - sent_at for sent_at in answered]
        if next_after is not None:
            for _ in answered:
                heapq.heappush(arrivals, now + next_after())
        gathering.round_answered(now, len(answered), len(waiting))
    return Outcome(rounds, latencies, waits)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_clients_that_send_again_at_once_share_each_round() -> None:
    rng = random.Random(1)
    first = [rng.uniform(0, 2 * ROUND_SECONDS) for _ in range(64)]

    def next_after() -> float:
        return rng.uniform(0.0001, 0.0004)

    gathered = simulate(first=first, next_after=next_after, rounds=200)
    alternating = simulate(first=first, next_after=next_after, rounds=200, gathers=False)
    assert len(gathered.latencies) > 1.4 * len(alternating.latencies)
    assert mean(gathered.latencies) < 0.8 * mean(alternating.latencies)


@pytest.mark.parametrize("senders", [1, 2, 64])
def test_rounds_do_not_wait_for_slow_clients(senders: int) -> None:
    rng = random.Random(2)
    slow = simulate(
        first=[rng.uniform(0, 0.1) for _ in range(senders)], next_after=lambda: rng.uniform(0.005, 0.1), rounds=5000
    )
    at_once = simulate(
        first=[rng.uniform(0, 0.1) for _ in range(senders)],
        next_after=lambda: rng.uniform(0.005, 0.1),
        rounds=5000,
        gathers=False,
    )
    assert mean(slow.latencies) < 1.02 * mean(at_once.latencies)


@pytest.mark.parametrize("per_second", [100, 1000, 20_000])
def test_messages_at_a_fixed_rate_wait_hardly_longer(per_second: int) -> None:
    rng = random.Random(3)
    at, first = 0.0, list[float]()
    for _ in range(20_000):
        at += rng.expovariate(per_second)
        first.append(at)
    gathered = simulate(first=first, next_after=None, rounds=1 << 20)
    at_once = simulate(first=first, next_after=None, rounds=1 << 20, gathers=False)
    assert mean(gathered.latencies) < 1.05 * mean(at_once.latencies)


def test_message_of_a_single_sender_starts_the_round() -> None:
    for seconds in (0.0, 0.00001, 0.001, 1.0):
        alone = simulate(first=[0.0], next_after=lambda seconds=seconds: seconds, rounds=100)  # type: ignore[misc]
        assert max(alone.waits) == 0.0


def test_no_round_waits_longer_than_its_limit() -> None:
    rng = random.Random(4)
    for _ in range(50):
        first = [rng.uniform(0, 0.01) for _ in range(rng.randrange(2, 40))]
        spread = rng.uniform(0, 0.003)
        seen = simulate(first=first, next_after=lambda spread=spread: rng.uniform(0, spread), rounds=100)  # type: ignore[misc]
        assert max(seen.waits) <= WAIT_SHARE * ROUND_SECONDS + 1e-9


def test_round_limit_stays_short_after_a_disk_stall() -> None:
    gathering = Gathering()
    gathering.round_started(0.0)
    gathering.round_answered(10.0, 10, 5)
    assert 0 < gathering.seconds_left(10.0, 5) <= WAIT_SECONDS_MAX + 1e-9
    assert gathering.seconds_left(10.0 + WAIT_SECONDS_MAX, 5) == 0.0


def test_rounds_rarely_wait_after_waiting_without_success() -> None:
    gathering = Gathering()
    waited = 0
    now = 0.0
    for _ in range(10_000):
        gathering.round_started(now)
        now += ROUND_SECONDS
        gathering.round_answered(now, 10, 5)
        waited += gathering.seconds_left(now, 5) > 0
        now += ROUND_SECONDS  # nobody has come
        assert gathering.seconds_left(now, 5) == 0.0
    assert 10_000 // (ROUNDS_WITHOUT_MAX + 1) <= waited <= 10_000 // (ROUNDS_WITHOUT_MAX + 1) + 10


def test_stopped_gathering_does_not_wait() -> None:
    gathering = Gathering()
    gathering.round_started(0.0)
    gathering.round_answered(0.002, 10, 0)
    assert gathering.seconds_left(0.002, 1) > 0
    gathering.stop()
    assert gathering.seconds_left(0.002, 1) == 0.0


def test_round_does_not_wait_for_less_than_a_clock_tick() -> None:
    gathering = Gathering()
    gathering.round_started(1000.0)
    gathering.round_answered(1000.008, senders=8, waiting_count=0)
    left = gathering.seconds_left(1000.008, waiting_count=1)
    assert left > 0
    assert gathering.seconds_left(1000.008 + left - 1e-12, waiting_count=1) == 0
