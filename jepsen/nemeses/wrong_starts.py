"""Starts brokers with wrong options: each must refuse to start, say why, and change nothing."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep

REFUSED_SECONDS_MAX = 60.0
CATCH_UP_SECONDS_MAX = 60.0
IN_THE_WAY, REFUSED = 1, 2
"""The exit code of a broker that cannot start now, since another process runs, and of one that never can like this."""
_UNTOUCHED_BUT = frozenset({"LOCK"})
"""Files that a refused start may write."""


@dataclass(frozen=True, slots=True)
class _Start:
    """Additional options, and the expected refusal. ``runs``: the broker runs meanwhile."""

    options: tuple[str, ...]
    says: str
    runs: bool


def _start(what: str, cluster: Cluster, node: str, other: str) -> _Start:
    """A wrong start of ``node``; ``other`` is a running broker."""
    host, _ = cluster.network.listens(node)
    match what:
        case "a second process of a broker that runs":
            return _Start((), "in use", runs=True)
        case "a second process with ports of its own":
            return _Start(("--listen", f"{host}:0", "--replication-listen", f"{host}:0"), "in use by", runs=True)
        case "the directory of another broker":
            return _Start(("--node-id", other), "made for node", runs=False)
        case "the directory of another cluster":
            return _Start(("--set", "cluster_id=another"), "made for cluster", runs=False)
        case "another size of files":
            size = int(cluster.settings["segment_bytes"]) * 2
            return _Start(("--set", f"segment_bytes={size}"), "made for segment", runs=False)
        case _:
            raise ValueError(f"there is no wrong start called {what!r}")


async def wrong_start(injection: Injection, step: FaultStep, leader: str) -> None:
    """Start a broker with wrong options. Confirmed by its exit code and its message."""
    cluster = injection.cluster
    node = injection.rng.choice([each for each in cluster.nodes if each != leader])
    start = _start(step.variant.what, cluster, node, leader)
    number = injection.begin(step, (node,))
    before: Mapping[str, int] = {}
    if not start.runs:
        await cluster.stop(node)
        before = await trio.to_thread.run_sync(_contents, cluster.data_dir(node))
    outcome = await cluster.start_once(node, *start.options, seconds=REFUSED_SECONDS_MAX)
    if outcome is None:
        injection.record_bug(node, f"was started with {step.variant.what}, and runs")
    else:
        code, output = outcome
        injection.confirm(number, f"exit code {code}: {output}")
        if code != (IN_THE_WAY if start.runs else REFUSED) or start.says not in output:
            injection.record_bug(node, f"was started with {step.variant.what}: exit code {code}: {output}")
    if not start.runs:
        after = await trio.to_thread.run_sync(_contents, cluster.data_dir(node))
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if names:
            injection.record_bug(node, f"changed {', '.join(names)} when it was started with {step.variant.what}")
        await trio.sleep(step.seconds)
        await cluster.start(node)
    await cluster.wait_caught_up(node, CATCH_UP_SECONDS_MAX)
    injection.end(number)


def _contents(directory: Path) -> dict[str, int]:
    """The checksums of all files below a directory."""
    return {
        str(path.relative_to(directory)): zlib.crc32(path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file() and path.name not in _UNTOUCHED_BUT
    }
