"""Token buckets of quotas: pure, with time as a number."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mq.broker.base.quota_buckets import (
    BURST_SECONDS,
    CONSUME,
    PRODUCE,
    RECENT_SECONDS,
    TOPIC,
    USER,
    Bucket,
    LimitKey,
    QuotaBuckets,
)
from mq.protocol.requests.quota_attributes import Quota

WHO = LimitKey(TOPIC, "T", PRODUCE)


def sent(buckets: QuotaBuckets, quota: Quota, until: float, costs: tuple[int, int] = (1, 100)) -> list[float]:
    """When requests pass that are sent as fast as possible from second 0 on."""
    now, passed = 0.0, []
    while now <= until:
        seconds, _ = buckets.wait([(WHO, quota)], now)
        now += seconds
        buckets.charge([(WHO, quota)], *costs, now)
        passed.append(now)
    return passed


@pytest.mark.parametrize("quota", [Quota(produce_messages=50), Quota(produce_bytes=5000)])
def test_rate_is_kept_over_a_long_time(quota: Quota) -> None:
    passed = sent(QuotaBuckets(), quota, 100.0)
    assert 50 * 100 <= len(passed) <= 50 * (100 + BURST_SECONDS) + 2


def test_full_first_bucket_avoids_throttling_after_an_election() -> None:
    passed = sent(QuotaBuckets(), Quota(produce_messages=50), 0.0)
    assert len([at for at in passed if at == 0.0]) == 51


def test_first_exhausted_rate_limits_the_client() -> None:
    buckets, both = QuotaBuckets(), Quota(produce_messages=1000, produce_bytes=1000)
    assert len(sent(buckets, both, 10.0)) == pytest.approx(110, abs=3)


def test_batch_larger_than_the_burst_passes_and_delays_later_batches() -> None:
    buckets, quota = QuotaBuckets(), Quota(produce_bytes=1000)
    assert buckets.wait([(WHO, quota)], 0.0) == (0.0, None)
    buckets.charge([(WHO, quota)], 1, 50_000, 0.0)
    assert buckets.wait([(WHO, quota)], 0.0) == (49.0, WHO)
    assert buckets.wait([(WHO, quota)], 49.0) == (0.0, None)


def test_small_requests_do_not_starve_large_requests() -> None:
    buckets, quota, random_one = QuotaBuckets(), Quota(produce_bytes=1000), random.Random(1)
    passed: Counter[int] = Counter()
    now = 0.0
    while now < 1000:
        size = random_one.choice([10, 5000])
        seconds, by = buckets.wait([(WHO, quota)], now)
        if by is None:
            buckets.charge([(WHO, quota)], 1, size, now)
            passed[size] += 1
        now += max(0.05, min(seconds, 0.3))
    assert passed[5000] > 0.7 * passed[10], passed


def test_waiting_requests_pass_in_order() -> None:
    buckets, quota, chance = QuotaBuckets(), Quota(produce_bytes=1000, produce_messages=20), random.Random(2)
    due = []
    now = 0.0
    for _ in range(500):
        now += chance.random() / 20
        seconds, _ = buckets.wait([(WHO, quota)], now)
        buckets.charge([(WHO, quota)], 1, chance.randrange(1, 200), now)
        due.append(now + seconds)
    assert due == sorted(due)


def test_clock_that_jumps_gives_a_burst_at_most() -> None:
    bucket = Bucket(100, 1000.0)
    bucket.charge(250)
    assert bucket.wait(900.0) == 1.5  # back: nothing comes, and nothing is lost
    assert bucket.wait(1000.0) == 1.5
    assert bucket.wait(1e9) == 0.0
    assert bucket.level == 100


def test_debt_takes_as_long_to_pay_at_another_rate() -> None:
    bucket = Bucket(100, 0.0)
    bucket.charge(300)
    assert bucket.wait(0.0) == 2.0
    bucket.change(10, 0.0)
    assert bucket.wait(0.0) == 2.0
    bucket.change(1000, 1.0)
    assert bucket.wait(1.0) == 1.0


def test_raised_rate_pays_a_large_debt_sooner() -> None:
    """A consumer that had got 30 MB at 1 byte per second waited for a year, although its quota was raised."""
    bucket = Bucket(1, 0.0)
    bucket.charge(30_000_000)
    bucket.change(10_000_000, 0.0)
    assert bucket.wait(0.0) == pytest.approx(3.0, abs=0.01)
    bucket.change(1_000_000_000, 0.0)
    assert bucket.wait(0.0) == pytest.approx(1.0)  # those that wait already pass first


def test_each_user_has_a_bucket_and_topics_share_theirs() -> None:
    buckets, each, together = QuotaBuckets(), Quota(produce_messages=10), Quota(produce_messages=15)
    ann, bob = ([(LimitKey(USER, name, PRODUCE), each), (WHO, together)] for name in ("ann", "bob"))
    buckets.charge(ann, 11, 0, 0.0)
    seconds, by = buckets.wait(ann, 0.0)
    assert (round(seconds, 6), by) == (0.1, LimitKey(USER, "ann", PRODUCE))
    assert buckets.wait(bob, 0.0) == (0.0, None)
    buckets.charge(bob, 7, 0, 0.0)
    seconds, by = buckets.wait(bob, 0.0)
    assert (round(seconds, 6), by) == (0.2, WHO)


def test_producing_and_consuming_are_counted_separately() -> None:
    buckets, quota = QuotaBuckets(), Quota(produce_messages=1, consume_messages=1)
    buckets.charge([(WHO, quota)], 10, 0, 0.0)
    assert buckets.wait([(WHO._replace(direction=CONSUME), quota)], 0.0) == (0.0, None)


def test_removed_quota_is_dropped_and_a_new_one_begins_full() -> None:
    buckets, quota = QuotaBuckets(), Quota(produce_messages=1)
    buckets.charge([(WHO, quota)], 10, 0, 0.0)
    buckets.count_throttled(WHO, 0.0, refused=True)
    buckets.keep(lambda each: False)
    assert not buckets.throttles
    assert buckets.wait([(WHO, quota)], 0.0) == (0.0, None)


def test_first_throttled_request_of_a_minute_is_reported() -> None:
    buckets = QuotaBuckets()
    told = [buckets.count_throttled(WHO, at, refused=False) for at in (0.0, 1.0, 2.0)]
    assert told == [True, False, False]
    assert buckets.count_throttled(WHO, 3 + RECENT_SECONDS, refused=True)
    assert [(who, n.delayed_count, n.refused_count) for who, n in buckets.recent(4 + RECENT_SECONDS)] == [(WHO, 3, 1)]
    assert not [*buckets.recent(4 + 2 * RECENT_SECONDS)]
