"""The paper's rules as a reader of traces: each line of `raftlog.consensus.trace` is checked against those before it.

It keeps its own picture of every replica, made of events only, and shares no code with the core. Rules, by the Raft
thesis: terms never fall and outlive a crash (3.3); one vote in a term, on disk before it is told (3.4, 3.8); one
leader in a term, elected by majorities whose votes it received (3.4); a leader only appends (3.5); a term's entries
begin at one place, behind one term (log matching, 3.5); what is committed is never cut off, is in every later leader's
log, and is the same everywhere (3.6); a leader commits only entries of its own term, held by majorities (3.6.2); a read
is answered with everything that was committed when it was asked for (6.4).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


class RuleBroken(Exception):
    """A line of a trace contradicts the paper."""

    def __init__(self, number: int, rule: str, what: str) -> None:
        super().__init__(f"line {number}: {rule}: {what}")
        self.rule = rule


class Log:
    """Term runs of the entries behind ``base``."""

    def __init__(self, base: tuple[int, int] = (0, 0), spans: Iterable[Sequence[int]] = ()) -> None:
        self.base, self.last = base, base[0]
        self.runs: list[tuple[int, int]] = []
        self.append(spans)

    def append(self, spans: Iterable[Sequence[int]]) -> None:
        for first, last, term in spans:
            assert first == self.last + 1, f"entries from {first} on behind {self.last}"
            if not self.runs or self.runs[-1][1] != term:
                self.runs.append((first, term))
            self.last = last

    def truncate(self, first: int) -> None:
        self.runs = [run for run in self.runs if run[0] < first]
        self.last = min(self.last, first - 1)

    def compact(self, base: tuple[int, int]) -> None:
        self.base = base
        later = [run for run in self.runs if run[0] > base[0]]
        term = self.term_at(base[0] + 1)
        self.runs = ([(base[0] + 1, term)] if base[0] < self.last and term is not None else []) + [
            run for run in later if run[0] > base[0] + 1
        ]

    def term_at(self, index: int) -> int | None:
        """None if the entry is not here, or compacted away."""
        if index == self.base[0]:
            return self.base[1]
        if not self.base[0] < index <= self.last:
            return None
        return [term for first, term in self.runs if first <= index][-1]


@dataclass(slots=True)
class Replica:
    """What the events say of one replica; ``disk`` is what completed writes amount to."""

    term: int = 0
    vote: str = ""
    role: str = "StateFollower"
    commit: int = 0
    log: Log = field(default_factory=Log)
    disk: Log = field(default_factory=Log)
    disk_state: tuple[int, str] = (0, "")
    writes: dict[int, Event] = field(default_factory=dict)
    votes: set[str] = field(default_factory=set)
    reads: dict[int, int] = field(default_factory=dict)


class Reference:
    """Takes lines in order. Raises RuleBroken at the first that contradicts those before."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.lines = 0
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._openings: dict[int, tuple[int, int]] = {}
        self._committed = Log()
        self._committed_up_to = 0
        self._durable_commit = True

    def read(self, line: str) -> None:
        """Check one line."""
        self.lines += 1
        event = json.loads(line)["event"]
        node = event["nid"]
        if event["name"] == "InitState":
            self._init(node, event)
            return
        replica = self.replicas[node]
        self._settle_state(node, replica, event)
        handler = getattr(self, f"_on_{event['name']}", None)
        if handler is not None:
            handler(node, replica, event)

    def _demand(self, holds: bool, rule: str, what: str) -> None:
        if not holds:
            raise RuleBroken(self.lines, rule, what)

    # -- state ---------------------------------------------------------------------------------------------------

    def _init(self, node: str, event: Event) -> None:
        state = event["state"]
        self._durable_commit = event["durable_commit"]
        known = self.replicas.get(node)
        log = Log(tuple(event["base"]), event["spans"])
        if known is not None:
            term, vote = known.disk_state
            self._demand(state["term"] >= term, "terms never fall", f"{node}: {state['term']} after {term} on disk")
            if state["term"] == term and vote:
                self._demand(state["vote"] == vote, "one vote", f"{node} forgot its vote for {vote} in term {term}")
            if self._durable_commit:
                self._demand_survival(node, known, log)
        for first, _ in log.runs:
            self._settle_opening(node, log, first)
        replica = Replica(state["term"], state["vote"], commit=state["commit"], log=log)
        replica.disk = Log(tuple(event["base"]), event["spans"])
        replica.disk_state = (state["term"], state["vote"])
        self.replicas[node] = replica

    def _demand_survival(self, node: str, known: Replica, log: Log) -> None:
        """Entries on disk are there after a restart, unless a write under way was to cut them off."""
        cuts = [w["truncate_from"] for w in known.writes.values() if w["truncate_from"] is not None]
        end = min([known.disk.last, *[cut - 1 for cut in cuts]])
        starts = {first for first, _ in (*known.disk.runs, *log.runs) if log.base[0] < first <= end}
        for index in sorted({*starts, end}):
            if index > max(log.base[0], known.disk.base[0]):
                same = known.disk.term_at(index) == log.term_at(index)
                self._demand(same, "the disk remembers", f"{node} came back without entry {index}")

    def _settle_state(self, node: str, replica: Replica, event: Event) -> None:
        term, vote = event["state"]["term"], event["state"]["vote"]
        self._demand(term >= replica.term, "terms never fall", f"{node}: {term} after {replica.term}")
        if term == replica.term and replica.vote:
            self._demand(vote == replica.vote, "one vote", f"{node}: {vote!r} after {replica.vote} in term {term}")
        replica.term, replica.vote, replica.role = term, vote, event["role"]

    # -- elections -----------------------------------------------------------------------------------------------

    def _on_BecomeCandidate(self, node: str, replica: Replica, event: Event) -> None:
        self._demand(replica.vote == node, "one vote", f"{node} stands in term {replica.term}, voted {replica.vote!r}")
        replica.votes = {node}

    def _on_SendRequestVoteResponse(self, node: str, replica: Replica, event: Event) -> None:
        message = event["msg"]
        if message["reject"]:
            return
        candidate, term = message["to"], message["term"]
        before = self._votes.setdefault((node, term), candidate)
        self._demand(before == candidate, "one vote", f"{node} voted for {before} and {candidate} in term {term}")
        on_disk = replica.disk_state == (term, candidate) or replica.disk_state[0] > term
        self._demand(on_disk, "votes are on disk", f"{node} votes for {candidate} in {term}: {replica.disk_state}")

    def _on_ReceiveRequestVoteResponse(self, node: str, replica: Replica, event: Event) -> None:
        message = event["msg"]
        if message["term"] == replica.term and not message["reject"]:
            replica.votes.add(message["from"])

    def _on_BecomeLeader(self, node: str, replica: Replica, event: Event) -> None:
        before = self._leaders.setdefault(replica.term, node)
        self._demand(before == node, "one leader", f"{before} and {node} in term {replica.term}")
        elected = self._majority(event, replica.votes)
        self._demand(elected, "elected by majorities", f"{node} in term {replica.term} by {sorted(replica.votes)}")
        self._demand_committed(node, replica.log, "leader completeness")

    def _majority(self, event: Event, nodes: set[str]) -> bool:
        return all(2 * len(nodes & set(voters)) > len(voters) for voters in event["conf"] if voters)

    # -- the log -------------------------------------------------------------------------------------------------

    def _on_AppendEntries(self, node: str, replica: Replica, event: Event) -> None:
        for span in event["spans"]:
            last_term = replica.log.runs[-1][1] if replica.log.runs else replica.log.base[1]
            self._demand(
                last_term <= span[2] <= replica.term, "terms rise in a log", f"{node}: {span} in {replica.term}"
            )
            self._demand(span[0] == replica.log.last + 1, "logs have no gaps", f"{node}: {span} at {replica.log.last}")
            replica.log.append([span])
            self._settle_opening(node, replica.log, span[0])

    _on_Replicate = _on_AppendEntries

    def _settle_opening(self, node: str, log: Log, index: int) -> None:
        """A term has one leader, which appends only, so its entries begin at one place in all logs."""
        if (index, term := log.term_at(index)) not in log.runs or term is None:
            return
        before = log.term_at(index - 1)
        if before is None or before == term:
            return
        opening = self._openings.setdefault(term, (index, before))
        self._demand(
            opening == (index, before), "log matching", f"{node}: term {term} begins at {index}, {before}; {opening}"
        )

    def _on_TruncateEntries(self, node: str, replica: Replica, event: Event) -> None:
        first = event["first"]
        self._demand(replica.role != "StateLeader", "a leader only appends", f"{node} cuts from {first}")
        self._demand(first > replica.commit, "commits stay", f"{node} cuts from {first}, {replica.commit} committed")
        replica.log.truncate(first)

    def _on_CompactEntries(self, node: str, replica: Replica, event: Event) -> None:
        base = tuple(event["base"])
        self._demand(base[0] <= replica.commit, "commits stay", f"{node} drops {base}, {replica.commit} committed")
        replica.log.compact(base)
        if base[0] <= replica.disk.last:
            replica.disk.compact(base)

    def _on_PersistRequest(self, node: str, replica: Replica, event: Event) -> None:
        replica.writes[event["ticket"]] = event

    def _on_PersistDone(self, node: str, replica: Replica, event: Event) -> None:
        for ticket in sorted(ticket for ticket in replica.writes if ticket <= event["ticket"]):
            write = replica.writes.pop(ticket)
            if write["truncate_from"] is not None:
                replica.disk.truncate(write["truncate_from"])
            replica.disk.append(span for span in write["spans"] if span[0] > replica.disk.last)
            if write["hard_state"] is not None:
                replica.disk_state = tuple(write["hard_state"])

    def _on_SendAppendEntriesResponse(self, node: str, replica: Replica, event: Event) -> None:
        durable = event["msg"]["index"]
        self._demand(durable <= replica.disk.last, "said when on disk", f"{node}: {durable}, {replica.disk.last} is")

    # -- commit and reads ----------------------------------------------------------------------------------------

    def _on_Commit(self, node: str, replica: Replica, event: Event) -> None:
        commit = event["state"]["commit"]
        self._demand(replica.commit <= commit <= replica.log.last, "commit rises in the log", f"{node}: {commit}")
        if commit > self._committed_up_to:
            self._demand(replica.role == "StateLeader", "leaders commit", f"{node} commits {commit} first")
            term = replica.log.term_at(commit)
            self._demand(term == replica.term, "own terms only", f"{node} commits {commit} of {term} in {replica.term}")
            holders = {name for name in self.replicas if self._holds(self.replicas[name], commit, replica.term)}
            self._demand(self._majority(event, holders), "held by majorities", f"{node}: {commit} at {sorted(holders)}")
            self._demand_committed(node, replica.log, "commits stay")
            self._committed_up_to = commit
            self._committed = Log(replica.log.base)
            self._committed.runs = [run for run in replica.log.runs if run[0] <= commit]
            self._committed.last = commit
        replica.commit = commit
        self._demand_committed(node, replica.log, "the same everywhere", commit)

    def _holds(self, replica: Replica, index: int, term: int) -> bool:
        return (replica.disk if self._durable_commit else replica.log).term_at(index) == term

    def _demand_committed(self, node: str, log: Log, rule: str, up_to: int | None = None) -> None:
        """``log`` has what is committed."""
        end = self._committed_up_to if up_to is None else up_to
        starts = {first for first, _ in (*self._committed.runs, *log.runs) if first <= end}
        for index in sorted({*starts, end}):
            if index > max(self._committed.base[0], log.base[0]):
                expected, found = self._committed.term_at(index), log.term_at(index)
                self._demand(
                    expected == found, rule, f"{node}: entry {index} has term {found}, {expected} is committed"
                )

    def _on_ReadIndex(self, node: str, replica: Replica, event: Event) -> None:
        replica.reads[event["ctx"]] = self._committed_up_to

    def _on_ReadState(self, node: str, replica: Replica, event: Event) -> None:
        needed = replica.reads.pop(event["ctx"], 0)
        index = event["index"]
        if index is not None:
            self._demand(index >= needed, "reads see commits", f"{node}: {index}, {needed} was committed")


def check(lines: Iterable[str]) -> Reference:
    """Check a whole trace. Raises RuleBroken."""
    reference = Reference()
    for line in lines:
        reference.read(line)
    return reference
