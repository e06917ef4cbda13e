"""A replicated log: entries of bytes, durable on a majority, in the same order on every replica.

It knows nothing of messages. There are two ways to use it:

- `open_node` runs a node with your `StateMachine`; see ``docs/embedding.md``.
- `serve_node` is the layer below, for a server with its own event loop turns and connections (`Reactor`, `Listener`,
  `StreamSocket`): its `Application` gets whole batches of committed entries, and appends by plain calls to
  `Replica`.

The lower parts (`raftlog.consensus`, pure Raft, and `raftlog.segment`, the log on disk) can be used separately.
"""

from raftlog.consensus.causes import CauseKind
from raftlog.consensus.confchange import decode_conf, why_invalid
from raftlog.consensus.types import (
    Beginning,
    ConfChange,
    ConfChangeKind,
    ConfState,
    CoreConfig,
    CoreStatus,
    EntryKind,
    NodeId,
    PeerState,
    PeerStatus,
    Refusal,
    Role,
    RoleChange,
)
from raftlog.embedding import Node, NotLeader, OutcomeUnknown, Refused, SnapshotMissing, StateMachine, open_node
from raftlog.latency_histogram import LatencyHistogram
from raftlog.log_numbers import LogIndex, Term
from raftlog.net.admission import format_address, parse_address
from raftlog.net.listener import Dialing, Listener, configure_replication_socket
from raftlog.net.machine import Machine, standing_in, this_machine
from raftlog.net.reactor import Begun, Deadline, Reactor, Ready, Unsent
from raftlog.net.replication_tls import ReplicationTls
from raftlog.net.secret_file import SecretFile, SecretMissing, SecretUnusable
from raftlog.net.stream import StreamSocket
from raftlog.net.tls_sniffing import SniffingSocket
from raftlog.net.tls_socket import TlsSocket
from raftlog.net.transport import ListenRefused
from raftlog.net.versions import NEWEST_VERSION, OLDEST_VERSION, Software
from raftlog.node import Hosted, NodeRun, serve_node
from raftlog.node_limits import NodeLimits
from raftlog.node_settings import NodeSettings
from raftlog.replica import Application, CommittedEntry, Job, Replica
from raftlog.segment.disk import RealDisk
from raftlog.segment.errors import EntryUnusable, SegmentError
from raftlog.segment.log import SegmentLog
from raftlog.segment_size import group_segment_bytes, stored_segment_bytes
from raftlog.workers import Workers

__all__ = [
    "NEWEST_VERSION",
    "OLDEST_VERSION",
    "Application",
    "Beginning",
    "Begun",
    "CauseKind",
    "CommittedEntry",
    "ConfChange",
    "ConfChangeKind",
    "ConfState",
    "CoreConfig",
    "CoreStatus",
    "Deadline",
    "Dialing",
    "EntryKind",
    "EntryUnusable",
    "Hosted",
    "Job",
    "LatencyHistogram",
    "ListenRefused",
    "Listener",
    "LogIndex",
    "Machine",
    "Node",
    "NodeId",
    "NodeLimits",
    "NodeRun",
    "NodeSettings",
    "NotLeader",
    "OutcomeUnknown",
    "PeerState",
    "PeerStatus",
    "Reactor",
    "Ready",
    "RealDisk",
    "Refusal",
    "Refused",
    "Replica",
    "ReplicationTls",
    "Role",
    "RoleChange",
    "SecretFile",
    "SecretMissing",
    "SecretUnusable",
    "SegmentError",
    "SegmentLog",
    "SnapshotMissing",
    "SniffingSocket",
    "Software",
    "StateMachine",
    "StreamSocket",
    "Term",
    "TlsSocket",
    "Unsent",
    "Workers",
    "configure_replication_socket",
    "decode_conf",
    "format_address",
    "group_segment_bytes",
    "open_node",
    "parse_address",
    "serve_node",
    "standing_in",
    "stored_segment_bytes",
    "this_machine",
    "why_invalid",
]
