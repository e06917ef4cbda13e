"""What a core wants done, and in which order it must be done."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from raftlog.consensus.messages import Message
from raftlog.consensus.types import ConfState, HardState, NodeId, RoleChange, Span


class StorageOp(msgspec.Struct, frozen=True, gc=False):
    """One step of the log on disk: cut everything from ``truncate_from`` on, then append ``spans``, and remember
    ``hard_state``; ``None`` and empty mean that nothing of that kind changes.
    """

    ticket: int
    truncate_from: int | None
    spans: tuple[Span, ...]
    hard_state: HardState | None


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Tell `RaftCore.fetched` the spans from entry ``first`` on, about ``bytes_max`` bytes of them, for ``peer``."""

    peer: NodeId
    first: int
    bytes_max: int


class Effects:
    """The output of a core since it was last asked.

    - ``storage``: hand it to the disk in the order of tickets 1, 2, 3, … and call `RaftCore.storage_done` with a ticket
      once it and all before it are durable. Several may be under way. After a crash any prefix of the entries of
      unfinished tickets may have survived, with or without their hard states: nothing has been promised for them.
      Entries that a leader proposed itself are in the log already and appear here a second time, to be written.
    - ``send``: may leave now, also before ``storage`` is done. Whatever must not leave yet is held inside the core:
      everything while a changed term or vote is not durable, and every acknowledgement of durable entries. A leader's
      entries go out while its own disk is still writing them; it counts as one more follower.
    - ``commit``: entries up to here are decided for ever, even when this replica's own disk has not got them yet.
    - ``role``: role, term or known leader is another one.
    - ``failed_from``: this replica stopped leading; for proposals from this index on nobody knows the outcome.
    - ``fetch``: spans that a peer needs and the core has forgotten.
    - ``reads``: the numbers given to `RaftCore.read`, each with the index that must be applied before it is answered,
      or None when nobody can tell; the reader may ask again.
    - ``reset``: peers that need entries which are gone from the log; offer them segments and a snapshot.
    - ``conf``: another configuration is in force. It may be replaced again before it is committed.
    """

    __slots__ = ("commit", "conf", "failed_from", "fetch", "reads", "reset", "role", "send", "storage")

    def __init__(self) -> None:
        self.storage: StorageOp | None = None
        self.send: Sequence[Message] = ()
        self.commit: int | None = None
        self.role: RoleChange | None = None
        self.failed_from: int | None = None
        self.fetch: Sequence[Fetch] = ()
        self.reads: Sequence[tuple[int, int | None]] = ()
        self.reset: Sequence[NodeId] = ()
        self.conf: ConfState | None = None
