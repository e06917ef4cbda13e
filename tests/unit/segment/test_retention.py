"""Which files may go: six files of 100 bytes, the last one active; the newest message of file n is of second n."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.segment.index import SegmentInfo
from raftlog.segment.retention import RetentionPolicy, droppable

SEGMENTS = [SegmentInfo(n * 100, n * 100 + 100, n * 10 + 1, n * 10 + 10, n < 5) for n in range(6)]
AGE = {"age_max_ms": 10_000}


def decide(policy: dict[str, Any], facts: dict[str, Any], without_messages: tuple[int, ...] = ()) -> int | None:
    usual = {"now_ms": 0, "hour": 12, "floor_pos": 600, "peers_pos": 600, "used_bytes": 600, "total_bytes": 10_000}
    return droppable(
        SEGMENTS,
        lambda segment: None if segment.start in without_messages else segment.start * 10,
        RetentionPolicy(**policy),
        **(usual | facts),
    )


@pytest.mark.parametrize(
    ("policy", "facts", "base_pos"),
    [
        pytest.param({}, {"now_ms": 1 << 40}, None, id="without limits everything stays"),
        pytest.param(AGE, {"now_ms": 10_000}, None, id="exactly as old as allowed"),
        pytest.param(AGE, {"now_ms": 10_001}, 100, id="older by a millisecond"),
        pytest.param(AGE, {"now_ms": 12_500}, 300, id="three are too old"),
        pytest.param(AGE, {"now_ms": 1 << 40}, 500, id="never the active one"),
        pytest.param(AGE, {"now_ms": 1 << 40, "floor_pos": 299}, 200, id="floor within a file"),
        pytest.param(AGE, {"now_ms": 1 << 40, "floor_pos": 300}, 300, id="floor at the end of a file"),
        pytest.param(AGE, {"now_ms": 1 << 40, "floor_pos": 0}, None, id="floor below everything"),
        pytest.param(AGE, {"now_ms": 1 << 40, "peers_pos": 200}, 200, id="peers need the rest"),
        pytest.param(AGE | {"hour": 4}, {"now_ms": 1 << 40}, None, id="wrong hour"),
        pytest.param(AGE | {"hour": 4}, {"now_ms": 1 << 40, "hour": 4}, 500, id="right hour"),
        pytest.param(AGE | {"hour": 0}, {"now_ms": 1 << 40, "hour": 0}, 500, id="midnight is an hour"),
        pytest.param({"bytes_max": 600}, {}, None, id="exactly as many bytes as allowed"),
        pytest.param({"bytes_max": 599}, {}, 100, id="a byte too many"),
        pytest.param({"bytes_max": 250, "hour": 4}, {}, 400, id="size does not wait for the hour"),
        pytest.param({"bytes_max": 0}, {}, 500, id="the active one is kept whatever its size"),
        pytest.param({"bytes_max": 0}, {"floor_pos": 250}, 200, id="size yields to the floor"),
        pytest.param({}, {"used_bytes": 800, "total_bytes": 1000}, None, id="exactly at the watermark"),
        pytest.param({}, {"used_bytes": 810, "total_bytes": 1000}, 100, id="down to the watermark"),
        pytest.param({"hour": 4}, {"used_bytes": 990, "total_bytes": 1000}, 200, id="pressure ignores the hour"),
        pytest.param({}, {"used_bytes": 1000, "total_bytes": 1000, "floor_pos": 150}, 100, id="never above the floor"),
        pytest.param({}, {"used_bytes": 840, "total_bytes": 1000, "peers_pos": 0}, None, id="peers hold it back"),
        pytest.param({}, {"used_bytes": 940, "total_bytes": 1000, "peers_pos": 0}, 100, id="force overrides peers"),
        pytest.param({}, {"used_bytes": 0, "total_bytes": 0}, None, id="a disk of unknown size"),
    ],
)
def test_droppable(policy: dict[str, Any], facts: dict[str, Any], base_pos: int | None) -> None:
    assert decide(policy, facts) == base_pos


def test_file_without_messages_goes_with_its_neighbours() -> None:
    assert decide(AGE, {"now_ms": 11_500}, without_messages=(0, 200, 300)) == 400
    assert decide({}, {}, without_messages=(0,)) is None


def test_only_files_that_may_go_are_asked_for_their_age() -> None:
    asked: list[int] = []

    def newest(segment: SegmentInfo) -> int | None:
        asked.append(segment.start)
        return segment.start * 10

    droppable(
        SEGMENTS,
        newest,
        RetentionPolicy(age_max_ms=10_000),
        now_ms=11_500,
        hour=0,
        floor_pos=600,
        peers_pos=600,
        used_bytes=0,
        total_bytes=1,
    )
    assert asked == [0, 100, 200]
