"""The table of goals: from results of benchmarks to what is met, what is missed, and by how much."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.report.goals import collect, newest, section
from benchmarks.suites.figures import Figure


def suite(figures: list[Figure], load: float = 0.5) -> str:
    return json.dumps({"date": "2026-11-26 08:43 UTC", "loadAverage": load, "figures": [asdict(f) for f in figures]})


@pytest.mark.parametrize(
    ("figure", "distance"),
    [
        (Figure("a", "time", 12.2, "us", 5.0), "missed: 2.4 times the goal"),
        (Figure("a", "time", 1.2, "us", 1.0), "missed: 20 % above"),
        (Figure("a", "time", 0.9, "us", 1.0), "met: 10 % below"),
        (Figure("a", "share", 20.0, "%", 80.0, is_limit=False), "missed: 4.0 times less"),
        (Figure("a", "share", 76.0, "%", 80.0, is_limit=False), "missed: 5 % below"),
        (Figure("a", "failures", 0.0, "", 0.0), "met"),
        (Figure("a", "failures", 2.0, "", 0.0), "missed"),
        (Figure("a", "rate", 5.0, "/s"), ""),
    ],
)
def test_distance_is_a_share_or_from_twice_on_a_factor(figure: Figure, distance: str) -> None:
    assert figure.distance == distance


def test_unmet_goals_come_first_and_figures_without_goals_are_omitted(tmp_path: Path) -> None:
    figures = [
        Figure("load", "CPU", 1.0, "us", 2.0),
        Figure("load", "p99", 9.0, "ms", 3.0),
        Figure("load", "rate", 1, "/s"),
    ]
    (tmp_path / "steady-20261126T084347Z.json").write_text(suite(figures, load=4.5))
    text = section(collect(tmp_path))
    assert "Of 2 goals, 1 are met and 1 are missed" in text
    assert "those of steady" in text
    assert "| steady | load: p99 | 9 ms | at most 3 | missed: 3.0 times the goal | 2026-11-26 |" in text
    assert text.index("load: p99") < text.index("load: CPU")
    assert "rate" not in text.partition("Missed:")[2]


def test_goals_are_judged_by_the_newest_run(tmp_path: Path) -> None:
    (tmp_path / "paced-20261126T121625Z.json").write_text(suite([Figure("a", "p50", 9.0, "ms", 3.0)]))
    (tmp_path / "paced-20261127T121625Z.json").write_text(suite([Figure("a", "p50", 2.0, "ms", 3.0)]))
    [judged] = collect(tmp_path)
    assert judged.figure.is_met
    assert newest("steady", tmp_path) is None
    assert section(collect(tmp_path / "empty")).startswith("Of 0 goals")


def test_sends_are_judged_by_the_window_with_the_median_rate(tmp_path: Path) -> None:
    def window(rate: float, leader_us: float) -> dict[str, object]:
        return {"messages_per_second": rate, "p50_ms": 1.0, "leader_us": leader_us, "follower_us": [100.0, 160.0]}

    case = {"nodes": 3, "body_bytes": 1024, "connections": 1, "in_flight": 1}
    measurements = [
        {"case": case, "windows": [window(3.0, 1.0), window(1.0, 900.0), window(2.0, 240.0)], "load_average": 0.1},
        {"case": {**case, "nodes": 1}, "windows": [window(1.0, 1.0)], "load_average": 0.1},
    ]
    raw = {"date": "2026-11-26 17:20 UTC", "measurements": measurements}
    (tmp_path / "produce-20261126T172015Z.json").write_text(json.dumps(raw))
    judged = {each.figure.name: each.figure for each in collect(tmp_path)}
    assert {name: figure.is_met for name, figure in judged.items()} == {
        "p50": False,
        "CPU of the leader": True,
        "CPU of a follower": False,
    }
    assert judged["CPU of the leader"].value == 240.0
