"""`raftmq group force`: lets one replica of a group continue alone after the majority is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, print_json
from raftlog.log_numbers import LogIndex, Term

if TYPE_CHECKING:
    from raftlog.consensus.types import ConfState
    from raftlog.segment.meta import MetaState
    from raftlog.segment.verify import DirectoryReport


@dataclass(frozen=True, slots=True)
class ForcePlan:
    """The state of a replica's directory, and the effect of forcing its group; `in_words` describes it.

    ``conf`` is None if the directory does not tell the group's members. ``commit_index`` is the highest index that this
    replica knew to be committed. ``may_lack_own``: entries that it had acknowledged itself may be missing.
    """

    node_id: str
    cluster_id: str
    conf: ConfState | None
    address: str
    first_index: LogIndex
    last_index: LogIndex
    last_term: Term
    commit_index: int
    term: Term
    may_lack_own: bool

    @property
    def other_members(self) -> tuple[str, ...]:
        """The other members, which forcing the group would remove."""
        return () if self.conf is None else tuple(sorted(self.conf.members - {self.node_id}))

    def in_words(self) -> Iterator[str]:
        """Describe the plan in lines of text."""
        yield f"replica {self.node_id}, log {self.cluster_id}"
        yield f"  its log: entries {self.first_index} to {self.last_index}, the last of term {self.last_term}"
        yield f"  known to be committed: entries up to {self.commit_index}"
        yield f"  its term: {self.term}"
        if self.conf is None:
            yield "  members: its files do not say who belongs to the group; its settings do (peers)"
            others = "All other members"
        else:
            learners = f", learners {' '.join(self.conf.learners)}" if self.conf.learners else ""
            outgoing_text = f", outgoing {' '.join(self.conf.outgoing)}" if self.conf.is_joint else ""
            yield f"  members: voters {' '.join(self.conf.voters)}{outgoing_text}{learners}"
            others = ", ".join(self.other_members)
        yield "what would happen:"
        yield f"  {self.node_id} becomes the only voter, at {self.address}, and the leader when it is started."
        yield f"  Removed from the group: {others}."
        if self.last_index > self.commit_index:
            yield (
                f"  Entries {self.commit_index + 1} to {self.last_index} are kept and become committed; some of them "
                "may never have been acknowledged."
            )
        yield "what may be lost:"
        yield (
            f"  All messages and offsets after entry {self.last_index}. The other members may have acknowledged some "
            f"without {self.node_id}; it is unknown whether, and how many."
        )
        if self.conf is not None and self.node_id in self.conf.learners:
            yield f"  {self.node_id} is a learner: it may lack many acknowledged entries."
        if self.may_lack_own:
            yield f"  {self.node_id} itself may have lost entries that it had acknowledged (it abstains)."
        yield "before that:"
        yield "  If another member still has its directory, compare `raftmq log verify` of each: force the one whose"
        yield "  last entry has the highest term and, among these, the highest index."
        yield f"  Make sure that these never run again with their old directories: {others}."
        yield "  A majority of them would continue the old group, beside the new one."


def force(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Data directory of the surviving replica, which must be stopped.")
    ],
    address: Annotated[
        str | None,
        typer.Option(help="New replication address; default: unchanged.", metavar="HOST:PORT"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Make the change; otherwise only show it.")] = False,
    as_json: Json = False,
) -> None:
    """Make a stopped replica the only voter. It is for a group whose majority is lost forever.

    Without --yes nothing is changed: it prints what would happen and what may be lost.
    """
    from mq.broker.settings import LOG_DIRECTORY
    from raftlog import NodeId, RealDisk, SegmentError, parse_address
    from raftlog.forced_members import MembersInvalid, append_members
    from raftlog.segment import SegmentLog
    from raftlog.segment.verify import StoppedLog

    directory = str(data_dir / LOG_DIRECTORY)
    try:
        if address is not None:
            parse_address(address)
        log = StoppedLog(RealDisk(), directory)
        try:
            plan, state = _plan(log.report(), address)
        finally:
            log.close()
        if yes:
            segment_log = SegmentLog.open(
                directory,
                cluster_id=state.cluster_id,
                node_id=state.node_id,
                segment_bytes=state.segment_bytes,
                disk=RealDisk(),
            )
            try:
                node_id = NodeId(plan.node_id)
                append_members(segment_log, plan.conf, node_id, {node_id: plan.address})
            finally:
                segment_log.close()
    except SegmentError as error:
        raise CommandFailed(str(error)) from error
    except (MembersInvalid, ValueError) as error:
        raise CommandFailed(f"{directory}: {error}") from error
    if as_json:
        print_json(
            {
                "directory": directory,
                "done": yes,
                "node": plan.node_id,
                "address": plan.address,
                "first_index": plan.first_index,
                "last_index": plan.last_index,
                "last_term": plan.last_term,
                "commit_index": plan.commit_index,
                "term": plan.term,
                "lost_members": None if plan.conf is None else list(plan.other_members),
                "may_lack_own_entries": plan.may_lack_own,
            }
        )
        return
    for line in plan.in_words():
        print(line)
    if yes:
        print(f"done: {plan.node_id} is the only voter. Change the secret of the group, start it, then add replicas")
    else:
        print("nothing was changed; pass --yes to make this change")


def _plan(report: DirectoryReport, address: str | None) -> tuple[ForcePlan, MetaState]:
    """Raises CommandFailed if this replica cannot continue alone."""
    from raftlog import NodeId
    from raftlog.forced_members import newest_configuration
    from raftlog.segment.note_names import ABSTAINING, UNSYNCED
    from raftlog.segment.verify import DAMAGED_STATE, UNUSABLE

    if report.verdict == UNUSABLE or report.state is None:
        raise CommandFailed(f"{report.directory} is unusable: {'; '.join(report.findings)}")
    if report.verdict == DAMAGED_STATE or report.last is None:
        raise CommandFailed(
            f"{report.directory} is damaged, and no peer can repair it: see `raftmq log verify`. `raftmq log "
            "discard-damaged` discards all entries after the damage",
            EXIT_FAILED,
        )
    state, last = report.state, report.last
    conf = newest_configuration(state, report.configs)
    if conf is not None and not conf.members:
        conf = None
    if conf is not None and state.node_id not in conf.members:
        raise CommandFailed(f"{report.directory}: {state.node_id} was removed from its group, which has other members")
    if conf is not None and conf.voters == (state.node_id,) and not conf.is_joint:
        raise CommandFailed(f"{report.directory}: {state.node_id} is already the only voter")
    own_address = address or (None if conf is None else dict(conf.addresses).get(NodeId(state.node_id)))
    if own_address is None:
        raise CommandFailed(
            f"{report.directory} does not contain the replication address of {state.node_id}: pass --address"
        )
    return (
        ForcePlan(
            node_id=state.node_id,
            cluster_id=state.cluster_id,
            conf=conf,
            address=own_address,
            first_index=report.first_index,
            last_index=last.index,
            last_term=last.term,
            commit_index=min(state.commit_hint, last.index),
            term=state.term,
            may_lack_own=ABSTAINING in state.notes or (UNSYNCED in state.notes and not state.clean),
        ),
        state,
    )
