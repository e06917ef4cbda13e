"""The settings of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from raftlog.consensus.types import ConfState, CoreConfig, NodeId
from raftlog.net.admission import Address, Identity
from raftlog.net.replication_tls import ReplicationTls
from raftlog.node_limits import DEFAULT, NodeLimits

_IN_FLIGHT_RATIO: Final = 0.02
"""Fraction of the disk for entries that are in flight when the leader begins to refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of a node.

    Attributes:
        cluster_id, group, segment_bytes: equal on all nodes, for ever. See `group_segment_bytes` for a node that is
            added to an existing group.
        directory: of the log; created if missing.
        listen: replication address.
        secret_file: path of the group's secret, which must be the same on all nodes. The first one of ``members``
            creates a missing file, the others refuse to start without it.
        disk_full_ratio, disk_pause_ratio: see `Replica.disk_usage` and `disk_ratios`.
        catch_up_bytes_per_second: limit for peers that fetch files from this node or repair theirs.
        software: the version of the software, reported to peers; for people.
        level_newest: the highest format level that the application supports; see `raftlog.net.versions`.
        tls: encryption of connections to peers; None: unencrypted.
        members: every initial voter of the group, including this one, and its ``HOST:PORT``. Empty for a node
            that will be added to an existing group. Ignored once the log contains a configuration.
        limits: for tests; always the same ones for a directory.
    """

    cluster_id: str
    group: str
    node_id: NodeId
    directory: str
    listen: Address
    secret_file: str
    members: Mapping[NodeId, str] = field(default_factory=dict)
    segment_bytes: int = 64 * 1024 * 1024
    core: CoreConfig = field(default_factory=CoreConfig)
    catch_up_bytes_per_second: float = 50 * 1024 * 1024
    disk_full_ratio: float = 0.90
    disk_pause_ratio: float = 0.95
    software: str = ""
    level_newest: int = 1
    tls: ReplicationTls | None = None
    limits: NodeLimits = DEFAULT

    def disk_ratios(self, total_bytes: int) -> tuple[float, float]:
        """Return the used fractions of the disk at which a replica refuses proposals, and a leader's entries.

        A new file is needed at once, so the second fraction leaves room for one. Between both is room for another one,
        and for what is in flight when the leader begins to refuse: it would stay uncommitted, and its senders without
        an answer.
        """
        file = self.segment_bytes / total_bytes
        pause = min(self.disk_pause_ratio, 1 - file)
        return min(self.disk_full_ratio, pause - max(file, min(_IN_FLIGHT_RATIO, 1 - pause))), pause

    @property
    def identity(self) -> Identity:
        """Return the values on which peers must agree. The store id is in the directory."""
        return Identity(
            self.cluster_id,
            self.group,
            self.node_id,
            self.segment_bytes,
            software=self.software,
            level_newest=self.level_newest,
        )

    @property
    def initial(self) -> ConfState:
        """Return the initial configuration of the group."""
        return ConfState(tuple(self.members), (), (), tuple(self.members.items()))
