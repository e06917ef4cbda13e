"""Rates of the last hour: what is kept, and the lines of a chart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq.console.history import EVERY_SECONDS, SECONDS, History, Rates, rates_of
from mq.console.views.charts import HEIGHT, WIDTH, chart, error_chart
from mq.console.views.overview import card, current_problems, damage_rows
from mq.inspection.cluster import GroupStatus, ReplicaStatus


def group(name: str = "broker-a", role: str = "leader", **figures: str) -> GroupStatus:
    return GroupStatus("C", name, None, "n0", (ReplicaStatus("n0", "10.0.0.1:10911", role, figures=figures),))


@pytest.mark.parametrize(
    ("text", "expected"), [("1.5 2 3", 1.5), ("0.0 0.0 0.0", 0.0), ("", None), ("x", None), ("nothing", None)]
)
def test_rate_covers_ten_seconds(text: str, expected: float | None) -> None:
    assert rates_of(group(putTps=text, getTransferredTps="7 8 9")) == (expected, 7.0)


def test_group_without_a_leader_has_no_rates() -> None:
    figures = {"raftmq.role": "follower", "putTps": "5 5 5"}
    assert rates_of(group(role="follower", **figures)) == (None, None)


@pytest.mark.parametrize(("leases", "note"), [("0", ""), ("x", ""), ("1", "for 1 reader,"), ("3", "for 3 readers,")])
def test_replica_reports_readers_with_log_leases(leases: str, note: str) -> None:
    [row] = card(group(**{"raftmq.logLeases": leases}), History(), 0.0).replicas
    assert note in row.note
    assert bool(row.note) is bool(note)


def test_damage_page_shows_scrubs_and_repairs() -> None:
    figures = {"raftmq.logScrubs": "2", "raftmq.logScrubbedBytes": "3000000", "raftmq.queueBlocksRestored": "7"}
    [row] = damage_rows(group(**figures))
    assert (row.verified, row.restored, row.missing, row.state) == ("2 times, 3.0 MB intact", "7", "nothing", "")
    [row] = damage_rows(group(**{"raftmq.logScrubs": "0", "raftmq.missingEntries": "5"}))
    assert (row.verified, row.state) == ("not yet to its end, 0 bytes intact", "bad")
    assert row.missing == "5 entries that it deleted early, on a full disk"
    [row] = damage_rows(group(**{"raftmq.role": "leader"}))
    assert row.verified == "not known", "an older release"
    assert not damage_rows(group()), "it does not answer"


def test_history_is_an_hour_long() -> None:
    history = History()
    for number in range(1000):
        history.add([group(putTps="1 1 1")], number * EVERY_SECONDS)
    now = 999 * EVERY_SECONDS
    assert len(history.get("broker-a", now)) == SECONDS / EVERY_SECONDS
    assert history.get("broker-a", now + SECONDS + 1) == []
    history.add([group("broker-b")], now + 2 * SECONDS)
    assert history.get("broker-a", now) == [], "a group that is gone is forgotten"


def counting(refused: int, failed: int = 0) -> GroupStatus:
    return group(**{"raftmq.requestsRefused": str(refused), "raftmq.requestsFailed": str(failed)})


def test_errors_are_a_rate_between_two_looks() -> None:
    history = History()
    for number, (refused, failed) in enumerate([(100, 0), (150, 10), (150, 10), (20, 0), (40, 0)]):
        history.add([counting(refused, failed)], number * 10.0)
    found = [each.errors for each in history.get("broker-a", 40.0)]
    assert found == [None, 6.0, 0.0, 0.0, 2.0], "a replica that was restarted counts from 0 again"
    assert history.errors("broker-a", 41.0) == 2.0
    assert history.errors("broker-a", 1000.0) is None, "that was long ago"
    assert card(counting(0), history, 41.0).errors == "2.0/s"
    history.add([group(putTps="1 1 1")], 50.0)
    assert history.errors("broker-a", 51.0) is None, "brokers of Apache RocketMQ and of earlier releases do not count"


def test_error_chart_appears_only_after_errors() -> None:
    points = [Rates(0.0, 1.0, 1.0, None), Rates(10.0, 1.0, 1.0, 0.0), Rates(20.0, 1.0, 1.0, 5.0)]
    found = error_chart(points, 20.0)
    assert found is not None
    assert (len(found.sent), found.highest) == (1, "5.0/s")
    assert "refused or failed" in found.words
    assert error_chart(points[:2], 20.0) is None


def test_line_runs_left_to_right_with_its_maximum_at_the_top() -> None:
    found = chart([Rates(SECONDS - 10, 0.0, None), Rates(SECONDS, 50.0, None)], SECONDS)
    assert found is not None
    assert found.sent == (f"{WIDTH * (1 - 10 / SECONDS):.1f},{HEIGHT:.1f} {WIDTH:.1f},0.0",)
    assert (found.read, found.highest) == ((), "50.0/s")
    assert "at most 50.0 messages per second" in found.words


def test_time_without_answers_is_a_gap() -> None:
    times = [0, 10, 20, 200, 210, 220]
    found = chart([Rates(float(at), 1.0, None) for at in times], 220.0)
    assert found is not None
    assert len(found.sent) == 2
    without_leader = [Rates(0.0, 1.0, 1.0), Rates(10.0, 1.0, 1.0), Rates(20.0, None, 1.0), Rates(30.0, 1.0, 1.0)]
    found = chart(without_leader, 30.0)
    assert found is not None
    assert (len(found.sent), len(found.read)) == (1, 1)


def test_chart_needs_two_points() -> None:
    assert chart([Rates(0.0, 1.0, 1.0)], 0.0) is None
    assert chart([], 0.0) is None


def test_zero_rates_are_a_line_at_the_bottom() -> None:
    found = chart([Rates(0.0, 0.0, 0.0), Rates(10.0, 0.0, 0.0)], 10.0)
    assert found is not None
    assert all(pair.endswith(f",{HEIGHT:.1f}") for pair in found.sent[0].split())


def test_chart_shows_the_lag_of_a_replica_in_time() -> None:
    history = History()
    leader = ReplicaStatus("n0", "10.0.0.1:10911", "leader")
    follower = replace(leader, node_id="n2", role="follower", commit_position=500, lag_entries=7, lag_bytes=1500)

    def words(now: float) -> list[str]:
        return current_problems(GroupStatus("C", "broker-a", None, "n0", (leader, follower)), history, now)

    assert words(0.0) == ["n2 of broker-a is 7 entries, 1.5 kB behind the leader"]
    for number in range(30):
        now = replace(leader, commit_position=100 * number)
        history.add([GroupStatus("C", "broker-a", None, "n0", (now, follower))], 10.0 * number)
    assert words(290.0) == ["n2 of broker-a is 4 min behind the leader: 7 entries, 1.5 kB"]
    assert history.seconds_behind("broker-a", 99, 290.0) == 290.0
    assert history.seconds_behind("broker-a", -1, 290.0) is None
    assert history.seconds_behind("nope", 500, 290.0) is None
