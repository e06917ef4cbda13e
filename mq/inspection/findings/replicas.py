"""Finds problems of broker groups, replicas and name servers in a survey. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rich.filesize import decimal

from mq.broker.setting_fields import StorageSettings
from mq.inspection.cluster import NEAR_ENTRIES, UNREACHABLE, GroupStatus, ReplicaStatus
from mq.inspection.findings.finding import Finding, Severity
from mq.inspection.formatting import different_archive_limits, time_of
from mq.inspection.survey import HOUR_MS, Survey
from mq.protocol.access.address_patterns import is_loopback
from mq.protocol.requests.quotas import Throttled

CLOCKS_APART_MS: Final = 1000
"""Replicas whose clocks are further apart deliver delayed messages at different times after a change of the leader."""
EXPIRES_SOON_MS: Final = 14 * 24 * HOUR_MS

ARCHIVE_STUCK_MS: Final = 30 * 60_000

OF_ONE_REPLICA: Final = frozenset(
    f"raftmq.{name}"
    for name in (
        *("node_id", "joins_group", "peers", "replication_listen", "listen", "advertise", "metrics_listen", "priority"),
        *("data_dir", "acl_file", "secret_file", "tls_certificate", "tls_key", "tls_clients_ca", "tls_namesrv_ca"),
    )
)
"""Settings that may differ between replicas."""

COUNTERS: Final = (
    (
        "schedulesUnusable",
        Severity.WARNING,
        "cannot read the rules of {} schedules; they do not tick",
        "raftmq schedule list shows them; delete them, or upgrade the replica",
        "docs/schedules.md",
    ),
    (
        "timersExpired",
        Severity.WARNING,
        "deleted {} timed messages before they were due: its disk was full",
        "free space on the disk, or add some",
        "docs/operations.md#the-disk-fills-up",
    ),
    (
        "delayedExpired",
        Severity.WARNING,
        "deleted {} delayed messages before they were due: its disk was full",
        "free space on the disk, or add some",
        "docs/operations.md#the-disk-fills-up",
    ),
    (
        "transactionsGivenUp",
        Severity.NOTICE,
        "gave up {} transactions: no producer said whether they were committed",
        "look at the producers; raftmq message resume checks a given-up transaction again",
        "docs/pending-messages.md#transactions",
    ),
    (
        "connectionsRefused",
        Severity.WARNING,
        "refused {} connections: connections_max was reached",
        "look for clients that open too many connections, or raise connections_max",
        "docs/operations.md#limits-on-clients",
    ),
)
"""Counters since the start of a process that should be 0."""


def replica_findings(survey: Survey) -> Iterator[Finding]:
    """Yield all findings about servers, in the order of groups and nodes."""
    yield from _name_servers(survey)
    if not survey.groups:
        yield Finding(
            Severity.CRITICAL,
            "cluster",
            "no broker is registered at the name servers",
            "start the brokers; their setting namesrv must name these name servers",
            "docs/troubleshooting.md#a-broker-group-is-missing-from-the-routes",
        )
    for group in survey.groups:
        yield from _leadership(group)
        yield from _archive(group)
        yield from _archive_limits(group)
        for replica in group.replicas:
            yield from _replica(group, replica, survey)
        yield from _versions(group)
        yield from _settings(group, survey)
    yield from _clocks(survey)


def _name_servers(survey: Survey) -> Iterator[Finding]:
    answers = {address: each for address, each in survey.name_servers.items() if not isinstance(each, str)}
    for address, each in sorted(survey.name_servers.items()):
        if isinstance(each, str):
            yield Finding(
                Severity.WARNING,
                f"name server {address}",
                f"does not answer: {each}",
                "start it, or take it out of the list of name servers",
                "docs/operations.md",
            )
    all_addresses = frozenset().union(*answers.values())
    for address, each in sorted(answers.items()):
        if missing_addresses := sorted(all_addresses - each):
            yield Finding(
                Severity.WARNING,
                f"name server {address}",
                f"does not know {', '.join(missing_addresses)}, as another name server does",
                "name it in the setting namesrv of these brokers, and check the network between them",
                "docs/troubleshooting.md#a-broker-group-is-missing-from-the-routes",
            )
    have_accounts = any(
        each.figures.get("raftmq.accessControl") == "on" for group in survey.groups for each in group.replicas
    )
    for address in sorted(survey.open_name_servers) if have_accounts else ():
        if not is_loopback(address.rpartition(":")[0].strip("[]")):
            yield Finding(
                Severity.WARNING,
                f"name server {address}",
                "lets everybody register brokers, who get the messages of clients then, although brokers have accounts",
                "set acl_file of the name server, and before that namesrv_credentials of the brokers",
                "docs/security.md#the-name-server",
            )
    for host, reason in sorted(survey.unresolved.items()):
        yield Finding(
            Severity.WARNING,
            f"host {host}",
            f"is registered as a broker's host and does not resolve on this machine: {reason}",
            "set advertise of that broker to a name or an address that its clients can use",
            "docs/settings.md",
        )


def _leadership(group: GroupStatus) -> Iterator[Finding]:
    page = "docs/recovery.md#when-there-is-no-leader"
    silent = [_name(each) for each in group.replicas if each.role == UNREACHABLE and each.refusal is None]
    replicas = [each for each in group.replicas if each.role != UNREACHABLE]
    if group.is_stock:
        return
    if group.leader is None and any(each.refusal is not None for each in group.replicas):
        for name in silent:  # who leads is not known; `_replica` reports those that refuse
            yield Finding(Severity.WARNING, f"replica {name}", "does not answer", "start it", page)
        return
    if group.leader is None:
        what = "has no leader and accepts no messages" if replicas else "has no replica that answers"
        start = f"start {', '.join(silent)}; " if silent else ""
        remedy = f"{start}a majority of its replicas must run and reach each other"
        yield Finding(Severity.CRITICAL, f"group {group.group}", what, remedy, page)
        return
    voters = [each for each in group.replicas if each.member in ("voter", "incoming")]
    if len(voters) == 1:
        yield Finding(
            Severity.NOTICE,
            f"group {group.group}",
            "has one replica: without it, the group is down",
            "add two replicas: raftmq group add",
            "docs/operations.md#add-a-replica",
        )
    if group.durability == "quorum-memory":
        yield Finding(
            Severity.NOTICE,
            f"group {group.group}",
            "acknowledges messages before they are on disk (quorum-memory)",
            "set durability to quorum-fsync if acknowledged messages must survive a power cut of all machines",
            "docs/recovery.md#quorum-memory",
        )
    healthy = sum(each.role != UNREACHABLE and not each.abstaining for each in voters)
    spare = healthy - (len(voters) // 2 + 1)
    for each in group.replicas:
        if each.role == UNREACHABLE and each.refusal is None:
            tolerates = "no further failure" if spare <= 0 else f"{spare} more failure{'s' if spare > 1 else ''}"
            yield Finding(
                Severity.WARNING,
                f"replica {_name(each)}",
                f"does not answer; {group.group} tolerates {tolerates}",
                "start it; a machine that is lost is replaced with raftmq group replace",
                "docs/operations.md#replace-a-dead-replica",
            )


def _archive_limits(group: GroupStatus) -> Iterator[Finding]:
    """Find replicas that keep archived messages for different times, or a leader that does not know for how long."""
    if text := different_archive_limits(group):
        yield Finding(
            Severity.WARNING,
            f"group {group.group}",
            f"has replicas that keep archived messages for different times ({text}): the longest time and the largest "
            "size count",
            "set archive_retention_hours and archive_retention_bytes to the same on all replicas",
            "docs/archive.md#delete-old-files-in-the-archive",
        )


def _archive(group: GroupStatus) -> Iterator[Finding]:
    """Find an archive that makes no progress, as the replica reports that has watched it longest."""
    lag_ms = max((each.archive_lag_ms or 0 for each in group.replicas), default=0)
    if lag_ms < ARCHIVE_STUCK_MS:
        return
    lag_bytes = max(each.archive_lag_bytes or 0 for each in group.replicas)
    yield Finding(
        Severity.WARNING,
        f"group {group.group}",
        f"has archived nothing for {lag_ms // 60_000} minutes: {decimal(lag_bytes)} of complete log files wait",
        "archive_failed in the logs of its replicas has the reason; retention may delete what is not archived",
        "docs/archive.md#when-archiving-fails",
    )


def _throttled_users(subject: str, users: Iterable[Throttled]) -> Iterator[Finding]:
    for each in users:
        what = f"throttles {each.kind} {each.name} ({each.direction}): its quota is used up"
        if each.refused:
            what += f"; {each.refused:,} requests were refused"
        yield Finding(
            Severity.WARNING if each.refused else Severity.NOTICE,
            subject,
            f"{what}; {each.delayed:,} had to wait",
            "look at what it sends and reads; raftmq user quotas shows quotas, raftmq user set-quota and raftmq topic "
            "update change them",
            "docs/quotas.md",
        )


def _replica(group: GroupStatus, replica: ReplicaStatus, survey: Survey) -> Iterator[Finding]:
    subject = f"replica {_name(replica)}"
    if replica.refusal is not None:
        yield Finding(
            Severity.WARNING,
            subject,
            f"refuses to answer: {replica.refusal}",
            "run this command with an account that may administer the cluster",
            "docs/security.md#accounts",
        )
        return
    if replica.role == UNREACHABLE:
        return
    yield from _log_state(subject, replica, group)
    yield from _disk(subject, replica, survey)
    yield from _certificate(subject, replica, survey)
    for name, severity, what, remedy, page in COUNTERS:
        if count := _count(replica, name):
            yield Finding(severity, subject, what.format(f"{count:,}"), remedy, page)
    if replica.figures.get("raftmq.accessControl") == "off" and not is_loopback(
        (replica.address or "localhost").rpartition(":")[0]
    ):
        yield Finding(
            Severity.NOTICE,
            subject,
            "does not authenticate clients: whoever reaches its port can read and delete everything",
            "set acl_file",
            "docs/security.md#accounts",
        )
    yield from _throttled_users(subject, survey.throttled.get(replica.address or "", ()))
    errors: Mapping[str, int] = json.loads(replica.figures.get("raftmq.errorsLogged", "{}"))
    if errors:
        events = ", ".join(f"{name} ({count:,})" for name, count in errors.items())
        yield Finding(
            Severity.WARNING,
            subject,
            f"logged errors since its start: {events}",
            "its log has the fields of each",
            "docs/log-events.md",
        )


def _log_state(subject: str, replica: ReplicaStatus, group: GroupStatus) -> Iterator[Finding]:
    if replica.abstaining:
        yield Finding(
            Severity.WARNING,
            subject,
            "does not vote: it lost acknowledged entries and fetches them",
            "wait until it has caught up; if a majority abstains, see raftmq log allow-vote --help",
            "docs/recovery.md#a-damaged-disk",
        )
    if missing_count := _count(replica, "missingEntries"):
        yield Finding(
            Severity.WARNING,
            subject,
            f"lacks {missing_count:,} entries that it deleted early on a full disk",
            "free space on its disk; it fetches what another replica still has",
            "docs/troubleshooting.md#a-replica-deleted-messages-early-because-its-disk-was-full",
        )
    if (replica.lag_entries or 0) > NEAR_ENTRIES:
        nbytes = f" ({decimal(replica.lag_bytes)})" if replica.lag_bytes else ""
        yield Finding(
            Severity.WARNING,
            subject,
            f"is {replica.lag_entries:,} entries{nbytes} behind {group.leader}, the leader",
            "it catches up by itself; if the lag grows, check its disk, its CPU and its network",
            "docs/operations.md#diagnose-a-problem",
        )
    commit, applied_index = replica.commit_index, replica.applied_index
    if commit is not None and applied_index is not None and commit - applied_index > NEAR_ENTRIES:
        yield Finding(
            Severity.WARNING,
            subject,
            f"has not applied {commit - applied_index:,} committed entries",
            "after a start it catches up by itself; otherwise check its CPU and its log",
            "docs/operations.md#diagnose-a-problem",
        )


def _disk(subject: str, replica: ReplicaStatus, survey: Survey) -> Iterator[Finding]:
    used = replica.disk_used
    if used is None:
        return
    settings = survey.settings.get(replica.address or "", {})

    def ratio(name: str) -> float:
        return float(settings.get(f"raftmq.{name}", StorageSettings.model_fields[name].default))

    warns, expires, full = ratio("disk_warn_ratio"), ratio("disk_expire_ratio"), ratio("disk_full_ratio")
    page = "docs/operations.md#the-disk-fills-up"
    remedy = "free space on the disk, add some, or lower retention_hours"
    if used >= full:
        what = f"refuses messages: its disk is {used:.0%} full (disk_full_ratio {full:.0%})"
        yield Finding(Severity.CRITICAL, subject, what, remedy, page)
    elif used >= expires:
        what = f"deletes messages at any hour: its disk is {used:.0%} full; at {full:.0%} it refuses messages"
        yield Finding(Severity.WARNING, subject, what, remedy, page)
    elif used >= warns:
        what = f"has a disk that is {used:.0%} full; at {expires:.0%} it deletes messages at any hour"
        yield Finding(Severity.WARNING, subject, what, remedy, page)


def _certificate(subject: str, replica: ReplicaStatus, survey: Survey) -> Iterator[Finding]:
    expires_ms = _count(replica, "certificateExpiresMs")
    if not expires_ms:
        return
    if expires_ms <= survey.now_ms:
        severity, what = Severity.CRITICAL, f"has a certificate that expired at {time_of(expires_ms)}"
    elif expires_ms - survey.now_ms < EXPIRES_SOON_MS:
        severity, what = Severity.WARNING, f"has a certificate that expires at {time_of(expires_ms)}"
    else:
        return
    remedy = "replace the files of the certificate; the broker reads them within a second"
    yield Finding(severity, subject, what, remedy, "docs/security.md#tls")


def _versions(group: GroupStatus) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for replica in group.replicas:
        if version := replica.figures.get("raftmq.softwareVersion"):
            versions.setdefault(version, []).append(replica.node_id)
    if len(versions) > 1:
        words = ", ".join(f"{' and '.join(nodes)} {version}" for version, nodes in sorted(versions.items()))
        yield Finding(
            Severity.NOTICE,
            f"group {group.group}",
            f"runs several versions: {words}",
            "finish the upgrade: raftmq group upgrade-check",
            "docs/upgrade.md",
        )


def _settings(group: GroupStatus, survey: Survey) -> Iterator[Finding]:
    figures = {
        each.node_id: settings
        for each in group.replicas
        if (settings := survey.settings.get(each.address or "")) is not None
    }
    names = sorted({name for each in figures.values() for name in each if name.startswith("raftmq.")} - OF_ONE_REPLICA)
    for name in names:
        values = {node: each.get(name, "unknown") for node, each in figures.items()}
        if len(set(values.values())) > 1:
            words = ", ".join(f"{node} {value or 'nothing'}" for node, value in sorted(values.items()))
            yield Finding(
                Severity.NOTICE,
                f"group {group.group}",
                f"has replicas with different values of {name.removeprefix('raftmq.')}: {words}",
                "after the next change of the leader another value holds: give all replicas the same",
                "docs/settings.md",
            )


def _clocks(survey: Survey) -> Iterator[Finding]:
    """Name the replicas whose clocks are far from the median."""
    clocks = {
        _name(each): (each.clock_ahead_ms, each.clock_error_ms)
        for group in survey.groups
        for each in group.replicas
        if each.clock_ahead_ms is not None and each.clock_error_ms is not None
    }
    if len(clocks) < 2:
        return
    middle, middle_error = sorted(clocks.values())[len(clocks) // 2]
    for name, (ahead, error) in clocks.items():
        apart = ahead - middle
        if abs(apart) - error - middle_error > CLOCKS_APART_MS:
            word = "ahead of" if apart > 0 else "behind"
            yield Finding(
                Severity.WARNING,
                f"replica {name}",
                f"has a clock that is {abs(apart) / 1000:.1f} s {word} those of the others",
                "check its time server (chronyc tracking); do not set the clock by hand",
                "docs/operations.md#clocks",
            )


def _name(replica: ReplicaStatus) -> str:
    return f"{replica.node_id} ({replica.address})" if replica.address else replica.node_id


def _count(replica: ReplicaStatus, name: str) -> int:
    text = replica.figures.get(f"raftmq.{name}", "0")
    return int(text) if text.isdigit() else 0
