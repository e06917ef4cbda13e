"""Invariants of a core after every step, and between the cores of a group."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise

from raftlog.consensus.confchange import may_follow
from raftlog.consensus.log_terms import LogTerms
from raftlog.consensus.state import CoreState
from raftlog.consensus.types import Role
from raftlog.log_numbers import LogIndex


def check_core(core: CoreState) -> None:
    """Assert the invariants of one core, except those of its span cache, which `check_group` checks."""
    log, commit, tickets = core._log, core._commit, core._tickets
    log.check_invariants()
    last = log.last_index
    assert log.base.index <= commit <= last, f"commit index {commit} is not within {log.base.index} to {last}"
    assert tickets.durable <= last, f"{tickets.durable} is durable, the log ends at {last}"
    assert core._verified_end <= last, f"{core._verified_end} was verified, the log ends at {last}"
    assert core._output.reported_commit <= commit, (
        f"commit index {core._output.reported_commit} was announced, it is {commit}"
    )
    assert log.last.term <= core._term, f"the log holds term {log.last.term}, the term is {core._term}"
    assert tickets.last_done <= tickets.last_issued, f"{tickets.last_done} done of {tickets.last_issued} issued"
    if core._abstaining:
        assert core._role is Role.FOLLOWER, f"{core.node_id} abstains and is {core._role.value}"
    if core._role in (Role.CANDIDATE, Role.LEADER):
        assert core._voted_for == core.node_id, (
            f"{core.node_id} is {core._role.value} of term {core._term}, its vote is for {core._voted_for}"
        )
        may = core._conf.is_voter(core.node_id) or _is_open(core)
        assert may, f"{core.node_id} is {core._role.value} and no voter of {core._conf.voters}"
    if core._role is Role.LEADER:
        _check_leader(core)
    else:
        assert not core._reads.rounds.new_reads, f"{core.node_id} is {core._role.value}, reads wait for it to lead"
        assert not core._reads.rounds.under_way, f"{core.node_id} is {core._role.value}, rounds of reads are under way"
        assert commit <= core._verified_end, f"{commit} is committed, only {core._verified_end} was verified"
        assert core._transfer.to is None, f"{core.node_id} hands over to {core._transfer.to} and does not lead"
    _check_confs(core)


def _is_open(core: CoreState) -> bool:
    """Whether the configuration in force is uncommitted, or its commit has not been handled."""
    return core._confs[-1][0] > core._commit or core._conf_committed


def _check_confs(core: CoreState) -> None:
    confs, log = core._confs, core._log
    assert confs[-1][1] is core._conf, f"{core._conf} is in force, the newest is {confs[-1][1]}"
    # An uncommitted one is tracked: its commit must be noticed.
    open_indexes = [index for index, _ in confs if index > core._commit]
    assert not open_indexes or core._conf_open in (confs[-1][0], core._term_start), (
        f"configurations at {open_indexes} are not committed, watched is {core._conf_open}"
    )
    for (index, old), (next_index, new) in pairwise(confs):
        assert log.base.index < next_index <= log.last_index, (
            f"a configuration at {next_index} of a log from {log.base.index} to {log.last_index}"
        )
        assert index < next_index, f"a configuration at {next_index} follows one at {index}"
        assert may_follow(new, old), f"{old} at {index} and {new} at {next_index} may decide without each other"
    peers = {progress.peer for _, others in core._quorums for progress in others}
    voters = {*core._conf.voters, *core._conf.outgoing}
    assert peers == voters - {core.node_id}, f"{sorted(peers)} are counted, voters are {sorted(voters)}"


def _check_leader(core: CoreState) -> None:
    log = core._log
    first_index = max(core._term_start, log.base.index)
    assert log.term_at(first_index) == core._term, (
        f"entry {core._term_start} opens term {core._term}, entry {first_index} has term {log.term_at(first_index)}"
    )
    leader = core._leader_state
    nbytes = sum(span.nbytes for span in leader.uncommitted)
    assert nbytes == leader.uncommitted_bytes, f"{nbytes} bytes uncommitted, counted {leader.uncommitted_bytes}"
    core._reads.rounds.check_invariants()
    own = [index for index, _ in core._confs if index > max(core._commit, core._term_start)]
    assert len(own) <= 1, f"{core.node_id} began changes at {own}, none of them is committed"
    target = core._transfer.to
    assert target is None or target in core._conf.voters, f"{target} is to take over and is not a voter"
    for progress in core._peers.values():
        progress.check_invariants()
        assert progress.next <= log.last_index + 1, (
            f"{progress.peer}: next is {progress.next}, the log ends at {log.last_index}"
        )


def check_group(cores: Iterable[CoreState]) -> None:
    """Assert the invariants between the cores of one group (Raft thesis, figure 3.2), and of their caches."""
    cores = list(cores)
    for core in cores:
        core._tail.check_invariants()
    for one, other in combinations(cores, 2):
        both_lead = one._role is Role.LEADER and other._role is Role.LEADER
        assert not (both_lead and one._term == other._term), (
            f"{one.node_id} and {other.node_id} both lead in term {one._term}"
        )
        agreement = _agree_up_to(one._log, other._log)
        commit = min(one._commit, other._commit)
        assert agreement >= commit, (
            f"{one.node_id} and {other.node_id} differ behind entry {agreement}, both committed {commit}"
        )


def _agree_up_to(one: LogTerms, other: LogTerms) -> LogIndex:
    """The last index at which both logs have the same term; asserts that they never agree again after a difference."""
    first = max(one.base.index, other.base.index)
    last = min(one.last_index, other.last_index)
    # Terms change only at the start of a run, so comparing there and at the end compares everything.
    starts = sorted({start for log in (one, other) for start, _ in log.runs() if first < start <= last} | {first})
    agreement = last
    for position, start in enumerate(starts):
        if start > last:
            break
        end = min(starts[position + 1] - 1 if position + 1 < len(starts) else last, last)
        if one.term_at(start) != other.term_at(start):
            agreement = min(agreement, start - 1)
        else:
            assert agreement == last, f"logs differ behind entry {agreement} and agree again from {start} to {end}"
    return agreement
