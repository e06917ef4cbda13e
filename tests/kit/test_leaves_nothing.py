"""What a kit leaves behind, and shares with others: nothing, however its test ends."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import pytest
import trio

from mq.client import ClientError, ConnectFailed, Message, NameServersUnavailable, Producer
from mq.client.net.in_process import in_process_networks
from mq.client.sync import SyncAdmin, SyncProducer
from mq.testing import directory, open_kit, running_kit
from mq.testing.directory import new_directory

ROOT = Path(__file__).parents[2]


def state() -> tuple[object, ...]:
    """What a test might find changed."""
    gc.collect()
    return (
        len(os.listdir("/proc/self/fd")),
        {thread.name for thread in threading.enumerate()},
        dict(in_process_networks),
        sys.getswitchinterval(),
        gc.get_threshold(),
        gc.get_freeze_count(),
        resource.getrlimit(resource.RLIMIT_NOFILE),
    )


def python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default", "-c", code, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def check_what_kits_leave() -> None:
    """In a process of its own: what other tests have left may go away at any moment."""
    with running_kit() as kit, SyncProducer(kit.namesrv) as producer:
        producer.send(Message("Orders", b"one"))  # what is made once in a process is made
    before = state()
    with running_kit(replicas=3) as kit, SyncProducer(kit.namesrv) as producer:
        producer.send(Message("Orders", b"one"))
    assert state() == before, (state(), before)

    async def main() -> None:
        async with open_kit() as kit, Producer(kit.namesrv) as producer:
            await producer.send(Message("Orders", b"one"))
            raise LookupError

    with pytest.raises(LookupError):
        trio.run(main)
    assert state() == before, (state(), before)


def test_kit_leaves_the_process_unchanged() -> None:
    ended = python("from tests.kit.test_leaves_nothing import check_what_kits_leave as check; check()")
    assert ended.returncode == 0, ended.stderr


def test_two_kits_are_independent() -> None:
    with running_kit() as one, running_kit() as other:
        assert one.namesrv != other.namesrv
        with SyncProducer(one.namesrv) as producer:
            producer.send(Message("Orders", b"one"))
            producer.send(Message("Orders", b"late", delay=3600.0))
        one.faults.lost()
        one.advance(hours=2)
        assert len(one.messages("Orders")) == 2
        assert other.topics() == []
        assert other.now() < one.now()
        with SyncProducer(other.namesrv) as producer:
            producer.send(Message("Orders", b"other"))
        other.assert_stored("Orders", b"other")


def test_closed_kit_is_not_reached() -> None:
    with running_kit() as kit:
        namesrv = kit.namesrv
        host, _, _ = namesrv.partition(":")
        network = in_process_networks[host]
    with pytest.raises(OSError, match="the test kit is closed"):
        network.connect(9876)
    in_process_networks[host] = network
    try:
        with pytest.raises(NameServersUnavailable), SyncAdmin(namesrv) as admin:
            admin.ping()
    finally:
        del in_process_networks[host]


def test_client_outliving_its_kit_gets_an_error() -> None:
    with running_kit() as kit:
        producer = SyncProducer(kit.namesrv, timeout=1.0).open()
        producer.send(Message("Orders", b"one"))
    with pytest.raises(ClientError, match="the test kit of this server is closed"):
        producer.send(Message("Orders", b"two"))
    producer.close()
    with (
        pytest.raises(NameServersUnavailable, match="the test kit of this server is closed"),
        SyncAdmin(kit.namesrv) as admin,
    ):
        admin.ping()
    for look in (kit.describe, kit.settle, lambda: kit.messages("Orders")):
        with pytest.raises(RuntimeError, match="this test kit is closed"):
            look()


def test_wrong_port_is_refused() -> None:
    with running_kit() as kit:
        host, _, _ = kit.namesrv.partition(":")
        with (
            pytest.raises((ConnectFailed, NameServersUnavailable), match="Connection refused"),
            SyncAdmin(f"{host}:1") as admin,
        ):
            admin.ping()


FORGOTTEN = """
import gc
from mq.testing import running_kit
from mq.client import Message
from mq.client.sync import SyncProducer

