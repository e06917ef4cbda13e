"""Settings that make no sense, and directories and ports that a broker must not use: said clearly, nothing damaged."""

from __future__ import annotations

import os
import socket
import tomllib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import trio

from mq.broker.security import StartRefused
from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from tests.free_ports import free_ports
from tests.support.running_broker import broker_client, broker_settings, interpreter_as_before, running


async def refusal(settings: BrokerSettings) -> str:
    """Why a broker with these settings does not start."""
    with interpreter_as_before(), pytest.raises(StartRefused) as refused:
        with trio.fail_after(60):
            await serve(settings)
    return str(refused.value)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# -- ports -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


async def test_broker_refuses_a_port_in_use(tmp_path: Path, taken: str) -> None:
    directory = tmp_path / "new"
    client = await refusal(broker_settings(directory, listen=taken))
    assert client == f"client address {taken} is in use"
    replication = await refusal(broker_settings(directory, peers=f"n0@{taken}"))
    assert replication == f"replication address {taken} is in use"
    assert not directory.exists()
    async with running(directory) as broker:  # neither refusal kept anything for itself
        assert await (await broker.connect()).alive()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_clients_and_replicas_may_not_share_a_port(tmp_path: Path, host: str) -> None:
    (port,) = free_ports(1)
    given = {"listen": f"{host}:{port}", "advertise": f"127.0.0.1:{port}", "peers": f"n0@127.0.0.1:{port}"}
    text = await refusal(broker_settings(tmp_path / "new", **given))
    assert text == f"client address {host}:{port} and replication address 127.0.0.1:{port} need two ports"
    assert not (tmp_path / "new").exists()


async def test_broker_refuses_an_address_of_another_machine(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    text = await refusal(broker_settings(tmp_path, listen=f"192.0.2.1:{port}"))
    assert text.startswith(f"client address 192.0.2.1:{port} cannot be used: ")


def test_impossible_host_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"'no\.\.body:10911': no host can have this name"):
        broker_settings(tmp_path, advertise="no..body:10911")


async def test_host_names_are_looked_up(tmp_path: Path) -> None:
    client_port, peer_port = free_ports(2)
    given = {"listen": f"localhost:{client_port}", "peers": f"n0@localhost:{peer_port}"}
    async with broker_client(tmp_path, **given) as client:
        assert (await client.send()).ext["msgId"].startswith(f"7F000001{client_port:08X}")


# -- directories -------------------------------------------------------------------------------------------------------


async def test_file_instead_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("mine")
    assert str(path) in await refusal(broker_settings(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["commitlog", "queues"])
async def test_data_directory_that_is_a_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("mine")
    assert str(path) in await refusal(broker_settings(tmp_path))
    assert path.read_text() == "mine"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_unwritable_data_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o500)
    assert str(path) in await refusal(broker_settings(path))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no file system that refuses even root")
async def test_unwritable_file_system_is_reported() -> None:
    assert "/proc/self/data" in await refusal(broker_settings(Path("/proc/self/data")))


