"""Kills and pauses brokers."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.schedule import FaultStep, targets

CHECKPOINT = "while it writes a checkpoint"
UNFINISHED = ("checkpoint.tmp", "snapshot.tmp")
"""Files of an unfinished checkpoint."""
SHORT_PAUSES = 5
"""Number of consecutive short pauses of a leader."""


async def kill(injection: Injection, step: FaultStep, leader: str) -> None:
    """Send SIGKILL to the chosen brokers at once, and restart them after a while."""
    cluster = injection.cluster
    nodes = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    pids = {node: cluster.pid(node) for node in nodes}
    addition = ""
    if step.variant.what.endswith(CHECKPOINT):
        await _checkpoint_begun(cluster.data_dir(nodes[0]))
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(cluster.kill, node)
    if step.variant.what.endswith(CHECKPOINT):
        addition = f", its checkpoint is {'half' if _unfinished(cluster.data_dir(nodes[0])) else 'just'} written"
    if not any(state_of_process(pid) for pid in pids.values()):
        injection.confirm(number, f"no process has the ids {', '.join(map(str, pids.values()))} any more{addition}")
    await trio.sleep(step.seconds)
    for node in nodes:
        await cluster.start(node)
    injection.end(number)


async def _checkpoint_begun(directory: Path) -> None:
    """Wait until a broker writes a checkpoint, but not for long."""
    with trio.move_on_after(CONFIRM_SECONDS_MAX):
        while not _unfinished(directory):  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.001)


def _unfinished(directory: Path) -> bool:
    return any((directory / name).exists() for name in UNFINISHED)


async def pause(injection: Injection, step: FaultStep, leader: str) -> None:
    """Send SIGSTOP to the chosen brokers, and SIGCONT after a while."""
    cluster = injection.cluster
    nodes = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    repeats = SHORT_PAUSES if step.variant.what == "leader shortly" else 1
    for repeat in range(repeats):
        async with AsyncExitStack() as pauses:
            for node in nodes:
                first = repeat == 0 and node == nodes[-1]
                await pauses.enter_async_context(pause_broker(injection, number if first else None, node))
            await trio.sleep(step.seconds)
        await trio.sleep(0.1)
    injection.end(number)


@asynccontextmanager
async def pause_broker(injection: Injection, number: int | None, node: str) -> AsyncIterator[None]:
    """Pause a broker until the block ends. The kernel's state of it confirms fault ``number``."""
    cluster = injection.cluster
    cluster.send_signal(node, signal.SIGSTOP)
    try:
        if number is not None:
            await _confirm_paused(injection, number, cluster.pid(node))
        yield
    finally:
        cluster.send_signal(node, signal.SIGCONT)


async def _confirm_paused(injection: Injection, number: int, pid: int) -> None:
    with trio.move_on_after(CONFIRM_SECONDS_MAX):
        while state_of_process(pid) != "T":  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.01)
        injection.confirm(number, f"process {pid} is in state T, stopped")


def state_of_process(pid: int) -> str:
    """Return the letter of a process's state, T if it is stopped; empty if the process does not exist."""
    try:
        return state_of(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return ""


def state_of(stat: str) -> str:
    """Return the letter of the state in a /proc/PID/stat. The process's name, in brackets, may contain anything."""
    return stat.rpartition(")")[2].split()[0]
