"""From which use of the disk on a replica refuses proposals, and from which on a leader's entries."""

from __future__ import annotations

import pytest

from raftlog import NodeId
from raftlog.node_settings import NodeSettings

GIB = 2**30


def settings(full: float, pause: float, segment_bytes: int = GIB) -> NodeSettings:
    return NodeSettings(
        cluster_id="c",
        group="g",
        node_id=NodeId("n0"),
        directory="/nowhere",
        listen=("127.0.0.1", 1),
        secret_file="/nowhere/secret",
        segment_bytes=segment_bytes,
        disk_full_ratio=full,
        disk_pause_ratio=pause,
    )


@pytest.mark.parametrize(
    ("full", "pause", "disk_gib", "expected"),
    [
        (0.90, 0.95, 250, (0.90, 0.95)),
        (0.95, 0.95, 250, (0.93, 0.95)),
        (0.99, 0.995, 1000, (0.99, 0.995)),
        (0.90, 0.95, 10, (0.80, 0.90)),
        (1.0, 1.0, 250, (1 - 2 / 250, 1 - 1 / 250)),
    ],
    ids=["defaults", "equal ratios", "narrow ratios", "a disk of ten files", "no ratios"],
)
def test_disk_ratios_leave_room_for_messages_in_flight(
    full: float, pause: float, disk_gib: int, expected: tuple[float, float]
) -> None:
    found = settings(full, pause).disk_ratios(disk_gib * GIB)
    assert found == pytest.approx(expected)
    assert (found[1] - found[0]) * disk_gib * GIB >= GIB - 1
    assert (1 - found[1]) * disk_gib * GIB >= GIB - 1
