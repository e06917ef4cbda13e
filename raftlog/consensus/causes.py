"""Describes why role, term or leader changed: as fields of log events, and as a sentence."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class CauseKind(enum.Enum):
    """The kinds of events that cause a change of role, term or leader."""

    NO_LEADER = "no_leader"
    LEADER_SILENT = "leader_silent"
    LEADER_ENDED = "leader_ended"
    LEADER_FOUND = "leader_found"
    NEWER_TERM = "newer_term"
    PRE_VOTE_WON = "pre_vote_won"
    ELECTED = "elected"
    ASKED_TO_LEAD = "asked_to_lead"
    HANDED_OVER = "handed_over"
    MAJORITY_SILENT = "majority_silent"
    DISK_SLOW = "disk_slow"
    DISK_FULL = "disk_full"
    OTHER_CANDIDATE = "other_candidate"
    VOTED = "voted"
    NOT_A_VOTER = "not_a_voter"


_TEXTS: Final = {
    CauseKind.NO_LEADER: "no message from any leader for {ms} ms",
    CauseKind.LEADER_SILENT: "no message from leader {node} for {ms} ms",
    CauseKind.LEADER_ENDED: "the process of leader {node} has ended",
    CauseKind.LEADER_FOUND: "{node} leads",
    CauseKind.NEWER_TERM: "{node} is in a newer term",
    CauseKind.PRE_VOTE_WON: "a majority would vote for this replica",
    CauseKind.ELECTED: "a majority voted for this replica",
    CauseKind.ASKED_TO_LEAD: "leader {node} asked this replica to take over",
    CauseKind.HANDED_OVER: "this replica asked {node} to take over",
    CauseKind.MAJORITY_SILENT: "no majority of the voters answered for {ms} ms",
    CauseKind.DISK_SLOW: "the disk has not finished a write for {ms} ms",
    CauseKind.DISK_FULL: "the disk is full",
    CauseKind.OTHER_CANDIDATE: "{node} stands for election, too, and has precedence",
    CauseKind.VOTED: "voted for {node}",
    CauseKind.NOT_A_VOTER: "this replica is no longer a voter of the group",
}


class Cause(msgspec.Struct, frozen=True, gc=False):
    """The cause of a change. ``node`` is the other replica involved, ``seconds`` a duration; None without one."""

    kind: CauseKind
    node: str | None = None
    seconds: float | None = None

    @property
    def milliseconds(self) -> int | None:
        """Return ``seconds`` in milliseconds, rounded; None without a duration."""
        return None if self.seconds is None else round(self.seconds * 1000)

    def __str__(self) -> str:
        return _TEXTS[self.kind].format(node=self.node, ms=f"{self.milliseconds or 0:,}")
