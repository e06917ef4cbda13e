"""File descriptors are few where the system allows few: the log gets what it needs, and clients get the rest."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.base.process_tuning import DescriptorLimits
from tests.support.running_broker import running


def test_descriptor_limit_is_divided_among_clients_and_files() -> None:
    for limit, clients_max, number_max in (
        (64, 32, 48),
        (100, 50, 84),
        (1024, 512, 1008),
        (1 << 20, (1 << 20) - 512, (1 << 20) - 16),
    ):
        assert DescriptorLimits.from_limit(limit) == (clients_max, number_max)


async def test_clients_are_served_although_the_broker_uses_most_descriptors_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as some are free, which the log keeps."""
    with ExitStack() as stack:
        for _ in range(100):
            stack.callback(os.close, os.dup(0))
        limit = len(os.listdir("/proc/self/fd")) + 60
        monkeypatch.setattr("mq.broker.server.allow_descriptors", lambda: DescriptorLimits.from_limit(limit))
        with capture_logs() as logs:
            async with running(tmp_path) as broker:
                client = await broker.connect()
                await client.create_topic("T", 1)
                served = 0
                for _ in range(60):
                    other = await broker.connect()
                    served += await _is_served(other.stream)
                assert served > 0
                assert served < 60, "the log's own are kept"
                assert (await client.send("T")).code == 0
    refused = [entry for entry in logs if entry["event"] == "too_many_descriptors"]
    assert refused
    assert refused[0]["limit"] == limit - limit // 2


async def _is_served(stream: trio.SocketStream) -> bool:
    """Whether the broker answers on a new connection."""
    try:
        await stream.send_all(b"\0\0\0\x1c\0\0\0\x18" + b'{"code":28,"opaque":123}')
        return bool(await stream.receive_some())
    except trio.BrokenResourceError:
        return False
