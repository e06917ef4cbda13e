"""Faults as values, of which schedules consist and which traces print."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.consensus.types import NodeId


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes of different groups cannot reach each other."""

    groups: tuple[tuple[NodeId, ...], ...]


@dataclass(frozen=True, slots=True)
class OneWay:
    """Frames from ``src`` to ``dst`` are lost; the other direction works."""

    src: NodeId
    dst: NodeId


@dataclass(frozen=True, slots=True)
class CutLink:
    """Two nodes cannot reach each other; both reach the rest."""

    one: NodeId
    other: NodeId


@dataclass(frozen=True, slots=True)
class Isolation:
    """A node sends and receives nothing."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Heal:
    """Every link works again."""


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """The chances of loss, duplication and a flipped bit of each frame, and its latency in seconds.

    Every frame draws its own latency, so a wide range also reorders.
    """

    loss: float = 0.0
    duplication: float = 0.0
    garbling: float = 0.0
    latency_seconds_min: float = 0.001
    latency_seconds_max: float = 0.01


@dataclass(frozen=True, slots=True)
class Crash:
    """The process of a node is killed: its writes stay in the machine's page cache, its memory is lost."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class PowerCut:
    """The machine of a node loses power; any subset of the unsynced sectors survives."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Stop:
    """A node is stopped cleanly."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Restart:
    """A crashed node starts again from its disk."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Pause:
    """A node is paused, as by SIGSTOP; frames that arrive are queued."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused node continues."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Stall:
    """A node does not run for ``seconds``, as when its host takes the CPU away. Frames that arrive are queued.

    Without ``node``, it is one that does not lead.
    """

    node: NodeId | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The clock of a node jumps ahead, as after a suspended machine."""

    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class WallStep:
    """The wall clock of a node is set; it is off by ``ahead_ms`` from then on."""

    node: NodeId
    ahead_ms: int


@dataclass(frozen=True, slots=True)
class DiskError:
    """The next call of ``operation`` on the disk of a node fails with ``errno``."""

    node: NodeId
    operation: str
    errno: int


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The disk of a node has space for only ``nbytes`` more; None removes the limit."""

    node: NodeId
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Each write of a node takes up to ``seconds_max``."""

    node: NodeId
    seconds_max: float


@dataclass(frozen=True, slots=True)
class BitFlip:
    """A bit of a node's durable log flips; ``place`` (0 to 1) says where, 1 being its end."""

    node: NodeId
    place: float


@dataclass(frozen=True, slots=True)
class SharedDamage:
    """A bit of a committed entry, but not of the last one, flips on each running node, which detects it at once.

    With ``same_entry`` it is the same entry, and ``absence_seconds`` later an operator restores one of the nodes; else
    each loses another entry, and they can repair one another. ``place`` (0 to 1) says where in the log.
    """

    place: float
    same_entry: bool
    absence_seconds: float


@dataclass(frozen=True, slots=True)
class QueueFlip:
    """A bit of one of a node's consume queue files flips, whether its process runs or not.

    ``place`` (0 to 1) says in which file, and where in it.
    """

    node: NodeId
    place: float


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """The leader gets a request to change the members; ``choice`` (0 to 1) picks one of the possible changes."""

    choice: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """The leader gets a request to transfer leadership to a node; None: to a node that it chooses."""

    to: NodeId | None


@dataclass(frozen=True, slots=True)
class Retention:
    """A node drops the oldest files of its log; ``share`` (0 to 1) is the part of the droppable files."""

    node: NodeId
    share: float


@dataclass(frozen=True, slots=True)
class Depose:
    """The leader is cut off, and all others learn that its process has ended: soon two nodes believe that they lead."""


@dataclass(frozen=True, slots=True)
class PausedLeader:
    """The leader is paused while responses to it are in flight, and all others learn that its process has ended.

    When it continues it first gets a read, then those responses, and last that there is another leader.
    """


@dataclass(frozen=True, slots=True)
class DelayedTransferTarget:
    """The leader transfers leadership to a paused node, aborts that, and commits more with ``victim`` in the majority.

    That one loses power or is killed. When it is back, the leader is cut off, and the successor resumes and requests
    votes.
    """

    victim: NodeId


@dataclass(frozen=True, slots=True)
class FalseProcessEnd:
    """A node is told that the process of the node ``about`` has ended, which may be false."""

    node: NodeId
    about: NodeId


@dataclass(frozen=True, slots=True)
class HitNewLeaders:
    """Each new leader loses power or is cut off within ``delay_seconds_max`` of its election, from now on.

    It comes back ``absence_seconds`` later. Consecutive elections leave short tails of many terms in the logs, which
    exercise the commit rules.
    """

    delay_seconds_max: float
    absence_seconds: float
    crash: bool


Fault = (
    Partition
    | OneWay
    | CutLink
    | Isolation
    | Heal
    | LinkQuality
    | Crash
    | PowerCut
    | Stop
    | Restart
    | Pause
    | Resume
    | Stall
    | ClockJump
    | WallStep
    | DiskError
    | DiskRoom
    | DiskSpeed
    | BitFlip
    | QueueFlip
    | SharedDamage
    | Depose
    | PausedLeader
    | DelayedTransferTarget
    | ChangeMembers
    | Transfer
    | Retention
    | FalseProcessEnd
    | HitNewLeaders
)
