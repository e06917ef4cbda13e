"""The contents of the overview: broker groups, their replicas and problems. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mq.console.events import count_of
from mq.console.history import History, rates_of
from mq.console.views.charts import Chart, chart, error_chart
from mq.console.views.links import link
from mq.console.views.text import duration, number, percent, size
from mq.inspection.cluster import UNREACHABLE, GroupStatus, ReplicaStatus
from mq.inspection.findings.diagnosis import findings_of, summary
from mq.inspection.findings.finding import Finding, Severity
from mq.inspection.survey import Survey

MOMENT: Final = 10.0
"""A replica that is behind for less is not called so in seconds."""
_DURABILITY = {
    "quorum-fsync": "acknowledged = on disk on a majority",
    "quorum-memory": "acknowledged = in memory of a majority, not yet on disk",
}


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica as text; ``state`` is "good", "bad" or empty."""

    node: str
    address: str
    role: str
    term: str
    committed: str
    position: str
    lag: str
    disk: str
    version: str
    state: str
    note: str


@dataclass(frozen=True, slots=True)
class GroupCard:
    """A broker group. Rates are the leader's messages per second over 10 s; errors are those of all replicas."""

    name: str
    cluster: str
    leader: str
    has_leader: bool
    is_stock: bool
    durability: str
    rate_in: str
    rate_out: str
    errors: str
    chart: Chart | None
    error_chart: Chart | None
    waiting: str
    connections: str
    replicas: tuple[ReplicaRow, ...]


@dataclass(frozen=True, slots=True)
class Alarms:
    """The doctor's findings, the worst first. ``findings`` is None until the doctor has run once."""

    findings: tuple[Finding, ...] | None
    summary: str
    worst: str


def cards(groups: Sequence[GroupStatus], history: History, now: float) -> tuple[GroupCard, ...]:
    """Return the cards of all broker groups."""
    return tuple(card(group, history, now) for group in groups)


def card(group: GroupStatus, history: History, now: float) -> GroupCard:
    """Return the card of one broker group. ``now`` is on the clock of the history."""
    leader = next((each for each in group.replicas if each.role == "leader"), None)
    if leader is None and group.is_stock:
        leader = next((each for each in group.replicas if each.broker_id == 0), None)
    sent_rate, read = rates_of(group)
    errors = history.errors(group.group, now)
    kinds = ("delayed", "timers", "transactions", "pops")
    words = ("delayed", "timed", "open transactions", "open pops")
    counts = [
        (getattr(leader, kind) if leader is not None else None, word) for kind, word in zip(kinds, words, strict=True)
    ]
    return GroupCard(
        name=group.group,
        cluster=group.cluster,
        leader=_leader_text(group),
        has_leader=group.leader is not None or group.is_stock,
        is_stock=group.is_stock,
        durability=_DURABILITY.get(group.durability or "", ""),
        rate_in=rate(sent_rate),
        rate_out=rate(read),
        errors=rate(errors),
        chart=chart(history.get(group.group, now), now),
        error_chart=error_chart(history.get(group.group, now), now),
        waiting=", ".join(f"{count:,} {word}" for count, word in counts if count),
        connections=number(leader.connections) if leader is not None else "-",
        replicas=tuple(_row(each, group) for each in group.replicas),
    )


def rate(value: float | None) -> str:
    """Format a number of messages per second; a dash if it is unknown."""
    return "-" if value is None else f"{value:,.1f}/s"


def alarms(survey: Survey | None, fault: str = "") -> Alarms:
    """Return the doctor's findings. ``fault`` says why there are no newer ones."""
    if survey is None:
        return Alarms(
            None, *(("Not known: the servers could not be asked.", "warning") if fault else ("looking ...", ""))
        )
    findings = tuple(findings_of(survey))
    worst = max((each.severity for each in findings), default=Severity.NOTICE)
    if fault:  # it may be worse by now
        before = f"When the servers last answered: {summary(findings)}"
        return Alarms(findings, before, max(worst, Severity.WARNING).word)
    return Alarms(findings, summary(findings), worst.word if findings else "good")


@dataclass(frozen=True, slots=True)
class DamageRow:
    """Known damage of a replica's log and queues. ``state`` is "bad" if the replica lacks entries or may not vote."""

    node: str
    verified: str
    restored: str
    missing: str
    state: str


