"""Backs up a replica while another one dies, and restores the backup as a new group."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.processes import state_of_process

CATCH_UP_SECONDS_MAX = 60.0
RUNS = 2
"""The number of runs of `raftmq backup take` into one directory: the second one copies the new part."""
NEW_NODE, NEW_PEERS = "r0", "r0@127.0.0.1:1"


async def backup_and_restore(injection: Injection) -> None:
    """Back up a follower, and restore the backup. It must have all entries committed when it began, and the files of
    its log must equal the group's.
    """
    cluster, rng = injection.cluster, injection.rng
    leader = await cluster.leader()
    node, other = rng.sample([each for each in cluster.nodes if each != leader], 2)
    target = cluster.directory / "backup"
    async with injection.fault("backup", "of a follower", (node,)) as number:
        backup: dict[str, Any] | None = None
        for _ in range(RUNS):
            table = await cluster.figures(node)
            due = 0 if table is None else int(table["raftmq.commitIndex"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_kill, injection, other)
                backup = await _run_backup(injection, node, target)
            if backup is not None and backup["last_index"] < due:
                injection.record_bug(
                    node, f"was backed up to entry {backup['last_index']}, {due} were committed before"
                )
        if backup is not None:
            copy = cluster.directory / "restored"
            if await _restore(injection, node, target, copy):
                injection.confirm(number, f"entry {backup['last_index']} is the last one of the backup of {node}")
                for what in await trio.to_thread.run_sync(differences, copy, cluster.data_dir(node)):
                    injection.record_bug(node, f"was backed up, and the restored {what}")
        for path in (target, cluster.directory / "restored"):
            await trio.to_thread.run_sync(partial(shutil.rmtree, path, ignore_errors=True))


async def _kill(injection: Injection, node: str) -> None:
    cluster = injection.cluster
    async with injection.fault("kill", "one that is not backed up", (node,)) as number:
        pid = cluster.pid(node)
        await cluster.kill(node)
        if not state_of_process(pid):
            injection.confirm(number, f"no process has the id {pid} any more")
        await cluster.start(node)
        await cluster.wait_caught_up(node, CATCH_UP_SECONDS_MAX)


async def _run_backup(injection: Injection, node: str, target: Path) -> dict[str, Any] | None:
    """Run the backup; returns its printed result, None if it was refused, as while the replica leads."""
    cluster = injection.cluster
    source = ("--data-dir", str(cluster.data_dir(node)), "--namesrv", cluster.namesrv)
    return await _run_json(injection, cluster, "backup", "take", str(target), *source, "--json")


async def _restore(injection: Injection, node: str, target: Path, directory: Path) -> bool:
    command = ("restore", str(target), f"{NEW_NODE}={directory}", "--peers", NEW_PEERS, "--json")
    output = await _run_json(injection, injection.cluster, *command)
    if output is None:
        injection.record_bug(node, "was backed up, and the backup cannot be restored")
    return output is not None


async def _run_json(injection: Injection, cluster: Cluster, *command: str) -> dict[str, Any] | None:
    process = await cluster.command(*command)
    if process.returncode == 0:
        document: dict[str, Any] = json.loads(process.stdout)
        return document
    injection.say(
        f"  {' '.join(command[:2])}: exit code {process.returncode}: {process.stderr.decode(errors='replace')[-200:]}"
    )
    return None


def differences(copy: Path, original: Path) -> list[str]:
    """List the restored closed log files that differ from the original. The last file is not compared: behind the
    copied entries, it has those that name the new group. Raises OSError.
    """
    paths = sorted(path for path in (copy / "commitlog").iterdir() if path.name.isdigit())
    full_files = [path for path in paths if any(path.read_bytes())]
    if not full_files:
        return ["log is empty"]
    problems = []
    for path in full_files[:-1]:
        other = original / "commitlog" / path.name
        if not other.exists() or other.read_bytes() != path.read_bytes():
            problems.append(f"file {path.name} differs")
    return problems
