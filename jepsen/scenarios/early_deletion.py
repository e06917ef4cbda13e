"""Fills one replica's disk, so that it deletes its oldest messages, and then makes it lead.

The others still have these messages. So no consumer may miss one, and the replica must get them back.
"""

from __future__ import annotations

import trio

from jepsen.damage.log_damage import BALLAST, fill
from jepsen.deployments.cluster import Cluster
from jepsen.nemeses.disks import REPAIR_SECONDS_MAX, SMALL_DISK_BYTES, wait_for_closed_files
from jepsen.nemeses.injection import Injection

SETTINGS = {"retention_check_seconds": "0.5", "checkpoint_seconds": "1"}
"""Settings of the brokers, by which retention acts within seconds."""
FILLED = 0.87
"""Used fraction of the small disk: files are deleted early, and the broker accepts messages."""
LEADS_SECONDS = 4.0
"""Seconds for which a node is asked to lead after its disk has room again."""
REFILL_SECONDS_MAX = 90.0


async def full_disk_then_lead(injection: Injection) -> None:
    """Fill the leader's disk until it deletes files early. Then let it lead again: it must fetch these files."""
    cluster = injection.cluster
    node = await cluster.leader()
    await wait_for_closed_files(cluster, (node,))
    async with injection.fault("disk-full", "the leader deletes early, and is to lead again", (node,)) as number:
        await cluster.stop(node)
        small = await cluster.move_to_small_disk(node, SMALL_DISK_BYTES)
        try:
            await cluster.start(node)
            await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
            await _ask_to_lead(cluster, node, REPAIR_SECONDS_MAX)
            fill(small, FILLED)
            first = await _begins_later(cluster, node)
            if first:
                injection.confirm(number, f"the log of {node} begins at {first}, those of others earlier")
            (small / BALLAST).unlink()
            await _ask_to_lead(cluster, node, LEADS_SECONDS)
            await _wait_refilled(injection, node)
            await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
            await cluster.stop(node)
        finally:
            with trio.CancelScope(shield=True):  # a copy of some files of this run
                await cluster.kill(node)
                await cluster.move_back(node)
        await cluster.start(node)
        await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)


async def _ask_to_lead(cluster: Cluster, node: str, seconds: float) -> None:
    """Ask for a transfer until a node leads, or for ``seconds``: the request may be refused."""
    with trio.move_on_after(seconds):
        while await cluster.leader() != node:
            await cluster.command("group", "transfer", node, "--namesrv", cluster.namesrv)
            await trio.sleep(0.5)


async def _log_begin(cluster: Cluster, node: str) -> int | None:
    table = await cluster.figures(node)
    return None if table is None else int(table["raftmq.basePosition"])


async def _begins_later(cluster: Cluster, node: str) -> int:
    """Wait until a replica has deleted files that others have; returns its base position, 0 if that does not happen."""
    with trio.move_on_after(REPAIR_SECONDS_MAX):
        while True:
            own = await _log_begin(cluster, node)
            others = [await _log_begin(cluster, other) for other in cluster.nodes if other != node]
            if own and any(other is not None and other < own for other in others):
                return own
            await trio.sleep(0.2)
    return 0


async def _wait_refilled(injection: Injection, node: str) -> None:
    """Wait until its log begins where the others' logs do; a replica that stays incomplete is a finding."""
    cluster = injection.cluster
    with trio.move_on_after(REFILL_SECONDS_MAX):
        while True:
            own = await _log_begin(cluster, node)
            others = [await _log_begin(cluster, other) for other in cluster.nodes if other != node]
            positions = [other for other in others if other is not None]
            if own is not None and positions and own <= min(positions):
                return
            await trio.sleep(0.2)
    injection.record_bug(node, f"has not fetched what it deleted within {REFILL_SECONDS_MAX:g} s with room on its disk")