def damage_rows(group: GroupStatus) -> list[DamageRow]:
    """Return a row for each replica of a group that answers."""
    rows = []
    for replica in group.replicas:
        if not replica.figures:
            continue
        scrubs, nbytes = count_of(replica, "logScrubs"), count_of(replica, "logScrubbedBytes")
        missing_count = count_of(replica, "missingEntries")
        if replica.abstaining:
            lacks = "fetches acknowledged entries that it lost, and does not vote meanwhile"
        else:
            lacks = f"{missing_count:,} entries that it deleted early, on a full disk" if missing_count else "nothing"
        times = f"{scrubs:,} time{'s' if scrubs != 1 else ''}" if scrubs else "not yet to its end"
        rows.append(
            DamageRow(
                node=replica.node_id,
                verified=f"{times}, {size(nbytes)} intact" if "raftmq.logScrubs" in replica.figures else "not known",
                restored=number(count_of(replica, "queueBlocksRestored")),
                missing=lacks,
                state="bad" if replica.abstaining or missing_count else "",
            )
        )
    return rows


def page_of(finding: Finding) -> str:
    """Return the address of the page about a finding's subject; empty if there is none."""
    kind, _, name = finding.subject.rpartition(" ")
    if kind == "consumer group":
        page = "/dead-letters" if finding.remedy.startswith("raftmq dlq ") else "/group"
        return link(page, group=name) if page == "/dead-letters" else link(page, name=name)
    return link("/broker-group", name=name) if kind == "group" else ""


def current_problems(group: GroupStatus, history: History, now: float) -> list[str]:
    """List the present problems of a broker group as sentences. The doctor also says what to do.

    ``now`` is on the clock of the history.
    """
    rows = []
    if group.leader is None and not group.is_stock:
        rows.append(f"{group.group} has no leader: nobody can send or consume there now")
    for replica in group.replicas:
        if replica.role == UNREACHABLE:
            reason = f" refuses to answer: {replica.refusal}" if replica.refusal else " does not answer"
            rows.append(f"{replica.node_id} of {group.group}{reason}")
        elif replica.abstaining:
            rows.append(
                f"{replica.node_id} of {group.group} lost acknowledged entries, fetches them, and does not vote"
            )
        elif replica.lag_entries and replica.lag_bytes:
            behind = f"{replica.lag_entries:,} entries, {size(replica.lag_bytes)}"
            position = replica.commit_position
            seconds = None if position is None else history.seconds_behind(group.group, position, now)
            since = f"{duration(seconds)} behind the leader: " if seconds is not None and seconds >= MOMENT else ""
            rows.append(f"{replica.node_id} of {group.group} is {since}{behind}{'' if since else ' behind the leader'}")
    return rows


def _leader_text(group: GroupStatus) -> str:
    if group.is_stock:
        return "Apache RocketMQ"
    if group.leader is not None:
        return f"led by {group.leader}"
    return "NO LEADER" if any(each.role != UNREACHABLE for each in group.replicas) else "leader unknown"


def _row(replica: ReplicaStatus, group: GroupStatus) -> ReplicaRow:
    role = replica.role
    if role not in (UNREACHABLE, "leader") and replica.member not in (None, "voter"):
        role = replica.member or role
    if group.is_stock and replica.role != UNREACHABLE:
        role = "master" if replica.broker_id == 0 else "slave"
    notes = []
    if replica.abstaining:
        notes.append("does not vote until it has what it lost")
    if replica.refusal:
        notes.append(replica.refusal)
    if replica.priority:
        notes.append(f"priority {replica.priority}")
    if replica.clock_ahead_ms is not None and abs(replica.clock_ahead_ms) - (replica.clock_error_ms or 0) > 1000:
        word = "ahead" if replica.clock_ahead_ms > 0 else "behind"
        notes.append(f"clock {duration(abs(replica.clock_ahead_ms) / 1000)} {word} of this machine's")
    leases = replica.figures.get("raftmq.logLeases", "0")
    if leases.isdigit() and int(leases):
        notes.append(f"keeps log files for {int(leases):,} reader{'s' if int(leases) > 1 else ''}, such as Spark's")
    is_bad = replica.role == UNREACHABLE or replica.abstaining
    return ReplicaRow(
        node=replica.node_id,
        address=replica.address or "-",
        role=role,
        term=number(replica.term),
        committed=number(replica.commit_index),
        position=size(replica.commit_position),
        lag=_lag(replica),
        disk=percent(replica.disk_used),
        version=replica.figures.get("raftmq.softwareVersion") or replica.figures.get("brokerVersionDesc", "-"),
        state="bad" if is_bad else "good" if replica.role == "leader" else "",
        note=", ".join(notes),
    )


def _lag(replica: ReplicaStatus) -> str:
    if replica.lag_entries is None:
        return "-"
    if replica.lag_entries and replica.lag_bytes:
        return f"{replica.lag_entries:,} entries, {size(replica.lag_bytes)}"
    return number(replica.lag_entries)
