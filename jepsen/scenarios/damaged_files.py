"""Damages files of stopped brokers: bits of the log on one or all replicas, and files of every kind."""

from __future__ import annotations

import trio

from jepsen.damage.file_damage import FILES, MANNERS, break_files, describe_damage
from jepsen.damage.log_damage import closed_files, damage_all_copies, flip_bits, forget_sidecars
from jepsen.nemeses.disks import wait_for_closed_files, wait_repaired
from jepsen.nemeses.injection import Injection

BITS_MAX = 20
SETTINGS = {"checkpoint_seconds": "0.2"}
"""Settings of the brokers, by which recent files of every kind exist."""
KINDS_AT_ONCE = 3
FILES_MAX = 4
"""The most damaged files of one kind."""
CHECKPOINT_SECONDS = 2.0
"""Seconds after which checkpoints, queues and indexes of recent messages are on the disk."""


async def bit_errors(injection: Injection) -> None:
    """Flip bits in all closed log files of one replica."""
    cluster = injection.cluster
    node = injection.rng.choice(cluster.nodes)
    commitlog = cluster.data_dir(node) / "commitlog"
    await wait_for_closed_files(cluster, (node,))
    async with injection.fault("damage", "bits of every closed file", (node,)) as number:
        await cluster.kill(node)
        files = flip_bits(injection.rng, closed_files(commitlog), bits_max=BITS_MAX)
        forget_sidecars(commitlog)
        injection.confirm(number, f"{sum(each.changed_bytes for each in files)} bytes of {len(files)} files differ")
        await trio.sleep(1.0)
        await cluster.start(node)
        await wait_repaired(injection, node, files)


async def on_every_replica(injection: Injection) -> None:
    """Damage all replicas, each at a place where the others are intact. They must repair each other."""
    cluster = injection.cluster
    await wait_for_closed_files(cluster, cluster.nodes)
    async with injection.fault("damage", "helix", cluster.nodes, majority=False) as number:
        for node in cluster.nodes:
            await cluster.kill(node)
        logs = {node: cluster.data_dir(node) / "commitlog" for node in cluster.nodes}
        files_of = damage_all_copies(injection.rng, logs)
        if all(each and all(one.is_changed for one in each) for each in files_of.values()):
            counts = ", ".join(f"{sum(one.changed_bytes for one in each)} of {node}" for node, each in files_of.items())
            injection.confirm(number, f"bytes that differ: {counts}; none on two of them")
        for node in cluster.nodes:
            forget_sidecars(logs[node])
            await cluster.start(node)
        async with trio.open_nursery() as nursery:
            for node in cluster.nodes:
                nursery.start_soon(wait_repaired, injection, node, files_of[node])


async def files_of_every_kind(injection: Injection) -> None:
    """Damage files of three kinds, each in one manner. No combination repeats until all have been used.

    The broker must start, serve the same as before, and restore closed log files byte by byte.
    """
    cluster = injection.cluster
    node = injection.rng.choice(cluster.nodes)
    await wait_for_closed_files(cluster, (node,))
    await trio.sleep(CHECKPOINT_SECONDS)
    await cluster.kill(node)
    directory = cluster.data_dir(node)
    manner_of: dict[str, str] = {}
    while len(manner_of) < KINDS_AT_ONCE:
        other_kinds = [kind for kind in FILES if FILES[kind](directory) and kind not in manner_of]
        kind, manner = injection.draw("files", [(kind, manner) for kind in other_kinds for manner in MANNERS])
        manner_of[kind] = manner
    what = "; ".join(f"{kind}: {manner}" for kind, manner in manner_of.items())
    async with injection.fault("damage", what, (node,)) as number:
        files = [
            each
            for kind, manner in manner_of.items()
            for each in break_files(injection.rng, directory, kind, manner, files_max=FILES_MAX)
        ]
        if differs := describe_damage(files):
            injection.confirm(number, f"missing or different: {differs}")
        await cluster.start(node)
        await wait_repaired(injection, node, files)
