"""The limits that a simulated run draws, and that two runs do not share them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from chaos.broker_sim.schedule import draw_broker_scenario
from chaos.limits import draw
from chaos.log_sim.cluster import Cluster
from chaos.log_sim.schedule import draw_scenario
from mq.broker.limits import DEFAULT, TEST_MIN


def numbers(limits: Any, group: str = "") -> Iterator[tuple[str, float]]:
    """All limits by name."""
    for field in fields(limits):
        value = getattr(limits, field.name)
        if is_dataclass(value):
            yield from numbers(value, f"{field.name}.")
        else:
            yield group + field.name, value


def test_limits_are_between_smallest_and_usual() -> None:
    smallest, usual = dict(numbers(TEST_MIN)), dict(numbers(DEFAULT))
    met = set()
    for seed in range(40):
        drawn = dict(numbers(draw(random.Random(seed), TEST_MIN, DEFAULT)))
        assert drawn.keys() == smallest.keys()
        assert all(smallest[name] <= value <= usual[name] for name, value in drawn.items())
        assert all(isinstance(value, type(usual[name])) for name, value in drawn.items())
        met |= {name for name, value in drawn.items() if value == smallest[name]}
    assert met == smallest.keys()


def test_same_seed_draws_the_same_limits() -> None:
    first, again, other = (draw_broker_scenario(seed, "pop").broker_limits for seed in (1, 1, 2))
    assert first == again != other


def test_run_within_a_run_keeps_its_own_limits() -> None:
    seeds = 3, 4
    alone = [Cluster(draw_scenario(seed)) for seed in seeds]
    for cluster in alone:
        cluster.run()
    outer, inner = (Cluster(draw_scenario(seed)) for seed in seeds)
    assert outer.scenario.limits != inner.scenario.limits
    outer.at(5.0, inner.run)
    outer.run()
    assert [each.outcome(None).digest for each in (outer, inner)] == [each.outcome(None).digest for each in alone]
