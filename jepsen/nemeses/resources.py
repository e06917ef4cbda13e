"""Severely limits the CPU time or the memory of brokers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.deployments.leftovers import CGROUPS, PREFIX
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.schedule import FaultStep, targets

PERIOD_US, QUOTA_US = 100_000, 8_000
"""8 % of a core: too little for timely heartbeats under load, but not nothing."""
MORE_BYTES = 3 * 1024 * 1024
"""Memory beyond the current use, which includes the kernel's cache of its files: that is reclaimed first."""

CONTROLLERS = {"starve": "cpu", "memory": "memory"}
"""The controller of control groups that limits each kind of resource."""
_FILES = {
    ("cpu", 1): {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(QUOTA_US)},
    ("cpu", 2): {"cpu.max": f"{QUOTA_US} {PERIOD_US}"},
    ("memory", 1): {"memory.limit_in_bytes": str(MORE_BYTES)},
    ("memory", 2): {"memory.max": str(MORE_BYTES)},
}
"""The files to write and their contents, by controller and version of control groups."""


def unavailable(kind: str) -> str | None:
    """Return the reason that this machine cannot limit a kind of resource, as text; None if it can."""
    if os.geteuid() != 0:
        return "only root may make control groups"
    controller = CONTROLLERS[kind]
    return None if _root(controller) is not None else f"no control groups for {controller} below {CGROUPS[1]}"


def _root(controller: str) -> tuple[Path, int] | None:
    """The parent directory for groups of a controller, and the version of control groups."""
    first = CGROUPS[1] / controller
    if (first / "cgroup.procs").exists():
        return first, 1
    controllers = CGROUPS[1] / "cgroup.subtree_control"
    return (CGROUPS[1], 2) if controllers.exists() and controller in controllers.read_text().split() else None


async def starve(injection: Injection, step: FaultStep, leader: str) -> None:
    """Give brokers a few milliseconds of CPU in each tenth of a second. Confirmed by the kernel's throttling count."""
    cluster = injection.cluster
    nodes = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    with _limit("cpu", [cluster.pid(node) for node in nodes]) as group:
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            while not (wait_count := throttle_count((group / "cpu.stat").read_text())):  # noqa: ASYNC110 (no event to wait for)
                await trio.sleep(0.1)
            injection.confirm(number, f"{', '.join(nodes)} waited for a processor {wait_count} times at once")
        await trio.sleep(step.seconds)
    injection.end(number)


def throttle_count(stat: str) -> int:
    """Read from a control group's cpu.stat how often the kernel throttled the group."""
    return _figure(stat, "nr_throttled")


async def memory(injection: Injection, step: FaultStep, leader: str) -> None:
    """Limit a broker to little more memory than it has. If the kernel kills it for that, restart it.

    Confirmed by how often the kernel reclaimed memory, or by its death.
    """
    cluster = injection.cluster
    (node,) = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, (node,))
    cluster.expect_end(node)
    with _limit("memory", [cluster.pid(node)]) as group:
        effect = ""
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            while not (effect := _memory_shortage(cluster, node, group)):  # noqa: ASYNC110 (no event to wait for)
                await trio.sleep(0.1)
            injection.confirm(number, effect)
        await trio.sleep(step.seconds)
    if cluster.is_running(node):
        cluster.must_not_end(node)
    else:
        injection.say(f"  {node} ended with exit code {cluster.exit_code(node)}")
        await cluster.start(node)
    injection.end(number)


def _memory_shortage(cluster: Cluster, node: str, group: Path) -> str:
    """The kernel's report on a group with too little memory; empty while it has enough."""
    if not cluster.is_running(node):
        return f"the kernel killed {node}: exit code {cluster.exit_code(node)}"
    first = group / "memory.failcnt"
    times = int(first.read_text()) if first.exists() else room_made((group / "memory.events").read_text())
    return f"the kernel made room {times} times for {node}" if times else ""


def room_made(events: str) -> int:
    """Read from a control group's memory.events how often the group reached its limit."""
    return _figure(events, "max")


def _figure(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


@contextmanager
def _limit(controller: str, pids: list[int]) -> Iterator[Path]:
    """Put processes into a control group, in which they share the limit, until the block ends."""
    hierarchy = _root(controller)
    assert hierarchy is not None, "asked for although it is not available"
    root, version = hierarchy
    group = root / f"{PREFIX}{os.getpid()}"
    group.mkdir(exist_ok=True)
    limits: Mapping[str, str] = _FILES[controller, version]
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        homes = {pid: _home(controller, pid, version) for pid in pids}
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
        for pid, home in homes.items():
            try:
                (root / home / "cgroup.procs").write_text(str(pid))
            except OSError:
                pass  # it has ended
    finally:
        try:
            group.rmdir()
        except OSError:
            pass  # a process is left in it; the next run removes it when there is none


def _home(controller: str, pid: int, version: int) -> str:
    """The group of a process, below the root."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (version == 1 and controller in controllers.split(",")) or (version == 2 and not controllers):
            return path.strip("/")
    return ""
