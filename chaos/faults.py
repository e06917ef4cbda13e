"""Faults as values: what a schedule is made of, and what a trace prints."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.consensus.types import NodeId


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes of different groups hear nothing of each other."""

    groups: tuple[tuple[NodeId, ...], ...]


@dataclass(frozen=True, slots=True)
class OneWay:
    """What ``src`` sends to ``dst`` is lost; the other direction works."""

    src: NodeId
    dst: NodeId


@dataclass(frozen=True, slots=True)
class CutLink:
    """Two nodes hear nothing of each other; both reach the rest."""

    one: NodeId
    other: NodeId


@dataclass(frozen=True, slots=True)
class Deaf:
    """A node sends and receives nothing."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Heal:
    """Every link works again."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How links treat each frame: chances of loss, duplication and a flipped bit, and latency in seconds.

    Every frame draws its own latency, so a wide range also reorders.
    """

    loss: float = 0.0
    duplication: float = 0.0
    garbling: float = 0.0
    latency_seconds_min: float = 0.001
    latency_seconds_max: float = 0.01


@dataclass(frozen=True, slots=True)
class Crash:
    """The process of a node is killed: what it wrote stays in the machine's memory at least, what it had in its own is
    gone.
    """

    node: NodeId


@dataclass(frozen=True, slots=True)
class PowerCut:
    """The machine of a node stops; of what was not synced any subset of sectors survives."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Stop:
    """A node is stopped in order."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Restart:
    """A crashed node starts again from its disk."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Pause:
    """A node stands still, as under SIGSTOP; what arrives waits."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused node goes on."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Stall:
    """A node does not run for ``seconds``, as when its host gives the processor to others; what arrives waits.

    Without ``node``, it is one that does not lead.
    """

    node: NodeId | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The clock of a node leaps ahead, as after a suspended machine."""

    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class WallStep:
    """The wall clock of a node is set; it is wrong by ``ahead_ms`` from then on."""

    node: NodeId
    ahead_ms: int


@dataclass(frozen=True, slots=True)
class DiskError:
    """The next operation of that name on the disk of a node fails, with that errno."""

    node: NodeId
    operation: str
    errno: int


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The disk of a node takes ``nbytes`` more, or any number for None."""

    node: NodeId
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Each write of a node takes up to ``seconds_max``."""

    node: NodeId
    seconds_max: float


@dataclass(frozen=True, slots=True)
class BitFlip:
    """A bit of what the log of a node holds durably is another one; ``place`` (0 to 1) says where, 1 being its end."""

    node: NodeId
    place: float


@dataclass(frozen=True, slots=True)
class SharedDamage:
    """A bit of a committed entry with more behind it flips on every node that runs, and each is found at once.

    With ``same_entry`` it is the same entry, and ``absence_seconds`` later an operator brings one of the nodes back as
    it was; else each loses another entry, and they can help one another. ``place`` (0 to 1) says where in the log.
    """

    place: float
    same_entry: bool
    absence_seconds: float


@dataclass(frozen=True, slots=True)
class QueueFlip:
    """A bit of one of a node's consume queue files is another one, whether its process runs or not.

    ``place`` (0 to 1) says in which file, and where in it.
    """

    node: NodeId
    place: float


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """The leader is asked for a change of membership; ``choice`` (0 to 1) says which of those that make sense."""

    choice: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """The leader is asked to hand over, to a node or, for None, to whom it likes."""

    to: NodeId | None


@dataclass(frozen=True, slots=True)
class Retention:
    """A node drops the oldest files of its log; ``share`` (0 to 1) says how many of those that it may."""

    node: NodeId
    share: float


@dataclass(frozen=True, slots=True)
class Depose:
    """The leader is cut off, and all others hear that its process has ended: soon there are two who believe to lead."""


@dataclass(frozen=True, slots=True)
class Nap:
    """The leader stands still while answers are on their way to it, and all others hear that its process has ended.

    When it goes on it is read first, then hears those answers, and at last that there is another leader.
    """


@dataclass(frozen=True, slots=True)
class LateSuccessor:
    """The leader hands over to a node that stands still, gives that up, and commits more with the help of ``victim``.

    That one loses its power or is killed. When it is back, the leader is cut off, and the successor goes on and asks
    for votes.
    """

    victim: NodeId


@dataclass(frozen=True, slots=True)
class Rumor:
    """A node believes that the process of another one has ended, rightly or not."""

    node: NodeId
    about: NodeId


@dataclass(frozen=True, slots=True)
class Ambush:
    """From now on each new leader is hit within ``delay_seconds_max`` of its election: its power cut or made deaf.

    It comes back ``absence_seconds`` later. Elections that follow one another leave short ends of many terms in the
    logs, which is where commit rules are tried.
    """

    delay_seconds_max: float
    absence_seconds: float
    crash: bool


Fault = (
    Partition
    | OneWay
    | CutLink
    | Deaf
    | Heal
    | Weather
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
    | Nap
    | LateSuccessor
    | ChangeMembers
    | Transfer
    | Retention
    | Rumor
    | Ambush
)
