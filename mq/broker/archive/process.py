"""Runs the process that archives (`mq.store.archive.worker`), and ends it if it says nothing for long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import trio

import mq
from mq.store.archive.job import ArchiveJob, ArchiveStep, Trouble


async def archive_in_process(job: ArchiveJob, take: Callable[[ArchiveStep], None], silent_seconds: float) -> None:
    """Do a job in a process; ``take`` is called with each step, the last one included.

    A process that says nothing for ``silent_seconds`` is killed: the store has stopped to answer. If this is cancelled,
    the process is killed, which leaves the archive as the last step has described it.
    """
    root = str(Path(mq.__file__).parent.parent)
    start = partial(
        trio.run_process,
        [sys.executable, "-m", "mq.store.archive.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        check=False,
        deliver_cancel=_kill,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
    )
    async with trio.open_nursery() as nursery:
        worker: trio.Process = await nursery.start(start)
        assert worker.stdin is not None
        assert worker.stdout is not None
        with suppress(trio.BrokenResourceError):
            await worker.stdin.send_all(msgspec.json.encode(job) + b"\n")
        reason = await _take_all(worker.stdout, take, silent_seconds)
        if reason is not None:
            worker.kill()
            await worker.wait()
            take(ArchiveStep(is_last=True, trouble=reason[0], reason=reason[1]))
        nursery.cancel_scope.cancel()


async def _take_all(
    steps: trio.abc.ReceiveStream, take: Callable[[ArchiveStep], None], silent_seconds: float
) -> tuple[Trouble, str] | None:
    """Take all steps; returns why the last one did not come, None if it did."""
    rest = b""
    while True:
        more = None
        with trio.move_on_after(silent_seconds):
            more = await steps.receive_some()
        if more is None:
            return Trouble.STORE, f"the store has not answered for {silent_seconds:g} s; the upload was ended"
        if not more:
            return Trouble.REPLICA, "the process that archives has ended; its standard error may say why"
        *lines, rest = (rest + more).split(b"\n")
        for line in lines:
            step = msgspec.json.decode(line, type=ArchiveStep)
            take(step)
            if step.is_last:
                return None


async def _kill(worker: trio.Process) -> None:
    """End the process at once: what it stores does not count before its manifest."""
    await trio.lowlevel.checkpoint()
    worker.kill()
