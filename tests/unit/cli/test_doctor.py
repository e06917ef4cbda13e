"""What `raftmq doctor` finds in the answers of servers: each finding appears when it should, and not otherwise."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq import inspection
from mq.cli.status import table_of
from mq.client.message import MessageQueue
from mq.client.schedules import Every, Schedule, ScheduleStatus
from mq.inspection.cluster import BrokerAnswer, GroupStatus, ReplicaStatus, group_statuses
from mq.inspection.findings.diagnosis import findings_of, summary
from mq.inspection.findings.finding import Finding, Severity
from mq.inspection.survey import HOUR_MS, Consumers, Survey
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import ClientConnectionData, SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.quotas import Throttled
from mq.protocol.requests.topics import QueueEnds

DOCS = Path(__file__).parents[3] / "docs"
NOW_MS = 1_800_000_000_000
VOTERS = {"n0": "voter", "n1": "voter", "n2": "voter"}
QUEUE = MessageQueue("Orders", "broker-a", 3)
MEMBER = ClientConnectionData("10.0.1.7@4711", "10.0.1.7:50000", "PYTHON", 409)


def figures(node: str, role: str = "follower", **more: Any) -> dict[str, str]:
    known = {
        "nodeId": node,
        "role": role,
        "term": 3,
        "lastIndex": 1000,
        "commitIndex": 1000,
        "appliedIndex": 1000,
        "commitPosition": 5000,
        "diskUsed": "0.2",
        "wallClockMs": NOW_MS,
        "accessControl": "on",
        "softwareVersion": "0.2.0",
        "durability": "quorum-fsync",
        **more,
    }
    return {f"raftmq.{name}": str(value) for name, value in known.items()}


def group(*answers: Mapping[str, str] | None, match: Mapping[str, int] | None = None) -> GroupStatus:
    """A group from its replicas' figures; None for one that is registered and does not answer."""
    found = []
    for number, each in enumerate(answers):
        if each is not None and each["raftmq.role"] == "leader":
            peers: dict[str, Any] = {
                node: {"matchIndex": (match or {}).get(node, 1000), "active": True}
                for node in VOTERS
                if node != each["raftmq.nodeId"]
            }
            each = {**each, "raftmq.members": json.dumps(VOTERS), "raftmq.peers": json.dumps(peers)}
        times = NOW_MS - 1.0, NOW_MS + 1.0
        found.append(BrokerAnswer("C", "broker-a", number, f"10.0.0.{number}:10911", each, None, *times))
    [status] = group_statuses(found)
    return status


HEALTHY = group(figures("n0", "leader"), figures("n1"), figures("n2"))
IDLE = Consumers(
    before={},
    after={},
    watched_seconds=3.0,
    configs={},
    members={},
    ends={},
    at_risk={},
    dead_letters={},
    retention_hours=72.0,
    now_ms=NOW_MS,
)


def found(
    status: GroupStatus = HEALTHY,
    *,
    consumers: Consumers | None = IDLE,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    name_servers: Mapping[str, frozenset[str] | str] | None = None,
    unresolved: Mapping[str, str] | None = None,
) -> list[Finding]:
    survey = Survey(
        [status], settings or {}, name_servers or {}, unresolved or {}, consumers, "broker-a has no leader", NOW_MS
    )
    return findings_of(survey)


def only(findings: list[Finding]) -> tuple[Severity, str]:
    [finding] = findings
    assert finding.remedy
    assert finding.page.startswith("docs/")
    return finding.severity, f"{finding.subject} {finding.what}"


def test_healthy_cluster_has_no_findings() -> None:
    assert found() == []
    assert summary([]) == "Nothing is wrong."


