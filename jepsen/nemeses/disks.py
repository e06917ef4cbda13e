"""Corrupts data on disks, and fills disks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import trio

from jepsen.damage.log_damage import (
    BALLAST,
    DamagedFile,
    break_block,
    break_end,
    break_vote,
    closed_files,
    fill,
    flip_bits,
    forget_sidecars,
)
from jepsen.deployments.cluster import Cluster
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep, targets

REPAIR_SECONDS_MAX = 60.0
FILES_MIN = 3
"""Required closed files of a log before one is damaged."""
BITS_MAX = 20
SMALL_DISK_BYTES = 64 * 1024 * 1024
FILLED = (0.97, 1.0)
"""Used fractions of a small disk that counts as full."""
RUNNING = "one bit of a closed file while the broker runs"


async def wait_for_closed_files(cluster: Cluster, nodes: Iterable[str]) -> None:
    """Wait until each node has complete log files to damage, at most `REPAIR_SECONDS_MAX`."""
    logs = [cluster.data_dir(node) / "commitlog" for node in nodes]
    with trio.move_on_after(REPAIR_SECONDS_MAX):
        while any(len(closed_files(log)) < FILES_MIN for log in logs):  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.1)


async def damage(injection: Injection, step: FaultStep, leader: str) -> None:
    """Kill a broker, damage its files, and restart it. It must restore them from the other replicas."""
    cluster = injection.cluster
    node = injection.rng.choice(cluster.nodes)
    commitlog = cluster.data_dir(node) / "commitlog"
    await wait_for_closed_files(cluster, (node,))
    if step.variant.what == RUNNING:
        await _damage_running(injection, step, node, commitlog)
        return
    number = injection.begin(step, (node,))
    await cluster.kill(node)
    files_hit = _damage(injection, step.variant.what, commitlog)
    if files_hit and all(each.is_changed for each in files_hit):
        files = ", ".join(each.path.name for each in files_hit)
        injection.confirm(number, f"{sum(each.changed_bytes for each in files_hit)} bytes differ in {files}")
    forget_sidecars(commitlog)
    await trio.sleep(step.seconds)
    await cluster.start(node)
    await wait_repaired(injection, node, files_hit)
    injection.end(number)


async def _damage_running(injection: Injection, step: FaultStep, node: str, commitlog: Path) -> None:
    """Flip a bit under a running broker while another one is away, which may need those bytes when it returns.

    The broker detects it by itself, when the bytes are read, or at its next start.
    """
    cluster = injection.cluster
    other = injection.rng.choice([each for each in cluster.nodes if each != node])
    number = injection.begin(step, (node, other))
    await cluster.kill(other)
    await trio.sleep(step.seconds)
    files_hit = flip_bits(injection.rng, closed_files(commitlog)[-1:], bits_max=1)
    if all(each.is_changed for each in files_hit):
        injection.confirm(number, f"a byte differs in {', '.join(each.path.name for each in files_hit)}")
    await cluster.start(other)
    await cluster.wait_caught_up(other, REPAIR_SECONDS_MAX)
    await cluster.stop(node)
    forget_sidecars(commitlog)
    await cluster.start(node)
    await wait_repaired(injection, node, files_hit)
    injection.end(number)


def _damage(injection: Injection, what: str, commitlog: Path) -> list[DamagedFile]:
    rng = injection.rng
    match what:
        case "one bit of a closed file":
            return flip_bits(rng, [rng.choice(closed_files(commitlog))], bits_max=1)
        case "many bits of many files":
            return flip_bits(rng, closed_files(commitlog), bits_max=BITS_MAX)
        case "a block of a closed file lost":
            return break_block(rng, rng.choice(closed_files(commitlog)), misdirected=False)
        case "a block of a closed file written over another":
            return break_block(rng, rng.choice(closed_files(commitlog)), misdirected=True)
        case "end of the newest file":
            return break_end(rng, commitlog)
        case "one slot of the vote file":
            return break_vote(rng, commitlog)
        case _:
            raise ValueError(f"there is no fault of disks called {what!r}")


async def wait_repaired(injection: Injection, node: str, files: list[DamagedFile]) -> None:
    """Wait until a broker has caught up. Records the damaged files that it has not restored.

    Raises ClusterFailed if it does not catch up.
    """
    await injection.cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
    due = [each for each in files if each.returns]
    with trio.move_on_after(REPAIR_SECONDS_MAX):
        while any(each.is_changed for each in due):  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.1)
        return
    injection.recorder.note("not-repaired", n=node, v=[each.path.name for each in due if each.is_changed])


async def fill_disk(injection: Injection, step: FaultStep, leader: str) -> None:
    """Move a broker's data to a small file system, fill that, and free the space again. Needs root.

    A leader with a full disk must transfer leadership; the replica catches up by itself when there is room again.
    """
    cluster = injection.cluster
    (node,) = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, (node,))
    await cluster.stop(node)
    small = await cluster.move_to_small_disk(node, SMALL_DISK_BYTES)
    try:
        await cluster.start(node)
        await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
        if node == leader:
            with trio.move_on_after(REPAIR_SECONDS_MAX):
                while await cluster.leader() != node:
                    await cluster.command("group", "transfer", node, "--namesrv", cluster.namesrv)
                    await trio.sleep(0.5)
        free = fill(small, injection.rng.choice(FILLED))
        injection.confirm(number, f"{free} bytes are free on the disk of {node}")
        await trio.sleep(step.seconds)
        (small / BALLAST).unlink()
        await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
        await cluster.stop(node)
    finally:
        with trio.CancelScope(shield=True):  # a copy of some files of this run
            await cluster.kill(node)
            await cluster.move_back(node)
    await cluster.start(node)
    await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
    injection.end(number)
