"""Executes the faults of a schedule, and heals them."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.deployments.network import NAME_SERVERS
from jepsen.nemeses.clients import clients
from jepsen.nemeses.descriptors import descriptors
from jepsen.nemeses.disks import damage, fill_disk
from jepsen.nemeses.injection import CarryOut, Injection
from jepsen.nemeses.lagging_replica import behind
from jepsen.nemeses.members import members
from jepsen.nemeses.operations import kill_name_servers, restart, transfer
from jepsen.nemeses.packets import packets
from jepsen.nemeses.partitions import partition
from jepsen.nemeses.power import power_loss
from jepsen.nemeses.processes import kill, pause
from jepsen.nemeses.resources import memory, starve
from jepsen.nemeses.rot import rot
from jepsen.nemeses.shims import clock, disk_error, slow_disk
from jepsen.nemeses.stores import store_gone, store_rollback, store_rot, store_slow
from jepsen.nemeses.wrong_starts import wrong_start
from jepsen.schedule import FaultStep

NEMESES: dict[str, CarryOut] = {
    "kill": kill,
    "pause": pause,
    "restart": restart,
    "transfer": transfer,
    "name-server": kill_name_servers,
    "partition": partition,
    "damage": damage,
    "rot": rot,
    "disk-full": fill_disk,
    "power-loss": power_loss,
    "packets": packets,
    "bridge": partition,
    "clock": clock,
    "disk-error": disk_error,
    "slow-disk": slow_disk,
    "starve": starve,
    "members": members,
    "behind": behind,
    "wrong-start": wrong_start,
    "clients": clients,
    "memory": memory,
    "descriptors": descriptors,
    "store-gone": store_gone,
    "store-slow": store_slow,
    "store-rot": store_rot,
    "store-rollback": store_rollback,
}
"""The functions that inject faults, by kind as in `jepsen.schedule.KINDS`."""


async def run_schedule(injection: Injection, steps: Sequence[FaultStep], seconds: float) -> None:
    """Execute the steps one after the other. After ``seconds``, only the first step of each kind that has not run yet.

    Healing a fault takes an unpredictable time. Raises ClusterFailed if a leader is missing for a minute after one.
    """
    until = trio.current_time() + seconds
    had: set[str] = set()
    for step in steps:
        if trio.current_time() >= until and step.kind in had:
            continue
        had.add(step.kind)
        await trio.sleep(step.rest_seconds)
        leader = await injection.cluster.leader()
        await NEMESES[step.kind](injection, step, leader)
        await injection.cluster.leader()


async def heal(cluster: Cluster) -> None:
    """Heal all links, resume paused processes, and restart dead ones. Returns before they serve."""
    await cluster.network.heal()
    if (storage := cluster.storage) is not None:
        storage.delay(0.0)
        if not storage.is_running:
            await storage.start()
    for name in (*NAME_SERVERS, *cluster.nodes):
        if cluster.is_running(name):
            cluster.send_signal(name, signal.SIGCONT)
        else:
            await cluster.start(name)
    for name in cluster.clients_at_work():
        cluster.send_signal(name, signal.SIGCONT)
