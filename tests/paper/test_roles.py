"""Every message to every role, of a lower, the same and a higher term: which role follows, and none that must not.

What follows is written in roles.txt, beside this file; ``REWRITE=1`` in the environment writes it anew. The diagram of
roles in docs/internals/raftlog.md is made from the table of the code in the same way.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
    Heartbeat,
    HeartbeatResp,
    Message,
    PreVoteReq,
    PreVoteResp,
    ReadIndexReq,
    ReadIndexResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.roles import TRANSITIONS, diagram
from raftlog.consensus.types import NONE, Role
from raftlog.consensus.validation import PeerMessageInvalid
from raftlog.log_numbers import NO_INDEX, Term
from tests.paper.group import A, B, C, Group
from tests.support.log_values import log_id

ROOT = Path(__file__).parent.parent.parent
TABLE = Path(__file__).with_name("roles.txt")
CONSENSUS = ROOT / "raftlog" / "consensus"
LONG_LOG = log_id(50, 4)
TERMS = {"lower": -1, "same": 0, "higher": 1}


class Watched(RaftCore):
    """A core that notes which role followed which."""

    seen: set[tuple[Role, Role]]

    def _change_role(self, role: Role) -> None:
        before = self._role
        super()._change_role(role)
        self.__dict__.setdefault("seen", set()).add((before, role))


def _follower(group: Group) -> None:
    group.elect(B)


def _waiting(group: Group) -> None:
    """A follower that knows no leader."""


def _pre_candidate(group: Group) -> None:
    group.time_out(A)


def _candidate(group: Group) -> None:
    group.time_out(A)
    group.hand_over(PreVoteResp(B, A, group[A].term + 1, True, NONE))


def _leader(group: Group) -> None:
    group.elect(A)


STARTS: dict[str, tuple[Role, Callable[[Group], None]]] = {
    "follower": (Role.FOLLOWER, _follower),
    "without leader": (Role.FOLLOWER, _waiting),
    "pre-candidate": (Role.PRE_CANDIDATE, _pre_candidate),
    "candidate": (Role.CANDIDATE, _candidate),
    "leader": (Role.LEADER, _leader),
}

MESSAGES: dict[str, Callable[[int], Message]] = {
    "PreVoteReq, longer log": lambda term: PreVoteReq(B, A, Term(term), Term(term + 1), LONG_LOG),
    "PreVoteReq, shorter log": lambda term: PreVoteReq(B, A, Term(term), Term(term + 1), NONE),
    "PreVoteResp, granted": lambda term: PreVoteResp(B, A, Term(term), True, NONE),
    "PreVoteResp, denied": lambda term: PreVoteResp(B, A, Term(term), False, NONE),
    "VoteReq, longer log": lambda term: VoteReq(B, A, Term(term), LONG_LOG),
    "VoteReq, shorter log": lambda term: VoteReq(B, A, Term(term), NONE),
    "VoteReq, asked by the leader": lambda term: VoteReq(C, A, Term(term), LONG_LOG, force=True),
    "VoteResp, granted": lambda term: VoteResp(B, A, Term(term), True),
    "VoteResp, denied": lambda term: VoteResp(B, A, Term(term), False),
    "AppendReq": lambda term: AppendReq(B, A, Term(term), NONE, (), NO_INDEX, 9),
    "AppendResp, accepted": lambda term: AppendResp(B, A, Term(term), 1, True, NO_INDEX, NO_INDEX, NONE),
    "AppendResp, rejected": lambda term: AppendResp(B, A, Term(term), 1, False, NO_INDEX, NO_INDEX, NONE),
    "Heartbeat": lambda term: Heartbeat(B, A, Term(term), 9, NO_INDEX),
    "HeartbeatResp": lambda term: HeartbeatResp(B, A, Term(term), 1, 0, NO_INDEX),
    "TimeoutNow": lambda term: TimeoutNow(B, A, Term(term)),
    "ReadIndexReq": lambda term: ReadIndexReq(B, A, Term(term), 1),
    "ReadIndexResp": lambda term: ReadIndexResp(B, A, Term(term), 1, None, NO_INDEX),
}


def started(start: str) -> Group:
    role, prepare = STARTS[start]
    group = Group(3, logs={node: [4, 4] for node in (A, B, C)}, term=4, core_class=Watched)
    prepare(group)
    group.drop()
    assert group[A].role is role
    return group


def outcomes() -> Iterator[tuple[str, str, str, str]]:
    """Message, term, role before and what it is afterwards."""
    for start in STARTS:
        group = started(start)
        for name, message in MESSAGES.items():
            for relation, by in TERMS.items():
                core = copy.deepcopy(group[A])
                try:
                    core.receive(message(core.term + by), group.now)
                except PeerMessageInvalid:
                    after = "refused"
                except AssertionError as impossible:
                    pytest.fail(f"{name} of a {relation} term at a {start}: {impossible}")
                else:
                    core.take_effects()
                    core.check_invariants()
                    after = core.role.value
                yield name, relation, start, after


def test_every_message_to_every_role() -> None:
    found = {(name, relation, start): after for name, relation, start, after in outcomes()}
    header = ["message", "term", *STARTS]
    rows = [
        [name, relation, *(found[name, relation, start] for start in STARTS)] for name in MESSAGES for relation in TERMS
    ]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    check_written(TABLE, TABLE.read_text() if TABLE.exists() else "", "\n".join(line.rstrip() for line in lines) + "\n")


def test_message_of_a_lower_term_does_not_change_the_role() -> None:
    for name, relation, start, after in outcomes():
        if relation == "lower":
            assert after in (STARTS[start][0].value, "refused") or name.startswith("PreVote"), (name, start, after)


def test_each_transition_of_the_table_happens_and_no_other() -> None:
    seen: set[tuple[Role, Role]] = set()
    for start in STARTS:
        for message in (*MESSAGES.values(), None):
            for by in TERMS.values():
                group = started(start)
                core = group[A]
                assert isinstance(core, Watched)
                if message is None:
                    group.now = core.next_deadline()
                    core.tick(group.now)
                else:
                    try:
                        core.receive(message(core.term + by), group.now)
                    except PeerMessageInvalid:
                        continue
                seen |= core.seen if hasattr(core, "seen") else set()
    assert seen == set(TRANSITIONS)


def test_core_refuses_role_changes_outside_the_table() -> None:
    core = started("follower")[A]
    with pytest.raises(AssertionError, match="a follower was to become a leader"):
        core._change_role(Role.LEADER)


def test_role_is_set_in_one_place() -> None:
    places = [
        f"{path.name}: {line.strip()}"
        for path in sorted(CONSENSUS.glob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"\b_role = ", line) and "_told_role" not in line
    ]
    assert places == ["state.py: self._role = Role.FOLLOWER", "state.py: self._role = role"]


def test_documented_diagram_equals_the_table() -> None:
    page = ROOT / "docs" / "internals" / "raftlog.md"
    text = page.read_text()
    found = re.search(r"```mermaid\n(stateDiagram-v2\n.*?)```", text, re.DOTALL)
    assert found is not None, "docs/internals/raftlog.md has no diagram of roles"
    check_written(page, text, text[: found.start(1)] + diagram() + text[found.end(1) :])


def check_written(path: Path, before: str, after: str) -> None:
    if os.environ.get("REWRITE") == "1":
        path.write_text(after)
    else:
        assert after == before, f"{path.name}: look at the difference; if it is right, run again with REWRITE=1"