async def test_broker_refuses_a_directory_of_another_group(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await (await broker.connect()).send()
    before = content(tmp_path)
    (port,) = free_ports(1)
    for given, words in (
        ({"group": "broker-b"}, ("cluster",)),
        ({"cluster": "Other"}, ("cluster",)),
        ({"cluster_id": "ff" * 16}, ("cluster", "ff" * 16)),
        ({"node_id": "n1", "peers": f"n1@127.0.0.1:{port}"}, ("node", "n0", "n1")),
        ({"segment_bytes": 16 * 1024 * 1024}, ("segment", str(8 * 1024 * 1024), str(16 * 1024 * 1024))),
    ):
        text = await refusal(broker_settings(tmp_path, **given))
        assert str(tmp_path) in text, given
        assert all(word in text for word in words), text
        assert content(tmp_path) == before, given
    async with running(tmp_path) as broker:
        assert [record.body for record in (await (await broker.connect()).pull()).records] == [b"body"]


async def test_broker_refuses_a_directory_in_use(tmp_path: Path) -> None:
    async with broker_client(tmp_path) as client:
        await client.send(body=b"first")
        text = await refusal(broker_settings(tmp_path))
        assert str(tmp_path) in text
        assert "in use" in text
        assert (await client.send(body=b"second")).code == 0
        assert [record.body for record in (await client.pull()).records] == [b"first", b"second"]


# -- settings ----------------------------------------------------------------------------------------------------------

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"node_id": "n7"}, "n7.*not among its peers"),
        ({"node_id": "seven"}, "node_id"),
        ({"node_id": ""}, "node_id"),
        ({"peers": ",".join(f"n{n}@h:{n + 1}" for n in range(10))}, "at most 9 replicas, 10 are given"),
        ({"joins_group": True, "peers": "n0@h:1", "replication_listen": "h:1"}, "'n0' is in `peers`"),
        ({"joins_group": True, "node_id": "n7"}, "needs `replication_listen`"),
        ({"replication_listen": "h"}, "'h' is not HOST:PORT"),
        ({"admin_networks": "10.0.0.0/8,here"}, "'here' does not appear to be"),
        ({"delete_when": 24}, "delete_when"),
        ({"retention_hours": 0}, "retention_hours"),
        ({"disk_expire_ratio": 0.95}, "disk ratios must ascend"),
        ({"peers": "n0@h:1,n0@h:2,n1@h:3"}, "'n0' is given twice"),
        ({"peers": ""}, "not ID@HOST:PORT"),
        ({"peers": "n0"}, "'n0' in peers is not ID@HOST:PORT"),
        ({"peers": "n0@h"}, "'h' is not HOST:PORT"),
        ({"peers": "n0@h:70000"}, "not HOST:PORT"),
        ({"listen": "h"}, "'h' is not HOST:PORT"),
        ({"listen": ":1"}, "not HOST:PORT"),
        ({"listen": "h:-1"}, "not HOST:PORT"),
        ({"listen": "h:x"}, "not HOST:PORT"),
        ({"advertise": "h:65536"}, "not HOST:PORT"),
        ({"namesrv": "h:1;x"}, "'x' is not HOST:PORT"),
        ({"segment_bytes": 1000}, "segment_bytes"),
        ({"segment_bytes": 4 * MIB}, "does not fit a segment"),
        ({"message_bytes_max": 32 * MIB}, "message_bytes_max"),
        ({"durability": "maybe"}, "durability"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds"),
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds"),
        ({"heartbeat_seconds": 1}, "three heartbeats"),
        ({"election_timeout_seconds_max": 1.6}, "exceed the minimum"),
        ({"election_timeout_seconds_max": float("inf")}, "election_timeout_seconds_max"),
        ({"default_topic_queues": 0}, "default_topic_queues"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_contradictory_settings_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=words):
        BrokerSettings.load(**given)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text('group = "from-file"\ncluster = "from-file"\nsegment_bytes = 16777216\n')
    return path


def test_flags_override_the_environment_which_overrides_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_BROKER_CLUSTER", "from-environment")
    monkeypatch.setenv("RAFTMQ_BROKER_NODE_ID", "n1")
    settings = BrokerSettings.load(config, node_id="n0", listen=None)
    assert settings.group == "from-file"
    assert settings.cluster == "from-environment"
    assert settings.node_id == "n0"
    assert settings.segment_bytes == 16 * MIB
    assert settings.listen == "127.0.0.1:10911"


def test_loading_a_missing_configuration_file_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.toml"):
        BrokerSettings.load(tmp_path / "nothing.toml")
    with pytest.raises(IsADirectoryError):
        BrokerSettings.load(tmp_path)


@pytest.mark.parametrize("text", ["group = ", "group", "= 1", "a = 1\na = 2"])
def test_non_toml_configuration_is_refused(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(tomllib.TOMLDecodeError, match="at "):
        BrokerSettings.load(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('colour = "red"', "colour"),
        ('[broker]\ngroup = "x"', "broker"),
        ("listen = 10911", "listen"),
        ('segment_bytes = "large"', "segment_bytes"),
        ('peers = ["n0@h:1"]', "peers"),
    ],
)
def test_settings_refuse_unknown_and_wrong_entries(config: Path, text: str, words: str) -> None:
    config.write_text(text)
    with pytest.raises(pydantic.ValidationError, match=words):
        BrokerSettings.load(config)


def test_log_has_the_identity_of_its_group() -> None:
    def identity(**given: Any) -> str:
        return BrokerSettings.load(**given).identity

    assert identity() == identity(listen="127.0.0.1:1", segment_bytes=16 * MIB)
    assert len({identity(), identity(group="b"), identity(cluster="b"), identity(cluster_id="b")}) == 4


def test_broker_listening_on_all_addresses_needs_advertise() -> None:
    with pytest.raises(pydantic.ValidationError, match="advertise"):
        BrokerSettings(listen="0.0.0.0:10911")
    BrokerSettings(listen="0.0.0.0:10911", advertise="192.0.2.7:10911")


# -- files of newer versions -------------------------------------------------------------------------------------------


def newer_checkpoint(data: bytes) -> bytes:
    magic = data[:7] + b"2"
    return magic + zlib.crc32(data[20:], zlib.crc32(magic)).to_bytes(4, "big") + data[12:]


def newer_vote_file(data: bytes) -> bytes:
    slot = bytearray(data)
    slot[11] = 2
    length = int.from_bytes(slot[20:24], "big")
    slot[24:28] = zlib.crc32(slot[28 : 28 + length], zlib.crc32(slot[:24])).to_bytes(4, "big")
    return bytes(slot)


@pytest.mark.parametrize(("name", "change"), [("checkpoint", newer_checkpoint), ("commitlog/meta", newer_vote_file)])
async def test_file_of_a_newer_version(tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    async with running(tmp_path) as broker:
        assert await (await broker.connect()).alive()
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    before = content(tmp_path)
    text = await refusal(broker_settings(tmp_path))
    assert text.startswith(f"{path}: ")
    assert "has format version 2, and this version of the software understands none above 1; nothing was" in text
    before.pop("commitlog/LOCK")
    after = content(tmp_path)
    after.pop("commitlog/LOCK")
    assert after == before


async def test_broker_refuses_an_unfinished_restore(tmp_path: Path) -> None:
    (tmp_path / "commitlog.restoring").mkdir()
    text = await refusal(broker_settings(tmp_path))
    assert "`raftmq restore` did not finish in this directory" in text
    assert not (tmp_path / "commitlog").exists()
