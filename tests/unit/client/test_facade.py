"""`raftmq` is `mq.client` by another name; which event loop runs its clients for threads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mq.client
import mq.client.sync
import raftmq
import raftmq.sync
from mq.client.sync import SyncProducer
from mq.client.sync.loop_thread import event_loop
from tests.unit.client.fake_cluster import FakeCluster


def test_facade_has_every_name_of_the_client() -> None:
    assert sorted(raftmq.__all__) == sorted(mq.client.__all__)
    assert all(getattr(raftmq, name) is getattr(mq.client, name) for name in raftmq.__all__)
    assert sorted(raftmq.sync.__all__) == sorted(mq.client.sync.__all__)
    assert all(getattr(raftmq.sync, name) is getattr(mq.client.sync, name) for name in raftmq.sync.__all__)


def test_facade_teaches_no_other_names() -> None:
    modules = {name.removeprefix("raftmq.") for name in sys.modules if name.startswith("raftmq.")}
    public = {name for name in vars(raftmq) if not name.startswith("_")}
    assert public - set(raftmq.__all__) - modules <= {"mq"}


def test_type_checkers_see_the_same_names_as_lazy_imports() -> None:
    tree = ast.parse(Path(mq.client.__file__).read_text())
    [seen] = [node for node in tree.body if isinstance(node, ast.If)]
    by_checkers = {
        alias.name: node.module for node in seen.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert by_checkers == mq.client._MODULE_OF
    assert sorted(by_checkers) == sorted(mq.client.__all__)


def test_program_that_only_sends_loads_no_consumer() -> None:
    program = "import sys; from raftmq import Producer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "mq.client.produce.producer" in loaded
    assert not loaded & {"mq.client.admin", "mq.client.consume.push_consumer", "mq.client.consume.lite_consumer"}


def test_threads_use_asyncio_without_trio(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert event_loop() == "trio"
    monkeypatch.setitem(sys.modules, "trio", None)
    assert event_loop() == "asyncio"
    with SyncProducer(threads.namesrv, "g") as producer:
        assert producer.queues("T")
