"""Servers as processes for the tests of applications."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mq.client import Message
from mq.client.sync import SyncProducer
from mq.testing import running_processes

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_killed_broker_is_started_again() -> None:
    with running_processes() as servers, SyncProducer(servers.namesrv, timeout=30.0) as producer:
        producer.send(Message("Orders", b"before"))
        first = servers.pid("n0")
        directory = servers.log("n0").parent.parent
        servers.kill("n0")
        servers.start("n0")
        assert servers.pid("n0") != first
        assert servers.leader() == "n0"
        assert servers.address("n0").startswith("127.0.0.1:")
        producer.send(Message("Orders", b"after"))
    assert not directory.exists()
    assert not Path(f"/proc/{first}").exists()
    with pytest.raises(ValueError, match="1, 3 or 5 replicas, not 2"), running_processes(replicas=2):
        os.abort()
