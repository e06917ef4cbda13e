"""A broker in a process of its own is killed, and what it has not synced is gone from its disk.

No other test sees the calls of the compiled log writer below it together with what the broker has answered: the
simulation stands for these calls, and in a process of the tests nothing that was written is ever lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mq.client import Message
from mq.client.sync import SyncProducer, SyncPullConsumer
from mq.testing import running_processes
from tests.support.power_cuts import JOURNAL, build_recorder, cut_power

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def test_acknowledged_messages_survive_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "writes"
    monkeypatch.setenv(JOURNAL, str(journal))
    monkeypatch.setenv("LD_PRELOAD", str(build_recorder(tmp_path)))
    acknowledged: list[str] = []
    synced_bytes = 0
    with running_processes() as servers, SyncProducer(servers.namesrv, timeout=30.0) as producer:
        for cut in range(3):
            for number in range(30):
                producer.send(Message("Orders", f"{cut}/{number}".encode()))
                acknowledged.append(f"{cut}/{number}")
            servers.kill("n0")
            synced_bytes += cut_power(journal).synced_bytes
            servers.start("n0")
        with SyncPullConsumer(servers.namesrv, "readers", consume_from="first") as consumer:
            consumer.assign(consumer.queues("Orders"))
            found = {message.body.decode() for message in consumer.read_to_end()}
    assert set(acknowledged) <= found, f"lost: {sorted(set(acknowledged) - found)}"
    assert synced_bytes > sum(map(len, acknowledged)), "the log was written by calls that nobody recorded"
