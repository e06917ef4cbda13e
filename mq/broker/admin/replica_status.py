"""Request code 28 (GET_BROKER_RUNTIME_INFO): status of a replica and its group, as names and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from mq.broker.admin.raft_group_members import member_roles
from mq.broker.admin.runtime_info import RuntimeInfo, missing_entries
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.service import Route, Service
from mq.broker.state.format_level import LEVEL_NEWEST, announced_level
from mq.monitoring.process import VERSION
from mq.protocol.requests.broker import GetBrokerRuntimeInfo, KVTable
from mq.protocol.requests.broker_figures import OwnFigures, PeerFigures, counter_figures, delay_progress
from raftlog import NEWEST_VERSION, OLDEST_VERSION


class ReplicaStatus(Service):
    """Returns the status of this replica and its group.

    Args:
        runtime: figures that stock tools look for.
        cpu_seconds: CPU time of the process and its children.
        resident_bytes: resident memory of the process.
        errors_logged: how often each log event of level error or critical was logged by the process.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        runtime: RuntimeInfo,
        cpu_seconds: Callable[[], float],
        resident_bytes: Callable[[], int],
        errors_logged: Callable[[], Mapping[str, int]],
    ) -> None:
        self._settings = context.settings
        self._replica = context.replica
        self._metadata = context.metadata
        self._runtime = runtime
        self._counters = context.counters
        self._cpu_seconds = cpu_seconds
        self._resident_bytes = resident_bytes
        self._errors_logged = errors_logged
        self._wall_clock_ms = context.wall_clock_ms
        self._certificate = context.environment.certificate

    def table(self) -> dict[str, str]:
        """Return all figures of this replica, as text by name."""
        settings, replica = self._settings, self._replica
        core, log = replica.core, replica.log
        status = core.status()
        stock = self._runtime.figures()
        applied, commit, last = replica.applied_index, replica.commit_index, log.last_index
        assert applied <= commit <= last, f"entry {applied} is applied, {commit} committed, and {last} the last"
        assert core.durable <= core.last_index, f"entry {core.durable} is durable, {core.last_index} is the last"
        assert log.base_pos <= log.end_pos, f"the log begins at {log.base_pos} and ends at {log.end_pos}"
        commit_position = log.end_pos
        if commit < last:
            ref = log.locate(replica.commit_index + 1)
            commit_position = ref.pos
            assert commit_position < log.end_pos, (
                f"entry {ref.index} begins at {ref.pos}, the log ends at {log.end_pos}"
            )
        peers = {
            peer.peer: PeerFigures(match_index=peer.match, active=peer.active, state=peer.state.name.lower())
            for peer in status.peers
        }
        own = OwnFigures(
            cluster=settings.cluster,
            group=settings.group,
            node_id=settings.node_id,
            role=core.role.name.lower(),
            term=core.term,
            leader_id=core.leader_id or "",
            last_index=core.last_index,
            commit_index=replica.commit_index,
            applied_index=replica.applied_index,
            durable_index=core.durable,
            commit_position=commit_position,
            base_index=status.base.index,
            base_position=log.base_pos,
            end_position=log.end_pos,
            priority=settings.priority,
            abstaining=status.abstaining,
            disk_used=stock.commit_log_disk_ratio,
            members=_json(member_roles(status.conf)),
            durability=settings.durability,
            software_version=VERSION,
            replication_versions=f"{OLDEST_VERSION}-{NEWEST_VERSION}",
            format_level=self._metadata.format_level.level,
            format_level_newest=LEVEL_NEWEST,
            format_level_max=announced_level(settings.format_level_max),
            access_control="off" if settings.acl_file is None else "on",
            cpu_ms=round(self._cpu_seconds() * 1000),
            resident_bytes=self._resident_bytes(),
            wall_clock_ms=self._wall_clock_ms(),
            missing_entries=missing_entries(replica),
            certificate_expires_ms=self._certificate_expires_ms(),
            errors_logged=_json(self._errors_logged()),
            peers=_json(peers),
        )
        return {
            **stock.fields(),
            **delay_progress(self._runtime.delays()),
            **own.fields(),
            **counter_figures(self._counters()),
        }

    def _certificate_expires_ms(self) -> int:
        return 0 if self._certificate is None else int(self._certificate.valid_until.timestamp() * 1000)

    def routes(self) -> Iterator[Route]:
        yield Route(GetBrokerRuntimeInfo, self.handle)

    def handle(self, call: Call[GetBrokerRuntimeInfo]) -> bytes:
        """Request code 28: return all figures of this replica."""
        return call.response(body=KVTable(self.table()).encode())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
