"""Effects: the work that a core requests from its shell, and its order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from raftlog.consensus.messages import AppendResp, Message
from raftlog.consensus.types import ConfState, HardState, NodeId, RoleChange, Span
from raftlog.log_numbers import LogIndex


class StorageOp(msgspec.Struct, frozen=True, gc=False):
    """One write to the log: cut everything from ``truncate_from`` on, then append ``spans``, and store ``hard_state``;
    ``None`` and empty mean unchanged.
    """

    ticket: int
    truncate_from: LogIndex | None
    spans: tuple[Span, ...]
    hard_state: HardState | None


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Requests `RaftCore.on_fetch` for ``peer`` with the spans from ``first`` on, about ``bytes_max`` bytes."""

    peer: NodeId
    first: LogIndex
    bytes_max: int


class Effects:
    """The work that a core requested since the last call.

    - ``storage``: write in the order of tickets 1, 2, 3, … and call `RaftCore.storage_done` with a ticket
      once it and all before it are durable. Several may be in flight. After a crash any prefix of the entries of
      unfinished tickets may have survived, with or without their hard states: nothing has been promised for them.
      Entries that a leader proposed itself are in the log already and appear here a second time, to be written.
    - ``send``: may leave now, even before ``storage`` is done. Messages that must wait are held inside the core:
      everything while a changed term or vote is not durable, and every acknowledgement of durable entries. A leader
      sends entries while its own disk is still writing them; it counts as one more follower.
    - ``acknowledgement``: may leave as soon as ``storage`` and all before it are durable, or at any later time. If it
      has left, call `RaftCore.on_acknowledgement` before `RaftCore.storage_done`; otherwise the core sends another one.
    - ``commit``: entries up to here are committed, even if this replica's own disk does not have them yet.
    - ``role``: role, term or known leader changed.
    - ``failed_from``: this replica stopped leading; the outcome of proposals from this index on is unknown.
    - ``fetch``: spans that a peer needs and the core no longer caches.
    - ``reads``: the numbers given to `RaftCore.read`, each with the index to apply before answering, or None if it
      could not be confirmed; the caller may retry.
    - ``install``: peers that need entries which the log has deleted; offer them segments and a snapshot.
    - ``conf``: another configuration is in force. It may be replaced again before it is committed.
    """

    __slots__ = (
        "acknowledgement",
        "commit",
        "conf",
        "failed_from",
        "fetch",
        "install",
        "reads",
        "role",
        "send",
        "storage",
    )

    def __init__(self) -> None:
        self.storage: StorageOp | None = None
        self.send: Sequence[Message] = ()
        self.acknowledgement: AppendResp | None = None
        self.commit: LogIndex | None = None
        self.role: RoleChange | None = None
        self.failed_from: LogIndex | None = None
        self.fetch: Sequence[Fetch] = ()
        self.reads: Sequence[tuple[int, LogIndex | None]] = ()
        self.install: Sequence[NodeId] = ()
        self.conf: ConfState | None = None
