"""Runs the archiving process (`mq.store.archive.worker`), and kills it if it is silent for too long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

import mq
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble

WORKER: Final = (sys.executable, "-P", "-m", "mq.store.archive.worker")
"""The command of the process. It imports nothing from the working directory, which is the broker's."""


async def archive_in_process(
    job: ArchiveJob,
    take: Callable[[ArchiveStep], None],
    silent_seconds: float,
    *,
    command: Sequence[str] = WORKER,
) -> None:
    """Run an archiving job in a process, and call ``take`` with each step that it reports, including the last.

    A process that cannot be started, or writes something else than steps, is a failed run.

    A process that says nothing for ``silent_seconds`` is killed: the store has stopped to answer. If this is cancelled,
    the process is killed, which leaves the archive as the last step has described it.
    """
    root = str(Path(mq.__file__).parent.parent)
    start = partial(
        trio.run_process,
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        check=False,
        deliver_cancel=_kill,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
    )
    async with trio.open_nursery() as nursery:
        try:
            worker: trio.Process = await nursery.start(start)
        except OSError as error:  # no memory, no descriptors
            take(_failure_step(f"the process that archives does not start: {error}"))
        else:
            await _follow(worker, job, take, silent_seconds)
        nursery.cancel_scope.cancel()


async def _follow(
    worker: trio.Process, job: ArchiveJob, take: Callable[[ArchiveStep], None], silent_seconds: float
) -> None:
    """Send the process its job, and receive steps until it has ended or should end."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(trio.BrokenResourceError):
        await worker.stdin.send_all(msgspec.json.encode(job) + b"\n")
    failure = await _take_all(worker.stdout, take, silent_seconds)
    if failure is not None:
        worker.kill()
        await worker.wait()
        take(failure)


async def _take_all(
    steps: trio.abc.ReceiveStream, take: Callable[[ArchiveStep], None], silent_seconds: float
) -> ArchiveStep | None:
    """Receive all steps. Returns the last one if it did not arrive, None if it did."""
    rest = b""
    while True:
        more = None
        with trio.move_on_after(silent_seconds):
            more = await steps.receive_some()
        if more is None:
            return _failure_step(
                f"the store has not answered for {silent_seconds:g} s; the upload was ended", Trouble.STORE
            )
        if not more:
            return _failure_step("the process that archives has ended; its standard error may say why")
        *lines, rest = (rest + more).split(b"\n")
        for line in lines:
            try:
                step = msgspec.json.decode(line, type=ArchiveStep)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return _failure_step(f"the process that archives wrote {line[:200]!r}, which is not a step: {error}")
            take(step)
            if step.is_last:
                return None


def _failure_step(reason: str, trouble: Trouble = Trouble.REPLICA) -> ArchiveStep:
    return ArchiveStep(is_last=True, trouble=trouble, reason=reason)


async def _kill(worker: trio.Process) -> None:
    """Kill the process. Objects that it has stored are ignored until the manifest names them."""
    await trio.lowlevel.checkpoint()
    worker.kill()
