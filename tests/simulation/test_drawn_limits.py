"""The limits that a simulated run draws and does not share, and when a run whose faults are over is given up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from chaos.broker_sim.progress import Progress
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


def test_run_without_progress_is_given_up_after_the_patience() -> None:
    progress = Progress(20.0, 60.0)
    assert progress.may_go_on(79.9)
    assert not progress.may_go_on(80.0)
    progress.see(30.0, missing_count=0, open_count=5, behind=0)
    progress.see(70.0, missing_count=0, open_count=5, behind=0)
    assert progress.may_go_on(89.9)
    assert not progress.may_go_on(90.0)


def test_each_falling_figure_is_progress() -> None:
    for figures in ((0, 5, 7), (1, 4, 7), (1, 5, 6)):
        progress = Progress(0.0, 60.0)
        progress.see(0.0, missing_count=1, open_count=5, behind=7)
        unstored, unfinished, behind = figures
        progress.see(50.0, missing_count=unstored, open_count=unfinished, behind=behind)
        assert progress.may_go_on(100.0), figures


def test_newly_stored_sends_are_progress() -> None:
    """As in seed 71 of "pop": 4,500 sends are stored, one in each round trip, before the first pop is answered."""
    progress = Progress(20.0, 66.0)
    for now in range(20, 80):
        progress.see(now, missing_count=60 * (80 - now), open_count=60 * (now - 20), behind=140)
    for now in range(80, 170):
        assert progress.may_go_on(now), f"given up after {now} s"
        progress.see(now, missing_count=0, open_count=40 * (170 - now), behind=140 + now % 50)
    assert progress.may_go_on(234.9)
    assert not progress.may_go_on(235.0)


def test_endlessly_repeated_states_are_not_progress() -> None:
    progress = Progress(0.0, 60.0)
    for now in range(100):
        progress.see(now, missing_count=0, open_count=5 + now % 2, behind=3 + now % 3)
    assert not progress.may_go_on(100.0)


def test_endless_small_progress_is_given_up() -> None:
    progress = Progress(0.0, 60.0)
    for turn in range(100):
        progress.see(turn * 50.0, missing_count=0, open_count=1000 - turn, behind=0)
    assert progress.may_go_on(599.0)
    assert not progress.may_go_on(600.0)
