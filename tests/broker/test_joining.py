"""A broker that joins a group is not told how large log files are: it takes that from the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.security import StartRefused
from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from raftlog import stored_segment_bytes
from raftlog.log_numbers import LogIndex
from raftlog.net.frames import Hello
from raftlog.net.secret_file import FILE_NAME, create_secret, read_secrets
from raftlog.net.transport import NOT_RECORDED
from tests.free_ports import free_ports
from tests.support.running_broker import interpreter_as_before, running
from tests.support.waiting import until
from tests.unit.replica.caller import Caller

KIB = 1024


def joining(directory: Path, **given: Any) -> BrokerSettings:
    """Settings of a broker that joins; there is a secret in its directory, and nothing else yet."""
    client_port, peer_port = free_ports(2)
    create_secret(str(directory / FILE_NAME))
    chosen: dict[str, Any] = {
        "node_id": "n3",
        "joins_group": True,
        "listen": f"127.0.0.1:{client_port}",
        "replication_listen": f"127.0.0.1:{peer_port}",
        "data_dir": directory,
        "message_bytes_max": 32 * KIB,
    }
    return BrokerSettings(**chosen | given)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def call(settings: BrokerSettings, segment_bytes: int) -> None:
    """Be the leader of a group to which the broker was added."""
    addresses = {"n0": "127.0.0.1:1", "n3": "127.0.0.1:2"}
    caller = await Caller.open(settings.replication_address[1], read_secrets(str(settings.secret_path)))
    hello = Hello(
        settings.identity,
        settings.group,
        "n0",
        "n3",
        segment_bytes,
        "control",
        conf_index=LogIndex(7),
        addresses=addresses,
    )
    assert (await caller.greet(hello)).refusal == NOT_RECORDED
    await trio.aclose_forcefully(caller.stream)


async def started(log: Sequence[Mapping[str, Any]]) -> None:
    await until(lambda: any(line["event"] == "started" for line in log))


async def test_joining_broker_takes_the_segment_size_from_its_group(tmp_path: Path) -> None:
    settings = joining(tmp_path)
    with interpreter_as_before():
        with capture_logs() as log:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, settings)
                assert names_in(tmp_path) == [FILE_NAME]
                await call(settings, 128 * KIB)
                await started(log)
                nursery.cancel_scope.cancel()
        assert stored_segment_bytes(str(settings.log_dir)) == 128 * KIB
        with capture_logs() as log:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, settings)
                await started(log)
                nursery.cancel_scope.cancel()
    assert "group_awaited" not in {line["event"] for line in log}


async def test_broker_that_waits_for_its_group_can_be_stopped(tmp_path: Path) -> None:
    settings = joining(tmp_path)
    with interpreter_as_before():
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, settings)
            nursery.cancel_scope.cancel()
    assert names_in(tmp_path) == [FILE_NAME]


async def test_too_large_messages_for_the_segment_files_are_refused(tmp_path: Path) -> None:
    settings = joining(tmp_path, message_bytes_max=100 * KIB)
    refusals: list[str] = []

    async def serve_until_refused(*, task_status: trio.TaskStatus[None]) -> None:
        with pytest.raises(StartRefused) as refused:
            await serve(settings, task_status=task_status)
        refusals.append(str(refused.value))

    with interpreter_as_before(), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_until_refused)
            await call(settings, 128 * KIB)
    limit = 128 * KIB - 65536 - 56
    (refusal,) = refusals
    assert refusal == (
        f"the segment files of this group have {128 * KIB} bytes (segment_bytes), too small for a message of "
        f"{100 * KIB} bytes: set message_bytes_max to {limit} or less"
    )
    assert names_in(tmp_path) == [FILE_NAME]
    assert settings.model_copy(update={"message_bytes_max": limit}).with_segment_bytes(128 * KIB).segment_bytes


async def test_default_message_size_fits_the_files_of_the_group(tmp_path: Path) -> None:
    given = joining(tmp_path)
    settings = BrokerSettings(**given.model_dump(exclude={"message_bytes_max"}, exclude_unset=True))
    with interpreter_as_before(), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, settings)
            await call(settings, 128 * KIB)
            await started(log)
            nursery.cancel_scope.cancel()
    assert stored_segment_bytes(str(settings.log_dir)) == 128 * KIB
    assert settings.with_segment_bytes(128 * KIB).message_bytes_max == 128 * KIB - 65536 - 56
    assert settings.with_segment_bytes(2**30).message_bytes_max == settings.message_bytes_max


async def test_broker_with_a_configured_file_size_does_not_wait(tmp_path: Path) -> None:
    settings = joining(tmp_path, segment_bytes=256 * KIB)
    with interpreter_as_before(), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, settings)
            nursery.cancel_scope.cancel()
    assert stored_segment_bytes(str(settings.log_dir)) == 256 * KIB
    assert "group_awaited" not in {line["event"] for line in log}


async def test_founder_continues_with_its_files(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=256 * KIB, message_bytes_max=KIB) as broker:
        assert (await (await broker.connect()).send()).code == 0
    client_port, peer_port = free_ports(2)
    settings = BrokerSettings(
        listen=f"127.0.0.1:{client_port}",
        peers=f"n0@127.0.0.1:{peer_port}",
        data_dir=tmp_path,
        message_bytes_max=KIB,
    )
    with interpreter_as_before(), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, settings)
            await started(log)
            nursery.cancel_scope.cancel()
