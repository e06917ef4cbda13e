"""Restarts one replica of a running `raftmq dev` when another process requests it.

The request is a file in the directory of its group, and so is the answer. Any user who may write there may ask.
"""

from __future__ import annotations

import fcntl
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from mq.durable_files import replace_file
from mq.local_cluster.cluster import WATCH_SECONDS, DevCluster
from mq.local_cluster.ports import LOCK_FILE, is_locked
from mq.local_cluster.processes import ServersFailed

ANSWER_SECONDS_MAX: Final = 90.0
"""The longest wait for a replica that stops, starts, and catches up."""
_DIRECTORY: Final = "restarts"
_DONE: Final = "done"
_REPLICA: Final = re.compile(r"n[0-9]+")


def find_group(directory: Path, groups: list[tuple[str, Path]], node: str) -> tuple[Path, str]:
    """Find the group's directory and the replica's id for NODE or GROUP:NODE.

    ``groups`` are the names and directories of the groups in ``directory``. Raises ServersFailed.
    """
    group, colon, node_id = node.rpartition(":")
    homes = dict(groups)
    if not homes:
        raise ServersFailed(f"{directory} has no broker group: start raftmq dev --dir {directory} first")
    home = homes.get(group) if colon else groups[0][1]
    if home is None:
        raise ServersFailed(f"{directory} has no group {group}; it has {', '.join(homes)}")
    if not _REPLICA.fullmatch(node_id) or not (home / node_id).is_dir():
        raise ServersFailed(f"{home} has no replica {node_id or node!r}")
    return home, node_id


async def ask_restart(home: Path, node_id: str) -> None:
    """Have the process that runs the group in ``home`` restart a replica. Waits until the replica serves again.

    If cancelled, the restart may still happen. Raises ServersFailed, OSError.
    """
    await trio.lowlevel.checkpoint()
    if not is_locked(home / LOCK_FILE):
        raise ServersFailed(f"no raftmq dev runs in {home}")
    directory = home / _DIRECTORY
    directory.mkdir(exist_ok=True)
    with (directory / f"{node_id}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # there is one answer, for one process
        except BlockingIOError:
            raise ServersFailed(f"another command is restarting {node_id}") from None
        answer = await _request_restart(home, node_id)
    if answer != _DONE:
        raise ServersFailed(f"{node_id} was not restarted: {answer}")


async def _request_restart(home: Path, node_id: str) -> str:
    request, response = _files(home, node_id)
    response.unlink(missing_ok=True)
    request.touch()
    try:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            while not response.exists():
                if not is_locked(home / LOCK_FILE):
                    raise ServersFailed(f"the raftmq dev in {home} ended meanwhile")
                await trio.sleep(WATCH_SECONDS / 5)
        return response.read_text() if response.exists() else f"no answer within {ANSWER_SECONDS_MAX:g} s"
    finally:
        request.unlink(missing_ok=True)
        response.unlink(missing_ok=True)


async def serve_restarts(clusters: list[DevCluster]) -> None:
    """Restart replicas on request, one after the other. Runs until cancelled."""
    while True:
        for cluster in clusters:
            for node_id in cluster.node_ids:
                request, answer = _files(cluster.directory, node_id)
                if request.exists():
                    outcome = await _restart(cluster, node_id)
                    with suppress(OSError):
                        request.unlink(missing_ok=True)
                        replace_file(answer, outcome.encode())
        await trio.sleep(WATCH_SECONDS)


async def _restart(cluster: DevCluster, node_id: str) -> str:
    try:
        await cluster.stop(node_id)
        await cluster.start(node_id)
        await cluster.wait_ready()
    except (ServersFailed, OSError) as error:
        return str(error)
    return _DONE


def _files(home: Path, node_id: str) -> tuple[Path, Path]:
    directory = home / _DIRECTORY
    return directory / node_id, directory / f"{node_id}.answer"
