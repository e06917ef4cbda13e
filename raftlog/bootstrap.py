"""Builds a consensus core from a log directory: with the group's members, and what this replica may do in it."""

from __future__ import annotations

import random

from raftlog.consensus.confchange import decode_conf
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import ConfState, CoreConfig, HardState, LogId, NodeId
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.segment.errors import TermUnusable
from raftlog.segment.log import SegmentLog
from raftlog.segment.note_names import ABSTAINING, CONF, EARLY
from raftlog.terms import TERM_MAX

Confs = list[tuple[LogIndex, ConfState]]


def configurations(log: SegmentLog, initial: ConfState) -> Confs:
    """Return the configuration at the base of the log and each later one in it, with the entries that set them.

    ``initial`` is the group's first one, for a log that has its beginning. Raises ValueError for an invalid body.
    """
    note = log.notes.get(CONF)
    first = initial if note is None else decode_conf(note)
    return [(log.base[0], first), *[(index, decode_conf(body)) for index, body in log.configs]]


def core_for(
    log: SegmentLog,
    confs: Confs,
    *,
    node_id: NodeId,
    config: CoreConfig,
    rng: random.Random,
    now: float,
    applied_index: LogIndex = NO_INDEX,
    core_class: type[RaftCore] = RaftCore,
) -> RaftCore:
    """Return the core of this log's replica. ``confs`` is the result of `configurations`.

    It abstains if entries that it acknowledged may be missing, unless it is the only voter, which has no peer to ask.
    ``applied_index`` is the one that the application has stored itself.

    Raises:
        TermUnusable: no election is possible after the directory's term.
    """
    meta = log.meta
    if (term := max(meta.term, log.last_term)) >= TERM_MAX:
        raise TermUnusable(log.files.directory, term, log.last_term)
    # Applied implies committed, even if the application recorded it before the log did.
    applied = applied_index if applied_index <= log.last_index else NO_INDEX
    core = core_class(
        node_id=node_id,
        confs=confs,
        config=config,
        hard_state=HardState(meta.term, None if meta.voted_for is None else NodeId(meta.voted_for)),
        term_runs=log.term_runs,
        base=LogId(*log.base),
        last_index=log.last_index,
        commit=max(meta.commit_hint, applied),
        abstaining=ABSTAINING in log.notes and confs[-1][1].voters != (node_id,),
        rng=rng,
        now=now,
    )
    core.began_early = EARLY in log.notes
    return core
