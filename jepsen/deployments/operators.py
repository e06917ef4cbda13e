"""What operators do with a cluster and learn of it: who its members are, what is in the log of a stopped broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from jepsen.deployments.cluster import GROUP, Cluster, ClusterFailed
from jepsen.logs import Verified
from mq.cli.errors import CommandFailed
from mq.cli.group_session import GroupSession
from mq.client import ClientError


@asynccontextmanager
async def open_session(cluster: Cluster) -> AsyncIterator[GroupSession]:
    """What `raftmq group` does, without the time that a process takes to start.

    Calls raise ClientError and CommandFailed.
    """
    async with GroupSession.open(cluster.namesrv, GROUP, on_progress=lambda _: None) as session:
        yield session


async def members(cluster: Cluster) -> dict[str, str]:
    """Roles of the group's members by node, as its leader sees them; empty if nobody says so."""
    try:
        async with open_session(cluster) as session:
            return {member.node_id: member.role for member in (await session.status()).view.members}
    except (ClientError, CommandFailed):
        return {}


async def verify_log(cluster: Cluster, node: str) -> Verified:
    """What `raftmq log verify` says of the log of a stopped broker."""
    done = await cluster.command("log", "verify", str(cluster.data_dir(node)), "--json")
    try:
        return msgspec.json.decode(done.stdout, type=Verified)
    except msgspec.MsgspecError:
        return Verified(done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}")


async def vote(cluster: Cluster, node: str) -> str | None:
    """For whom a stopped broker has voted in its term, as `raftmq log term` says; None for nobody.

    Raises ClusterFailed.
    """
    done = await cluster.command("log", "term", str(cluster.data_dir(node)), "--json")
    try:
        voted_for = json.loads(done.stdout)["voted_for_before"]
    except (ValueError, KeyError):
        told = done.stderr.decode(errors="replace").strip()
        raise ClusterFailed(f"the vote of {node} is not known: {told}") from None
    return None if voted_for is None else str(voted_for)