@pytest.mark.parametrize(
    ("more", "severity", "text"),
    [
        ({"diskUsed": "0.76"}, Severity.WARNING, "76% full; at 80% it deletes messages at any hour"),
        ({"diskUsed": "0.85"}, Severity.WARNING, "85% full; at 90% it refuses messages"),
        ({"diskUsed": "0.93"}, Severity.CRITICAL, "refuses messages: its disk is 93% full"),
        ({"abstaining": "true"}, Severity.WARNING, "does not vote"),
        ({"missingEntries": 70}, Severity.WARNING, "lacks 70 entries"),
        ({"appliedIndex": 500}, Severity.WARNING, "has not applied 500 committed entries"),
        ({"accessControl": "off"}, Severity.NOTICE, "does not authenticate clients"),
        ({"softwareVersion": "0.1.0"}, Severity.NOTICE, "runs several versions: n1 0.1.0, n0 and n2 0.2.0"),
        ({"wallClockMs": NOW_MS + 4200}, Severity.WARNING, "clock that is 4.2 s ahead of"),
        ({"wallClockMs": NOW_MS - 4200}, Severity.WARNING, "clock that is 4.2 s behind"),
        ({"certificateExpiresMs": NOW_MS - 1}, Severity.CRITICAL, "expired at 2027-01-15T07:59:59.999Z"),
        ({"certificateExpiresMs": NOW_MS + HOUR_MS}, Severity.WARNING, "expires at 2027-01-15T09:00:00.000Z"),
        ({"errorsLogged": '{"damage_found":2}'}, Severity.WARNING, "logged errors since its start: damage_found (2)"),
        ({"schedulesUnusable": 2}, Severity.WARNING, "rules of 2 schedules"),
        ({"transactionsGivenUp": 1}, Severity.NOTICE, "gave up 1 transactions"),
        ({"connectionsRefused": 9}, Severity.WARNING, "refused 9 connections"),
    ],
)
def test_doctor_names_a_replica_with_a_problem(more: dict[str, Any], severity: Severity, text: str) -> None:
    was, what = only(found(group(figures("n0", "leader"), figures("n1", **more), figures("n2"))))
    assert was is severity
    assert text in what
    assert "n1" in what


