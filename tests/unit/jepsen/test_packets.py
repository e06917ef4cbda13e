"""Links of poor quality: what they do to packets, and how much of it they count."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from jepsen.deployments.packets import QUEUE_SECONDS_MAX, Link, Shape


def arrivals(shape: Shape) -> tuple[Link, list[list[float]]]:
    """When each of many packets of 1,000 bytes arrives, sent one a millisecond."""
    link = Link(shape)
    rng = Random(1)
    return link, [link.due(number * 0.001, 1000, rng) for number in range(2000)]


def test_link_without_faults_delivers_at_once_and_in_order() -> None:
    link, came = arrivals(Shape())
    assert came == [[number * 0.001] for number in range(2000)]
    assert not link.counts


def test_lost_packets_never_arrive() -> None:
    link, came = arrivals(Shape(loss=0.2))
    lost = sum(not each for each in came)
    assert 300 < lost < 500
    assert link.counts["lost"] == lost


def test_duplicates_arrive_twice() -> None:
    link, came = arrivals(Shape(duplicate=0.1))
    assert sum(len(each) == 2 for each in came) == link.counts["duplicated"] > 100


def test_jitter_stays_within_its_bounds_and_changes_the_order() -> None:
    _, came = arrivals(Shape(delay=0.05, jitter=0.02))
    delays = [each[0] - number * 0.001 for number, each in enumerate(came)]
    assert 0.0299 <= min(delays) < max(delays) <= 0.0701
    assert [each[0] for each in came] != sorted(each[0] for each in came)


def test_reordered_packets_overtake_delayed_packets() -> None:
    link, came = arrivals(Shape(delay=0.05, reorder=0.25))
    assert sum(each[0] == number * 0.001 for number, each in enumerate(came)) == link.counts["reordered"] > 300


def test_low_rate_delays_and_drops_packets() -> None:
    link, came = arrivals(Shape(rate=100_000.0))  # ten times as much is sent
    arrived = [each[0] for each in came if each]
    assert all(b - a >= 0.0099 for a, b in pairwise(arrived))
    assert link.counts["lost"] > 1000
    assert max(at - number * 0.001 for number, each in enumerate(came) for at in each) <= QUEUE_SECONDS_MAX + 0.011


def test_large_packets_vanish() -> None:
    link = Link(Shape(large=600))
    assert link.due(0.0, 600, Random(1)) == [0.0]
    assert link.due(0.0, 601, Random(1)) == []
