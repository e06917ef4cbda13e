"""The process that archives: what ends it, and what it may do to the broker."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mq.broker.archive.worker_process import WORKER, archive_in_process
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble
from raftlog.segment import InlineWriter, RealDisk, SegmentLog

JOB = ArchiveJob("/data", "/data/commitlog", "s3://archives/broker-a")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/no/such/program",), "No such file or directory"),
        ((sys.executable, "-c", "print('what a library prints')"), "what a library prints"),
        ((sys.executable, "-c", 'print(\'{"trouble": "of newer software"}\')'), "of newer software"),
        ((sys.executable, "-c", ""), "has ended"),
    ],
)
async def test_process_that_cannot_start_or_answers_nonsense_has_failed(command: tuple[str, ...], reason: str) -> None:
    steps: list[ArchiveStep] = []
    await archive_in_process(JOB, steps.append, 60, command=command)
    (step,) = steps
    assert (step.is_last, step.trouble) == (True, Trouble.REPLICA)
    assert reason in step.reason


def test_archive_process_ends_only_with_its_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    log = SegmentLog.open(
        str(tmp_path), cluster_id="c", node_id="n1", segment_bytes=4096, disk=RealDisk(), writer=InlineWriter()
    )
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(60)
        url = f"http://127.0.0.1:{store.getsockname()[1]}"
        job = ArchiveJob(str(tmp_path), str(tmp_path), "s3://archives/broker-a", url)
        with subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            assert worker.stdin is not None
            worker.stdin.write(msgspec.json.encode(job) + b"\n")
            worker.stdin.flush()
            connection, _ = store.accept()  # a store that never answers
            worker.send_signal(signal.SIGINT)
            worker.send_signal(signal.SIGTERM)
            worker.stdin.close()  # as when the broker is killed
            assert worker.wait(20) == 0
            connection.close()
    log.close()