@pytest.mark.parametrize(
    "more",
    [
        {"diskUsed": "0.74"},
        {"appliedIndex": 800},
        {"wallClockMs": NOW_MS + 900},
        {"certificateExpiresMs": 0},
        {"certificateExpiresMs": NOW_MS + 15 * 24 * HOUR_MS},
        {"errorsLogged": "{}"},
        {"schedulesUnusable": 0},
        {"archiveLagMs": HOUR_MS // 3, "archiveLagBytes": 2_000_000},
    ],
)
def test_doctor_reports_nothing_within_bounds(more: dict[str, Any]) -> None:
    assert found(group(figures("n0", "leader"), figures("n1", **more), figures("n2"))) == []


def test_lagging_replica_is_a_finding() -> None:
    status = group(figures("n0", "leader"), figures("n1"), figures("n2", commitPosition=0), match={"n2": 100})
    assert only(found(status)) == (
        Severity.WARNING,
        "replica n2 (10.0.0.2:10911) is 900 entries (5.0 kB) behind n0, the leader",
    )


def test_silent_replica_is_reported() -> None:
    severity, what = only(found(group(figures("n0", "leader"), figures("n1"), None)))
    assert severity is Severity.WARNING
    assert what.endswith("does not answer; broker-a tolerates no further failure")


def test_doctor_lists_a_missing_leader_first() -> None:
    findings = found(group(figures("n0", "candidate", diskUsed="0.85"), None, None), consumers=None)
    assert findings[0].severity is Severity.CRITICAL
    assert findings[0].what == "has no leader and accepts no messages"
    assert "start id 1 (10.0.0.1:10911), id 2 (10.0.0.2:10911)" in findings[0].remedy
    assert [each.severity for each in findings] == [Severity.CRITICAL, Severity.WARNING, Severity.WARNING]
    assert findings[-1].what == "were not looked at: broker-a has no leader"
    assert summary(findings) == "1 critical, 2 warnings."


def test_brokers_refusing_the_account_are_not_reported_leaderless() -> None:
    """With a wrong key, the doctor reported two groups without a leader as critical, and both were well."""
    refused = [BrokerAnswer("C", "broker-a", number, f"10.0.0.{number}:10911", None, "wrong key") for number in (0, 2)]
    silent = BrokerAnswer("C", "broker-a", 3, "10.0.0.3:10911", None)
    findings = found(*group_statuses([*refused, silent]), consumers=None)
    assert [each.severity for each in findings] == [Severity.WARNING] * 4
    assert sum("refuses to answer: wrong key" in each.what for each in findings) == 2


def test_doctor_reports_missing_brokers() -> None:
    [finding, _] = findings_of(Survey([], {}, {}, {}, None, "there is no broker", NOW_MS))
    assert finding.what == "no broker is registered at the name servers"


def test_broker_of_apache_rocketmq_is_not_judged_by_raft() -> None:
    answer = BrokerAnswer("C", "broker-a", 0, "10.0.0.1:10911", {"brokerVersionDesc": "V5_5_0"}, None, 1.0, 2.0)
    [status] = group_statuses([answer])
    assert status.is_stock
    assert not HEALTHY.is_stock
    assert not group(None, None).is_stock
    assert found(status) == []


def test_differing_settings_are_reported_except_replica_specific_ones() -> None:
    settings = {
        "10.0.0.0:10911": {"raftmq.retention_hours": "72", "raftmq.node_id": "n0", "fileReservedTime": "72"},
        "10.0.0.1:10911": {"raftmq.retention_hours": "48", "raftmq.node_id": "n1", "fileReservedTime": "48"},
    }
    assert only(found(settings=settings)) == (
        Severity.NOTICE,
        "group broker-a has replicas with different values of retention_hours: n0 72, n1 48",
    )


@pytest.mark.parametrize(
    ("access", "address", "count"),
    [("on", "10.0.0.7:9876", 1), ("off", "10.0.0.7:9876", 0), ("on", "127.0.0.1:9876", 0)],
)
def test_name_server_without_accounts_is_reported_if_brokers_have_some(access: str, address: str, count: int) -> None:
    replica = ReplicaStatus("n0", "10.0.0.1:10911", "leader", figures={"raftmq.accessControl": access})
    groups = [GroupStatus("C", "broker-a", None, "n0", (replica,))]
    survey = Survey(groups, {}, {}, {}, IDLE, "", NOW_MS, open_name_servers=frozenset({address}))
    said = [each for each in findings_of(survey) if "lets everybody register brokers" in each.what]
    assert len(said) == count


def test_name_servers_that_are_silent_or_know_less() -> None:
    answers: dict[str, frozenset[str] | str] = {
        "ns1:9876": frozenset({"10.0.0.1:10911", "10.0.0.2:10911"}),
        "ns2:9876": frozenset({"10.0.0.1:10911"}),
        "ns3:9876": "Connection refused",
    }
    findings = found(name_servers=answers)
    assert [each.subject for each in findings] == ["name server ns3:9876", "name server ns2:9876"]
    assert findings[1].what == "does not know 10.0.0.2:10911, as another name server does"


def test_unresolvable_host_is_refused() -> None:
    assert "does not resolve" in only(found(unresolved={"mq-7": "Name or service not known"}))[1]


def lagging(*, last_ms: int = NOW_MS - 5 * 60_000, offset: int = 100, moved: int = 0, **more: Any) -> Consumers:
    """A group that has 900 messages to consume and consumed ``moved`` of them during the watch."""

    def progress(at: int) -> GroupProgress:
        return GroupProgress(QueueOffset(1000), QueueOffset(at), last_ms)

    return replace(
        IDLE,
        before={"billing": {QUEUE: progress(offset)}},
        after={"billing": {QUEUE: progress(offset + moved)}},
        configs={"billing": SubscriptionGroupConfig("billing")},
        members={"billing": [MEMBER]},
        ends={QUEUE: QueueEnds(QueueOffset(0), QueueOffset(1000), NOW_MS)},
        **more,
    )


def test_group_that_does_not_progress_is_reported_with_its_members() -> None:
    severity, what = only(found(consumers=lagging()))
    assert severity is Severity.WARNING
    assert what == (
        "consumer group billing made no progress for 3 s in Orders broker-a/3, where 900 messages wait, the last "
        "message it consumed is from 2027-01-15T07:55:00.000Z; members: 10.0.1.7@4711 at 10.0.1.7:50000 (PYTHON)"
    )


def test_group_that_progresses_or_has_just_consumed_is_not_stuck() -> None:
    assert found(consumers=lagging(moved=1)) == []
    assert found(consumers=lagging(last_ms=NOW_MS - 1000)) == []


def test_messages_received_during_the_watch_make_no_group_stuck() -> None:
    consumers = lagging()
    before = {"billing": {QUEUE: GroupProgress(QueueOffset(100), QueueOffset(100), NOW_MS - 5 * 60_000)}}
    assert found(consumers=replace(consumers, before=before)) == []


def test_group_without_members_or_disabled() -> None:
    assert "has no members; 900 messages wait" in only(found(consumers=replace(lagging(), members={"billing": []})))[1]
    config = SubscriptionGroupConfig("billing", consume_enable=False)
    assert "is disabled; 900 messages" in only(found(consumers=replace(lagging(), configs={"billing": config})))[1]


def test_group_with_unknown_members_is_not_reported_as_empty() -> None:
    """The remedy for a group without members is to delete it: a broker that answered too late caused that advice."""
    assert found(consumers=replace(lagging(moved=1), members={})) == []
    what = only(found(consumers=replace(lagging(), members={})))[1]
    assert what.endswith("members: the brokers did not say which")


def test_messages_that_retention_deleted_or_will_delete() -> None:
    consumers = lagging(moved=1)
    consumers = replace(consumers, ends={QUEUE: QueueEnds(QueueOffset(150), QueueOffset(1000), NOW_MS)})
    assert "did not consume 49 messages of Orders broker-a/3 before retention" in only(found(consumers=consumers))[1]
    consumers = replace(lagging(moved=1), at_risk={QUEUE: 301})
    assert (
        "has not consumed 200 messages of Orders broker-a/3 that are older than 54 h"
        in (only(found(consumers=consumers))[1])
    )
    assert found(consumers=replace(lagging(moved=1), at_risk={QUEUE: 101})) == []


def test_messages_that_the_retention_time_of_their_topic_will_delete() -> None:
    consumers = replace(lagging(moved=1), at_risk={QUEUE: 301}, topic_hours={"Orders": 8.0})
    [finding] = found(consumers=consumers)
    assert "200 messages of Orders broker-a/3 that are older than 6 h: retention deletes them" in finding.what
    assert finding.remedy.endswith("raftmq topic update Orders --retention-hours HOURS")


@pytest.mark.parametrize(("begin", "warns"), [(0, False), (40, True), (90, True)])
def test_messages_that_the_size_of_their_topic_will_delete(begin: int, warns: bool) -> None:
    """A queue that has its first message deletes nothing yet. How many bytes a topic has now is not known."""
    ends = {QUEUE: QueueEnds(QueueOffset(begin), QueueOffset(1000), NOW_MS)}
    consumers = replace(lagging(moved=1), ends=ends, topic_bytes={"Orders": 2**20})
    findings = found(consumers=consumers)
    assert bool(findings) is warns
    if warns:
        [finding] = findings
        assert "quarter of what the topic has: they go first when it has more than 1,048,576 bytes" in finding.what
        assert finding.remedy.endswith("raftmq topic update Orders --retention-bytes BYTES")


def test_offset_beyond_the_end() -> None:
    progress = {"billing": {QUEUE: GroupProgress(QueueOffset(10), QueueOffset(30), 0)}}
    assert "offsets beyond the end of Orders broker-a/3" in only(found(consumers=replace(IDLE, after=progress)))[1]


@pytest.mark.parametrize(("age_ms", "severity"), [(1000, Severity.WARNING), (2 * HOUR_MS, Severity.NOTICE)])
def test_fresh_dead_letters_raise_the_severity(age_ms: int, severity: Severity) -> None:
    letters = {"billing": [QueueEnds(QueueOffset(1), QueueOffset(4), NOW_MS - age_ms)]}
    was, what = only(found(consumers=replace(IDLE, dead_letters=letters)))
    assert was is severity
    assert "has 3 dead letters, the last one at 2027-01-15T0" in what


@pytest.mark.parametrize(
    ("refused", "severity", "text"),
    [
        (0, Severity.NOTICE, "throttles user billing (produce): its quota is used up; 1,200 had to wait"),
        (3000, Severity.WARNING, "its quota is used up; 3,000 requests were refused; 1,200 had to wait"),
    ],
)
def test_throttled_user_is_a_finding(refused: int, severity: Severity, text: str) -> None:
    status = group(figures("n0", "leader"), figures("n1"), figures("n2"))
    who = Throttled(kind="user", name="billing", direction="produce", delayed=1200, refused=refused, seconds_ago=2.0)
    address = next(each.address for each in status.replicas if each.role == "leader")
    assert address is not None
    survey = Survey([status], {}, {}, {}, IDLE, "", NOW_MS, throttled={address: [who]})
    [finding] = [each for each in findings_of(survey) if "quota" in each.what]
    assert finding.severity is severity
    assert text in finding.what
    assert "raftmq user set-quota" in finding.remedy


def test_schedules_that_are_not_sent_are_findings() -> None:
    def status(name: str, error: str = "") -> ScheduleStatus:
        schedule = Schedule(name, "Reports", b"x", Every(dt.timedelta(minutes=1)))
        return ScheduleStatus(schedule, "broker-a", 1, (), None, 0, 0, error)

    schedules = [status("daily"), status("hourly"), status("odd", "unknown time zone Mars/Base")]
    orphaned = frozenset({("broker-a", "hourly"), ("broker-b", "daily")})
    survey = Survey([HEALTHY], {}, {}, {}, IDLE, "", NOW_MS, schedules=schedules, orphaned_schedules=orphaned)
    told = [(each.severity, each.subject, each.what) for each in findings_of(survey) if "schedule" in each.subject]
    assert told == [
        (
            Severity.WARNING,
            "schedule hourly",
            "skips its ticks: broker-a does not have topic Reports, or takes no messages for it",
        ),
        (Severity.WARNING, "schedule odd", "is not sent by broker-a: unknown time zone Mars/Base"),
    ]


def test_stuck_archive_is_a_finding_of_its_group() -> None:
    waits: dict[str, Any] = {"archiveLagMs": HOUR_MS, "archiveLagBytes": 2_000_000}
    status = group(figures("n0", "leader", **waits), figures("n1", **waits), figures("n2"))
    severity, what = only(found(status))
    assert severity is Severity.WARNING
    assert what == "group broker-a has archived nothing for 60 minutes: 2.0 MB of complete log files wait"


def test_replicas_that_keep_archived_messages_for_other_times_are_reported() -> None:
    day: dict[str, Any] = {"archiveKeptSeconds": 86_400, "archiveKeptBytes": 0}
    ever: dict[str, Any] = day | {"archiveKeptSeconds": 0}
    alike = group(figures("n0", "leader", **day), figures("n1", **day), figures("n2", **day))
    assert [each for each in found(alike) if "archived" in each.what] == []
    differ = group(figures("n0", "leader", **day), figures("n1", **ever), figures("n2", **day))
    severity, what = only(found(differ))
    assert severity is Severity.WARNING
    assert "n0: 24 h, no size, n1: no time, no size, n2: 24 h, no size" in what
    assert "archive_retention_* differs (n0: 24 h" in str(table_of(differ).caption)


def test_every_page_that_a_finding_names_exists() -> None:
    text = "".join(path.read_text() for path in Path(inspection.__file__).parent.rglob("*.py"))
    pages = set(re.findall(r'"docs/([a-z-]+\.md)(?:#([a-z0-9-]+))?"', text))
    assert len(pages) > 10
    for page, anchor in pages:
        headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(), flags=re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, (page, anchor)
