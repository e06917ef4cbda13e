"""Operators' commands: membership of the group, and the log of a stopped broker."""

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
    """Open the session of `raftmq group` without starting a process.

    Calls raise ClientError.
    """
    async with group_session.open_session(cluster.namesrv, GROUP, on_progress=lambda _: None) as session:
        yield session


async def members(cluster: Cluster) -> dict[str, str]:
    """Roles of the group's members by node, from its leader; empty if unknown."""
    try:
        async with open_session(cluster) as session:
            return {member.node_id: member.role for member in (await session.status()).view.members}
    except ClientError:
        return {}


async def verify_log(cluster: Cluster, node: str) -> LogVerification:
    """The result of `raftmq log verify` for a stopped broker."""
    process = await cluster.command("log", "verify", str(cluster.data_dir(node)), "--json")
    try:
        return msgspec.json.decode(process.stdout, type=LogVerification)
    except msgspec.MsgspecError:
        return LogVerification(process.stderr.decode(errors="replace").strip() or f"exit code {process.returncode}")


async def vote(cluster: Cluster, node: str) -> str | None:
    """The vote of a stopped broker in its term, from `raftmq log fix-term`; None without one.

    Raises ClusterFailed.
    """
    process = await cluster.command("log", "fix-term", str(cluster.data_dir(node)), "--json")
    try:
        voted_for = json.loads(process.stdout)["voted_for_before"]
    except (ValueError, KeyError):
        reason = process.stderr.decode(errors="replace").strip()
        raise ClusterFailed(f"the vote of {node} is not known: {reason}") from None
    return None if voted_for is None else str(voted_for)