opened = running_kit()
kit = opened.__enter__()
with SyncProducer(kit.namesrv) as producer:
    producer.send(Message("Orders", b"one"))
if {drop}:
    del opened
    gc.collect()
print("ends")
"""


@pytest.mark.slow
@pytest.mark.parametrize("drop", [True, False], ids=["dropped", "at the end of the process"])
def test_unclosed_kit_emits_a_resource_warning(drop: bool) -> None:
    result = python(FORGOTTEN.format(drop=drop))
    assert (result.returncode, result.stdout) == (0, "ends\n")
    assert "ResourceWarning: a test kit was not closed" in result.stderr
    assert "Traceback" not in result.stderr


INTERRUPTED = """
import os, signal, sys, threading
from mq.testing import running_kit

with running_kit() as kit:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    kit.advance_until(lambda: False, timeout=60)
"""


@pytest.mark.slow
def test_keyboard_interrupt_closes_the_kit() -> None:
    began = time.monotonic()
    result = python(INTERRUPTED)
    assert result.returncode == -signal.SIGINT
    assert result.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "ResourceWarning" not in result.stderr
    assert time.monotonic() - began < 30


KILLED = """
import os, signal
from mq.testing import running_kit

with running_kit():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_kit_removes_directories_of_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.testing.directory._MEMORY", tmp_path / "missing")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with new_directory() as held:
        left = python(
            "import mq.testing.directory as d; from pathlib import Path; d._MEMORY = Path('/missing')\n" + KILLED,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert left.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 2
        with new_directory() as directory:
            assert set(tmp_path.iterdir()) == {held, directory}
    assert list(tmp_path.iterdir()) == []


def test_directory_removed_before_its_lock_is_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kits that start at the same time look for what killed processes have left."""
    monkeypatch.setattr(directory, "_MEMORY", tmp_path / "missing")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock, others = fcntl.flock, [directory._sweep]

    def late(file: TextIO, operation: int) -> None:
        if operation == fcntl.LOCK_EX and others:
            others.pop()(tmp_path)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with directory.new_directory() as made:
        assert others == []
        (made / "file").touch()
    assert list(tmp_path.iterdir()) == []


PARALLEL = """
from mq.client import Message
from mq.client.sync import SyncProducer
from mq.testing import running_kit

for number in range(5):
    with running_kit() as kit, SyncProducer(kit.namesrv) as producer:
        producer.send(Message("Orders", b"%d" % number))
        kit.assert_stored("Orders", b"%d" % number)
print("done")
"""


@pytest.mark.slow
def test_two_processes_use_kits_at_the_same_time() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PARALLEL], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["done\n"] * 2


FORKED = """
import os
from mq.client import Message
from mq.client.sync import SyncProducer
from mq.testing import running_kit

with running_kit() as kit, SyncProducer(kit.namesrv) as producer:
    producer.send(Message("Orders", b"one"))
    child = os.fork()
    if child == 0:
        try:
            with SyncProducer(kit.namesrv, timeout=2.0) as mine:
                mine.send(Message("Orders", b"two"))
        except Exception as error:
            print(error, flush=True)
        try:
            kit.describe()
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    producer.send(Message("Orders", b"three"))
    kit.assert_stored("Orders", b"one", b"three")
print("done")
"""


@pytest.mark.slow
def test_forked_process_gets_the_broker_location() -> None:
    result = python(FORKED)
    assert result.returncode == 0, result.stderr
    first, looked, second = result.stdout.splitlines()
    assert "which has the brokers of this test kit: look at them there, or use the fixture raftmq_broker" in looked
    assert "the brokers of this test kit are in the process that forked this one" in first
    assert second == "done"
