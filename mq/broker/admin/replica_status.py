"""GET_BROKER_RUNTIME_INFO (request code 28): what a replica knows of itself and its group, as text pairs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from mq.broker.admin.raft_members import member_roles
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.service import Route, Service
from mq.broker.state.format_level import LEVEL_NEWEST, announced_level
from mq.monitoring.process import VERSION
from mq.protocol import bodies
from mq.protocol.codes import MQ_VERSION
from mq.protocol.headers import GetBrokerRuntimeInfo
from raftlog import NEWEST_VERSION, OLDEST_VERSION


class ReplicaStatus(Service):
    """The status handler of a broker.

    Args:
        runtime: figures that stock tools look for.
        counters: figures of the running process, added to the answer as they are.
        cpu_seconds: CPU time of the process and its children.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        runtime: Callable[[], dict[str, str]],
        counters: Callable[[], dict[str, int]],
        cpu_seconds: Callable[[], float],
    ) -> None:
        self._settings = context.settings
        self._replica = context.replica
        self._metadata = context.metadata
        self._runtime = runtime
        self._counters = counters
        self._cpu_seconds = cpu_seconds

    def table(self) -> dict[str, str]:
        """Everything as name and text."""
        settings, replica = self._settings, self._replica
        core, log = replica.core, replica.log
        status = core.status()
        runtime = self._runtime()
        commit_position = log.end_pos
        if replica.commit_index < log.last_index:
            ref = log.locate(replica.commit_index + 1)
            commit_position = ref.pos
        peers = {
            peer.peer: {"matchIndex": peer.match, "active": peer.active, "state": peer.state.name.lower()}
            for peer in status.peers
        }
        return {
            "brokerVersionDesc": "V4_9_8",
            "brokerVersion": str(MQ_VERSION),
            **runtime,
            "raftmq.cluster": settings.cluster,
            "raftmq.group": settings.group,
            "raftmq.nodeId": settings.node_id,
            "raftmq.role": core.role.name.lower(),
            "raftmq.term": str(core.term),
            "raftmq.leaderId": core.leader_id or "",
            "raftmq.lastIndex": str(core.last_index),
            "raftmq.commitIndex": str(replica.commit_index),
            "raftmq.appliedIndex": str(replica.applied_index),
            "raftmq.durableIndex": str(core.durable),
            "raftmq.commitPosition": str(commit_position),
            "raftmq.baseIndex": str(status.base.index),
            "raftmq.basePosition": str(log.base_pos),
            "raftmq.priority": str(settings.priority),
            "raftmq.abstaining": str(status.abstaining).lower(),
            "raftmq.diskUsed": runtime["commitLogDiskRatio"],
            "raftmq.members": json.dumps(member_roles(status.conf), separators=(",", ":")),
            "raftmq.endPosition": str(log.end_pos),
            "raftmq.durability": settings.durability,
            "raftmq.softwareVersion": VERSION,
            "raftmq.replicationVersions": f"{OLDEST_VERSION}-{NEWEST_VERSION}",
            "raftmq.formatLevel": str(self._metadata.format_level.level),
            "raftmq.formatLevelNewest": str(LEVEL_NEWEST),
            "raftmq.formatLevelMax": str(announced_level(settings.format_level_max)),
            "raftmq.accessControl": "off" if settings.acl_file is None else "on",
            "raftmq.cpuMs": str(round(self._cpu_seconds() * 1000)),
            "raftmq.peers": json.dumps(peers, separators=(",", ":")),
            **{f"raftmq.{name}": str(value) for name, value in self._counters().items()},
        }

    def routes(self) -> Iterator[Route]:
        """The requests that are served here; see `Service`."""
        yield Route(GetBrokerRuntimeInfo, self.handle)

    def handle(self, call: Call[GetBrokerRuntimeInfo]) -> bytes:
        """Request code 28."""
        return call.response(body=bodies.KVTable(self.table()).encode())
