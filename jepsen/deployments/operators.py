"""Runs commands of operators: they change the members of the group, and verify the log of a stopped broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from jepsen.deployments.cluster import GROUP, Cluster, ClusterFailed
from jepsen.logs import LogVerification
from mq.cli import group_session
from mq.client import ClientError
from mq.inspection.group_session import GroupSession


@asynccontextmanager
async def open_session(cluster: Cluster) -> AsyncIterator[GroupSession]:
    """Open a session as `raftmq group` does, but in this process.

    Calls raise ClientError.
    """
    async with group_session.open_session(cluster.namesrv, GROUP, on_progress=lambda _: None) as session:
        yield session


async def members(cluster: Cluster) -> dict[str, str]:
    """Return the role of each member of the group, as the leader reports it; empty if unknown."""
    try:
        async with open_session(cluster) as session:
            return {member.node_id: member.role for member in (await session.status()).view.members}
    except ClientError:
        return {}


async def verify_log(cluster: Cluster, node: str) -> LogVerification:
    """Verify the log of a stopped broker by `raftmq log verify`, and return its report."""
    process = await cluster.command("log", "verify", str(cluster.data_dir(node)), "--json")
    try:
        return msgspec.json.decode(process.stdout, type=LogVerification)
    except msgspec.MsgspecError:
        return LogVerification(process.stderr.decode(errors="replace").strip() or f"exit code {process.returncode}")


async def vote(cluster: Cluster, node: str) -> str | None:
    """Return the vote of a stopped broker in its term, from `raftmq log fix-term`; None if it did not vote.

    Raises ClusterFailed.
    """
    process = await cluster.command("log", "fix-term", str(cluster.data_dir(node)), "--json")
    try:
        voted_for = json.loads(process.stdout)["voted_for_before"]
    except (ValueError, KeyError):
        reason = process.stderr.decode(errors="replace").strip()
        raise ClusterFailed(f"the vote of {node} is not known: {reason}") from None
    return None if voted_for is None else str(voted_for)
