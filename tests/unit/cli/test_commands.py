"""Pieces of the commands that need no server: input, addresses, settings, exit codes, ports."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mq.broker.settings import BrokerSettings
from mq.cli.demo import TOPIC, _DemoState
from mq.cli.demo_consumer import ConsumedLine, parse_line
from mq.cli.dev import dev
from mq.cli.errors import EXIT_REFUSED, CommandFailed, run_trio
from mq.cli.produce_consume import Lines, consume
from mq.cli.servers import broker, load_settings, split_address, split_settings
from mq.client.message import MessageQueue, SendResult
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ReplicaStatus
from mq.local_cluster.cluster import DevCluster, _in_words
from mq.local_cluster.ports import Ports, choose_ports, lock_directory
from mq.local_cluster.processes import ServersFailed, last_words
from mq.protocol.message_ids import offset_message_id
from mq.protocol.numbers import PhysicalOffset


def test_lines_across_chunks_and_empty_lines_are_read() -> None:
    lines = Lines()
    assert lines.feed(b"one\r\ntw") == [(1, b"one")]
    assert lines.feed(b"o\n\nfour") == [(2, b"two")]
    assert lines.feed(b"") == [(4, b"four")]


def test_last_line_with_line_feed_comes_once() -> None:
    lines = Lines()
    assert lines.feed(b"only\n") == [(1, b"only")]
    assert lines.feed(b"") == []


@pytest.mark.parametrize("text", ["", "host", "host:", ":9876", "host:port", "host:65536", "host:-1"])
def test_malformed_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(CommandFailed, match="is not HOST:PORT") as caught:
        split_address(text)
    assert caught.value.exit_code == EXIT_REFUSED


def test_address_of_either_family_is_split() -> None:
    assert split_address("127.0.0.1:9876") == ("127.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)


def test_settings_are_split_at_the_first_equals_sign() -> None:
    assert split_settings(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(CommandFailed, match="--set 'novalue'"):
        split_settings(["novalue"])


def test_unreadable_config_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "absent.toml"
    with pytest.raises(CommandFailed, match=r"absent\.toml: No such file"):
        load_settings(path.read_text, path)


def test_unknown_and_wrong_settings_are_reported() -> None:
    with pytest.raises(
        CommandFailed, match=r"^transactions: .*boolean.*; there is no setting transaction_check_second$"
    ):
        load_settings(lambda: BrokerSettings.load(None, transactions="maybe", transaction_check_second=3))


def test_single_error_in_nested_nurseries_is_raised_unwrapped() -> None:
    async def main() -> None:
        async with trio.open_nursery() as outer:
            async with trio.open_nursery() as inner:
                inner.start_soon(fail)
            outer.start_soon(trio.sleep_forever)

    async def fail() -> None:
        raise CommandFailed("the reason")

    with pytest.raises(CommandFailed, match="the reason"):
        run_trio(main)


def test_consumer_line_is_read_back() -> None:
    assert parse_line(b"broker-a 3 17 12 4026531839") == ConsumedLine("broker-a", 3, 17, 12, 4026531839)


def test_failover_ends_with_the_first_message_that_another_broker_stored() -> None:
    """Answers that the old leader had sent before it died arrive later and do not count."""

    def stored_by(port: int, offset: int) -> SendResult:
        stored = offset_message_id(bytes([127, 0, 0, 1]), port, PhysicalOffset(offset))
        return SendResult("key", stored, MessageQueue(TOPIC, "broker-a", 0), offset)

    async def main() -> _DemoState:
        state = _DemoState([b"line"] * 4, in_flight=4)
        state.on_outcome(0, stored_by(10911, 0))
        state.killed_port = 10911
        state.on_outcome(1, stored_by(10911, 1))
        assert state.failed_over_at is None
        await trio.sleep(1)
        state.on_outcome(2, stored_by(10912, 2))
        await trio.sleep(1)
        state.on_outcome(3, stored_by(10912, 3))
        return state

    state = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert state.failed_over_at is not None
    assert state.last_ack_at - state.failed_over_at == pytest.approx(1)


async def open_cluster(directory: Path, ports: Ports) -> None:
    async with DevCluster.open(directory, nodes=1, ports=ports):
        raise AssertionError("opened")


def test_group_does_not_start_on_used_ports(tmp_path: Path) -> None:
    ports = Ports.free(1)
    with (
        socket.create_server(("127.0.0.1", ports.clients[0])),
        pytest.raises(ServersFailed, match=f"another process listens on 127.0.0.1:{ports.clients[0]};"),
    ):
        trio.run(open_cluster, tmp_path / "new", ports)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give a directory with --dir, or --ephemeral"),
        ({"ephemeral": True, "directory": Path("data")}, "give a directory with --dir, or --ephemeral"),
        ({"ephemeral": True, "nodes": 2}, "--nodes 2: a group has 1, 3 or 5 replicas"),
        ({"ephemeral": True, "base_port": 80}, "--port 80: a port from 1024 on, or 0"),
    ],
)
def test_dev_refuses_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        dev(**options)


def test_dev_checks_its_ports_before_changing_files(tmp_path: Path) -> None:
    ports = Ports.free(3)
    with (
        socket.create_server(("127.0.0.1", ports.replication[2])),
        pytest.raises(CommandFailed, match=f"another process listens on 127.0.0.1:{ports.replication[2]};"),
    ):
        dev(tmp_path / "new", base_port=ports.namesrv)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "no replica is registered at the name server"),
        (GroupStatus("c", "g", None, None, ()), "no replica answers"),
        (
            GroupStatus(
                "c",
                "g",
                None,
                None,
                (
                    ReplicaStatus("n0", None, "candidate", term=1203),
                    ReplicaStatus("n1", None, "follower", term=4, abstaining=True),
                    ReplicaStatus("id 2", None, UNREACHABLE),
                ),
            ),
            "n0 is candidate in term 1,203, n1 is follower in term 4 and abstains, id 2 is unreachable",
        ),
    ],
)
def test_description_of_a_group_shows_the_missing_leader(status: GroupStatus | None, words: str) -> None:
    assert _in_words(status) == words


def test_directory_keeps_its_ports(tmp_path: Path) -> None:
    chosen = Ports.free(3)
    assert choose_ports(tmp_path, 3, chosen, None) == chosen
    assert choose_ports(tmp_path, 3, None, None) == chosen


def test_directory_with_a_running_group_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    ports = Ports.free(1)
    with (
        lock_directory(tmp_path),
        pytest.raises(ServersFailed, match=f"{tmp_path} is in use: .* started by process {os.getpid()}$"),
    ):
        trio.run(open_cluster, tmp_path, ports)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "logs"}
    with lock_directory(tmp_path):
        pass


def test_occupied_ports_are_not_stored(tmp_path: Path) -> None:
    first, others = Ports.free(1), Ports.free(1)
    choose_ports(tmp_path, 1, first, None)
    with socket.create_server(("127.0.0.1", others.namesrv)), pytest.raises(ServersFailed):
        choose_ports(tmp_path, 1, others, None)
    assert choose_ports(tmp_path, 1, None, None) == first


def test_directory_of_another_group_size_is_refused(tmp_path: Path) -> None:
    choose_ports(tmp_path, 3, Ports.free(3), None)
    with pytest.raises(ServersFailed, match="3 replicas, not of 1"):
        choose_ports(tmp_path, 1, None, None)


def test_unreadable_file_of_ports_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(ServersFailed, match=r"cluster\.json cannot be read"):
        choose_ports(tmp_path, 3, None, None)


@pytest.mark.parametrize(
    ("setting", "words"),
    [("nosuch=1", "there is no setting nosuch"), ("disk_full_ratio=0.1", "disk ratios must ascend")],
)
def test_dev_checks_settings_before_changing_files(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(CommandFailed, match=f"^{words}"):
        dev(tmp_path / "new", base_port=Ports.free(3).namesrv, setting=[setting])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--peers is missing"),
        ({"node_id": "n0"}, "A group of one replica: --peers n0@"),
        ({"peers": "n0@127.0.0.1:1,n1@127.0.0.1:2,n2@127.0.0.1:3"}, "--node-id is missing"),
        ({"join": True, "replication_listen": "127.0.0.1:1"}, "--node-id is missing"),
    ],
)
def test_broker_without_an_identity_creates_no_directory(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandFailed, match=words) as refused:
        broker(data_dir=tmp_path / "data", **given)
    assert refused.value.exit_code == EXIT_REFUSED
    assert not (tmp_path / "data").exists()


def test_wrong_filter_prints_a_message_without_a_traceback() -> None:
    with pytest.raises(CommandFailed, match="names no tag"):
        consume("Topic", "group", tags="||")


def test_error_of_a_failed_server_is_shown_without_its_frame(tmp_path: Path) -> None:
    log = tmp_path / "n0.log"
    log.write_text(
        "{}\n  + Exception Group Traceback\n    | OSError: the reason\n    +------------------------------------\n"
    )
    assert last_words(log) == f"OSError: the reason (see {log})"
    log.write_text("")
    assert last_words(log) == f"it said nothing (see {log})"
