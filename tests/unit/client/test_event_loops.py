"""Which library's event loop runs the clients for threads."""

from __future__ import annotations

import sys

import pytest

from mq.client.sync import SyncProducer
from mq.client.sync.loop_thread import event_loop
from tests.unit.client.fake_cluster import FakeCluster


def test_threads_use_asyncio_without_trio(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert event_loop() == "trio"
    monkeypatch.setitem(sys.modules, "trio", None)
    assert event_loop() == "asyncio"
    with SyncProducer(threads.namesrv, "g") as producer:
        assert producer.queues("T")
