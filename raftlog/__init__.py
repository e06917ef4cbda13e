"""A replicated log: entries of bytes, on disk on a majority, in one order on every replica.

It knows nothing of messages. `Replica` joins the pure consensus core, the segmented log on disk and the connections
to the peers; an `Application` gets the committed entries.
"""

from raftlog._runtime import Deadline, Listener, Mailbox, Reactor, StreamSocket
from raftlog.admission import Admission, Identity, format_address, parse_address
from raftlog.consensus.confchange import decode_conf, why_invalid
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import (
    ConfChange,
    ConfChangeKind,
    ConfState,
    CoreConfig,
    EntryKind,
    HardState,
    LogId,
    NodeId,
    PeerState,
    Refusal,
    Role,
    RoleChange,
)
from raftlog.embedding import Node, NotLeader, OutcomeUnknown, Refused, SnapshotMissing, StateMachine, open_node
from raftlog.node import Hosted, NodeSettings, Run, serve_node
from raftlog.replica import Application, CommittedEntry, Replica
from raftlog.segment.disk import RealDisk
from raftlog.segment.errors import SegmentError
from raftlog.segment.log import SegmentLog
from raftlog.segment.writer import Writer
from raftlog.transport import ListenRefused, Transport
from raftlog.wire import Kind

__all__ = [
    "Admission",
    "Application",
    "CommittedEntry",
    "ConfChange",
    "ConfChangeKind",
    "ConfState",
    "CoreConfig",
    "Deadline",
    "EntryKind",
    "HardState",
    "Hosted",
    "Identity",
    "Kind",
    "ListenRefused",
    "Listener",
    "LogId",
    "Mailbox",
    "Node",
    "NodeId",
    "NodeSettings",
    "NotLeader",
    "OutcomeUnknown",
    "PeerState",
    "RaftCore",
    "Reactor",
    "RealDisk",
    "Refusal",
    "Refused",
    "Replica",
    "Role",
    "RoleChange",
    "Run",
    "SegmentError",
    "SegmentLog",
    "SnapshotMissing",
    "StateMachine",
    "StreamSocket",
    "Transport",
    "Writer",
    "decode_conf",
    "format_address",
    "open_node",
    "parse_address",
    "serve_node",
    "why_invalid",
]
