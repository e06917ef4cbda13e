"""`raftmq dev`: which of its servers ended, what it remembers of its directory, and a disk that is nearly full."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from rich.console import Console
from trio.testing import MockClock

from mq.broker.settings import BrokerSettings
from mq.cli import dev_disk
from mq.cli.dev import _say_who_ends
from mq.cli.dev_disk import check_disk, watch_disk
from mq.local_cluster import DevCluster, ServersFailed
from mq.local_cluster.groups import SEGMENT_BYTES, count_groups, group_directory, open_groups, set_segment_bytes
from mq.local_cluster.ports import PORTS_FILE, Ports


class SomeServers:
    """A group whose servers end when the test says so."""

    group = "broker-a"
    node_ids = ("n0", "n1", "n2")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def exit_codes(self) -> dict[str, int]:
        return self.codes

    def log_path(self, name: str) -> Path:
        return Path("logs") / f"{name}.log"


async def test_server_that_ends_is_reported_once(autojump_clock: Any) -> None:
    """A killed replica went unnoticed until the user asked for the status."""
    servers, out = SomeServers(), io.StringIO()
    async with trio.open_nursery() as nursery:
        clusters = [cast("DevCluster", servers)]
        nursery.start_soon(_say_who_ends, Path("data"), clusters, Console(file=out, soft_wrap=True))
        await trio.sleep(10)
        assert not out.getvalue()
        servers.codes["n1"] = -9
        await trio.sleep(10)
        servers.codes["n2"] = 1
        await trio.sleep(10)
        del servers.codes["n1"]  # it was restarted
        await trio.sleep(10)
        servers.codes |= {"n1": -9, "proxy": 1}
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    first, second, again, proxy = out.getvalue().splitlines()
    assert first == again
    assert first.endswith("To start it again: raftmq dev --dir data --restart n1")
    assert proxy.endswith("To start it again: stop raftmq dev with ctrl-C and start it again")
    assert first.startswith("n1 was killed by signal 9; its log is logs/n1.log")
    assert second.startswith("n2 ended with exit code 1; its log is logs/n2.log")


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
    set_segment_bytes(directory, first)
    (directory / "cluster.json").write_text("{}")
    set_segment_bytes(directory, again)
    assert again["segment_bytes"] == expected


def test_directory_from_before_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    settings: dict[str, str] = {}
    set_segment_bytes(tmp_path, settings)
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
    with pytest.raises(ServersFailed, match="holds 2 broker groups with messages: 1 would omit some"):
        async with open_groups(tmp_path, 1):
            pass


RATIOS: dict[str, Any] = {"disk_warn_ratio": 0.75, "disk_expire_ratio": 0.8}
PLAIN = BrokerSettings(node_id="n0", peers="n0@127.0.0.1:1", **RATIOS, disk_full_ratio=0.9)
DATA = Path("/data")
TOTAL = 250_000_000_000


def usage(percent: float) -> tuple[int, int]:
    return round(TOTAL * (100 - percent) / 100), TOTAL


def note(percent: float, *, is_new: bool = False, ratios: BrokerSettings = PLAIN) -> str | None:
    return check_disk(DATA, ratios, is_new=is_new, usage=lambda _: usage(percent))


def test_disk_with_room_is_not_mentioned() -> None:
    assert note(79.9, is_new=True) is None


def test_file_system_without_a_size_has_room() -> None:
    """A tmpfs without a limit; `raftmq dev` ended with a ZeroDivisionError."""
    assert check_disk(DATA, PLAIN, is_new=True, usage=lambda _: (0, 0)) is None


def test_warning_reports_early_deletion() -> None:
    assert note(85, is_new=True) == (
        "the disk of /data is 85 % full, with 37.5 GB free: above 80 % (disk_expire_ratio), brokers delete old "
        "messages before their retention time, and above 90 % (disk_full_ratio), they refuse messages"
    )


def test_group_with_data_starts_on_a_full_disk_for_its_consumers() -> None:
    assert note(93) == (
        "the disk of /data is 93 % full, with 17.5 GB free: above 90 % (disk_full_ratio), brokers refuse messages. "
        "Free some space, use --dir for another disk, or allow more with --set disk_full_ratio=0.95"
    )


def test_new_group_is_not_started_on_a_full_disk() -> None:
    with pytest.raises(ServersFailed, match=r"above 90 % \(disk_full_ratio\), brokers refuse messages"):
        note(93, is_new=True)


@pytest.mark.parametrize("is_new", [False, True])
def test_dev_refuses_to_start_on_a_nearly_full_disk(is_new: bool) -> None:
    with pytest.raises(ServersFailed) as failed:
        note(99.2, is_new=is_new)
    assert str(failed.value) == (
        "the disk of /data is 99 % full, with 2.0 GB free: above 95 %, brokers store nothing, and no leader can serve. "
        "Free some space, use --dir for another disk"
    )


@pytest.mark.parametrize("percent", [90, 91.2, 96.9])
def test_proposed_setting_is_enough(percent: float) -> None:
    with pytest.raises(ServersFailed) as failed:
        note(percent, is_new=True)
    ratio = float(str(failed.value).rpartition("disk_full_ratio=")[2])
    allowed = BrokerSettings(node_id="n0", peers="n0@127.0.0.1:1", **RATIOS, disk_full_ratio=ratio)
    assert "they refuse messages" in (note(percent, is_new=True, ratios=allowed) or "")


def test_missing_directory_is_checked_by_the_disk_of_its_parent(tmp_path: Path) -> None:
    asked: list[Path] = []

    def ask(path: Path) -> tuple[int, int]:
        asked.append(path)
        return usage(10)

    check_disk(tmp_path / "a" / "b", PLAIN, is_new=True, usage=ask)
    assert asked == [tmp_path]


async def test_changes_are_reported_once_while_brokers_run(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    percents = [85, 85, 91, 92, 96, 89, 40, 40]
    left = list(percents)
    monkeypatch.setattr(dev_disk, "disk_usage", lambda _: usage(left.pop(0)))
    said: list[str] = []
    with trio.move_on_after(dev_disk.WATCH_SECONDS * (len(percents) - 0.5)):
        await watch_disk(DATA, PLAIN, said.append)
    assert [text.partition(" full, ")[0] for text in said] == [
        "the disk of /data is 91 %",
        "the disk of /data is 96 %",
        "the disk of /data is 89 %",
        "the disk of /data is 40 %",
    ]
    assert said[-1].endswith("brokers accept messages until it is 90 % full")
