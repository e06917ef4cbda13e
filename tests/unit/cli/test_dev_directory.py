"""What `raftmq dev` remembers of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.local_cluster.groups import SEGMENT_BYTES, count_groups, group_directory, open_groups, remember_segment_bytes
from mq.local_cluster.ports import PORTS_FILE, Ports
from mq.local_cluster.processes import ServersFailed


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        ({}, {}, str(SEGMENT_BYTES)),
        ({"segment_bytes": "70000"}, {}, "70000"),
        ({}, {"segment_bytes": "70000"}, "70000"),  # the log itself refuses it
    ],
)
def test_size_of_log_files_stays(tmp_path: Path, first: dict[str, str], again: dict[str, str], expected: str) -> None:
    directory = tmp_path / "new"
    remember_segment_bytes(directory, first)
    (directory / "cluster.json").write_text("{}")
    remember_segment_bytes(directory, again)
    assert again["segment_bytes"] == expected


def test_directory_from_before_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    settings: dict[str, str] = {}
    remember_segment_bytes(tmp_path, settings)
    assert settings == {}


def test_ports_of_sixteen_groups_and_their_metrics_differ() -> None:
    for first in (Ports.conventional(5), Ports.from_base(12_000, 5)):
        groups = [first.of_group(number) for number in range(16)]
        used = [first.namesrv]
        for ports in groups:
            assert ports.namesrv == first.namesrv
            used += [*ports.clients, *ports.replication, *(port + 100 for port in ports.clients)]
        assert len(set(used)) == len(used)


async def test_directory_of_two_groups_is_refused_with_one_group(tmp_path: Path) -> None:
    assert count_groups(tmp_path) == 0
    for number in range(2):
        group_directory(tmp_path, number).mkdir(exist_ok=True)
        (group_directory(tmp_path, number) / PORTS_FILE).write_text("{}")
        assert count_groups(tmp_path) == number + 1
    with pytest.raises(ServersFailed, match="holds 2 broker groups, not 1"):
        async with open_groups(tmp_path, 1):
            pass
