"""Brokers that get next to no processor time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from jepsen.deployments.leftovers import CGROUPS, PREFIX
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.schedule import Step, targets

PERIOD_US, QUOTA_US = 100_000, 8_000
"""8 % of a processor: too little for heartbeats in time when there is work, and not nothing."""


def unavailable() -> str | None:
    """Why processor time cannot be limited here, in words; None when it can."""
    if os.geteuid() != 0:
        return "only root may make control groups"
    return None if _version() is not None else "no control groups for processors (cpu) below /sys/fs/cgroup"


def _version() -> int | None:
    if (CGROUPS[0] / "cpu.cfs_quota_us").exists() or (CGROUPS[0] / "cgroup.procs").exists():
        return 1
    controllers = CGROUPS[1] / "cgroup.subtree_control"
    return 2 if controllers.exists() and "cpu" in controllers.read_text().split() else None


async def starve(injection: Injection, step: Step, leader: str) -> None:
    """A few milliseconds of each tenth of a second; confirmed by how often the kernel made it wait."""
    cluster = injection.cluster
    nodes = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    with _limited([cluster.pid(node) for node in nodes]) as group:
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            while not (waited := throttled((group / "cpu.stat").read_text())):  # noqa: ASYNC110 (files tell nobody)
                await trio.sleep(0.1)
            injection.confirm(number, f"{', '.join(nodes)} waited for a processor {waited} times at once")
        await trio.sleep(step.seconds)
    injection.end(number)


def throttled(stat: str) -> int:
    """How often a group had used up its time, of its cpu.stat."""
    return next((int(line.split()[1]) for line in stat.splitlines() if line.startswith("nr_throttled ")), 0)


@contextmanager
def _limited(pids: list[int]) -> Iterator[Path]:
    """A control group with these processes, which share so much time; they leave it in the end."""
    version = _version()
    assert version is not None, "asked for although it cannot be had"
    root = CGROUPS[version - 1]
    group = root / f"{PREFIX}{os.getpid()}"
    group.mkdir(exist_ok=True)
    try:
        if version == 1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        else:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        homes = {pid: _home(pid, version) for pid in pids}
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
            pass  # somebody is left in it; the next run removes it when nobody is


def _home(pid: int, version: int) -> str:
    """The group that a process is in, below the root."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (version == 1 and "cpu" in controllers.split(",")) or (version == 2 and not controllers):
            return path.strip("/")
    return ""
