"""Stops followers until the others have removed their next entries: on return, they must fetch whole files."""

from __future__ import annotations

from pathlib import Path

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep

REMOVED_SECONDS_MAX = 60.0
CATCH_UP_SECONDS_MAX = 90.0
KILLS = 4
MOMENTS = ("install_begun", "node_restarts", "READY", "INSTALL")
"""Moments to kill the replica: it logs one of these, or a file of that name exists next to the fetched ones."""
MOMENT_SECONDS_MAX = 20.0
REST_SECONDS = (0.0, 0.0, 0.01, 0.1, 0.5)


async def behind(injection: Injection, step: FaultStep, leader: str) -> None:
    """Stop a follower for a while. Confirmed if its oldest file is then behind everything that it had before."""
    cluster = injection.cluster
    node = injection.rng.choice([each for each in cluster.nodes if each != leader])
    commitlog = cluster.data_dir(node) / "commitlog"
    number = injection.begin(step, (node,))
    await cluster.kill(node)
    newest = max(_log_begins(commitlog), default=0)
    await _wait_removed(cluster, newest + int(cluster.settings["segment_bytes"]))
    await trio.sleep(step.seconds)
    if step.variant.what == "follower is killed while it fetches files":
        await _kill_again_and_again(injection, node, commitlog / "reset")
    await cluster.start(node)
    await cluster.wait_caught_up(node, CATCH_UP_SECONDS_MAX)
    oldest = min(_log_begins(commitlog), default=0)
    if oldest > newest:
        injection.confirm(number, f"the log of {node} went to {newest} and begins at {oldest}")
    injection.end(number)


def _log_begins(commitlog: Path) -> list[int]:
    """The beginnings of a log's files."""
    return [int(path.name) for path in commitlog.iterdir() if path.name.isdigit()]


async def _wait_removed(cluster: Cluster, position: int) -> None:
    """Wait until the leader's log begins after a position; on timeout the fault is not confirmed."""
    with trio.move_on_after(REMOVED_SECONDS_MAX):
        while True:
            table = await cluster.figures(await cluster.leader())
            if table is not None and int(table["raftmq.basePosition"]) > position:
                return
            await trio.sleep(0.1)


async def _kill_again_and_again(injection: Injection, node: str, directory: Path) -> None:
    """Kill a broker while it fetches, and while it installs the fetched log; once its source, too."""
    cluster, rng = injection.cluster, injection.rng
    for attempt in range(KILLS):
        moment = rng.choice(MOMENTS)
        log_size = cluster.log_file(node).stat().st_size
        await cluster.start(node)
        with trio.move_on_after(MOMENT_SECONDS_MAX):
            while not ((directory / moment).exists() or has_logged(cluster.log_file(node), moment, log_size)):  # noqa: ASYNC110
                await trio.sleep(0.002)
            injection.say(f"  {node} is killed at {moment}")
        await trio.sleep(rng.choice(REST_SECONDS))
        await cluster.kill(node)
        if attempt == KILLS // 2:
            source = await cluster.leader()
            await cluster.kill(source)
            await cluster.start(source)
            await cluster.leader()


def has_logged(log: Path, text: str, since: int) -> bool:
    """Whether a broker's log file has a text at byte ``since`` or later."""
    with log.open("rb") as file:
        file.seek(since)
        return text.encode() in file.read()
