"""When a replica archives, what it reports, what the leader believes, and what operators are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mq.broker.archive.archive_retention import KeptLimits
from mq.broker.archive.archiving import ANSWER_SECONDS, LOG_AGAIN_SECONDS, Archiving
from mq.broker.base.archive_tier import Tier
from mq.broker.limits import DEFAULT
from mq.broker.net.refusals import RequestRefused
from mq.broker.state.archived_log import NOTHING, NoteArchived, NoteTier
from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.format_level import RaiseLevel
from mq.broker.state.metadata import Metadata
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.replicas import ReportArchived, ReportArchivedExt
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble
from raftlog import NodeId
from raftlog.segment.meta import Base
from tests.support.archived_logs import SEGMENT_BYTES, MessageLog
from tests.support.broker_contexts import context_of

URL = "s3://archives/broker-a"
LIMITS = DEFAULT.archive


class Replica:
    """One replica of a group of three with a log of messages, whose clock stands still until it is moved."""

    def __init__(
        self, node_id: str = "n1", *, leader: str = "n0", level: int = 6, url: str | None = URL, messages: int = 50
    ) -> None:
        self.now = 1000.0
        self.now_ms, self.needed_pos = 10_000_000, 2**63 - 1
        self.messages = MessageLog()
        self.metadata = Metadata()
        self.metadata.apply(RaiseLevel(level=level, timestamp_ms=1))
        self.commands: list[bytes] = []
        self.asked: list[dict[str, str]] = []
        self.told: list[tuple[dict[str, str], Any]] = []
        self.logged: list[tuple[str, dict[str, Any]]] = []
        core = SimpleNamespace(
            node_id=NodeId(node_id),
            leader_id=leader,
            conf=SimpleNamespace(
                voters=[NodeId(f"n{number}") for number in range(3)],
                members=[NodeId(f"n{number}") for number in range(3)],
            ),
        )
        self.replica = SimpleNamespace(core=core, log=self.messages.log, commit_index=0)
        self.appender = SimpleNamespace(is_open=node_id == leader, add_command=self.commands.append)

        def log(event: str, **fields: object) -> None:
            self.logged.append((event, fields))

        context = context_of(
            settings=SimpleNamespace(
                archive_url=url,
                archive_endpoint_url=None,
                archive_bytes_per_second=1000,
                archive_retention_hours=None,
                archive_retention_bytes=None,
                has_archive_retention=False,
                node_id=node_id,
                data_dir="/data",
                log_dir="/data/commitlog",
                identity="c",
                segment_bytes=SEGMENT_BYTES,
            ),
            replica=self.replica,
            metadata=self.metadata,
            appender=self.appender,
            clock=lambda: self.now,
            log__info=log,
            log__error=log,
            log__warning=log,
            leader_address=lambda: "leader:1",
        )
        self.service = Archiving(
            context,
            calls=cast("Any", self),
            admit=lambda connection, identity: None,
            now_ms=lambda: self.now_ms,
            needed_pos=lambda: self.needed_pos,
        )
        if messages:
            self.send(messages)

    def ask(self, address: str, code: int, ext: dict[str, str], body: bytes, seconds: float, on_response: Any) -> None:
        assert (address, code) == ("leader:1", RequestCode.REPORT_ARCHIVED)
        if ext.get("member"):
            self.told.append((ext, on_response))
            return
        self.asked.append(ext)
        self.answer = on_response

    def send(self, messages: int) -> None:
        self.messages.send(messages)
        self.replica.commit_index = self.messages.log.last_index

    def looks(self, later: float = 0.0) -> ArchiveJob | None:
        self.now += later
        self.service.update_progress()
        return self.service.next_job()

    def looks_later(self) -> None:
        self.now += 60
        self.service.update_progress()

    def job(self, later: float = 0.0) -> ArchiveJob:
        """The job that there is now."""
        job = self.looks(later)
        assert job is not None
        return job

    def ends(self) -> list[Base]:
        """The log up to the end of each complete file."""
        log = self.messages.log
        return [
            Base(each.last_index, log.locate(each.last_index).term, each.end, log.locate(each.last_index).chain)
            for each in log.segments()
            if each.closed
        ]

    def events(self) -> list[str]:
        return [event for event, _ in self.logged]


def job_of(known_index: int) -> ArchiveJob:
    return ArchiveJob("/data", "/data/commitlog", URL, None, known_index, 1000)


def step(end: Base, **more: Any) -> ArchiveStep:
    return ArchiveStep(end.index, end.term, end.pos, end.chain, **more)


def report(end: Base, url: str = URL) -> Any:
    ext = ReportArchivedExt(identity="c", url=url, index=end.index, term=end.term, pos=end.pos, chain=end.chain)
    return SimpleNamespace(request=ReportArchived(ext=ext), connection=None, response=lambda: b"done")


def noted(end: Base, url: str = URL) -> NoteArchived:
    return NoteArchived(url=url, index=end.index, term=end.term, pos=end.pos, chain=end.chain)


def test_follower_archives_complete_files_and_reports_until_that_is_applied() -> None:
    replica = Replica(messages=0)
    assert replica.looks() is None
    replica.send(50)
    job = replica.looks()
    assert job == job_of(0)
    first, *_, last = replica.ends()
    replica.service.handle_step(step(first, nbytes=4096))
    assert [ext["index"] for ext in replica.asked] == [str(first.index)]
    assert replica.looks() is None, "the report is not applied yet"
    replica.looks(ANSWER_SECONDS + LIMITS.look_seconds)
    assert len(replica.asked) == 2
    replica.metadata.apply(noted(first))
    assert replica.looks(60) is not None
    assert len(replica.asked) == 2
    assert replica.looks() == job_of(first.index)
    replica.metadata.apply(noted(last))
    assert replica.looks() is None
    assert replica.service.counters()["archive_lag_bytes"] == 0
    assert replica.service.counters()["archive_index"] == last.index


@pytest.mark.parametrize(("node", "turn"), [("n1", 0), ("n2", 1), ("n0", 2)])
def test_other_replicas_archive_if_nothing_is_archived(node: str, turn: int) -> None:
    replica = Replica(node)
    due = [replica.looks(LIMITS.turn_seconds if number else 0) is not None for number in range(3)]
    assert due == [number == turn for number in range(3)]
    replica.metadata.apply(noted(replica.ends()[0]))
    assert (replica.looks() is not None) == (node == "n1"), "something was archived: the first one goes on"


@pytest.mark.parametrize("given", [{"level": 5}, {"leader": None}])
def test_archiving_needs_a_leader_and_the_format_level(given: dict[str, Any]) -> None:
    replica = Replica(**given)
    assert replica.looks() is None


def test_file_is_complete_once_a_later_entry_is_committed() -> None:
    replica = Replica()
    complete = replica.messages.complete_index
    first = next(each for each in replica.messages.log.segments() if each.closed)
    replica.replica.commit_index = first.last_index
    assert replica.looks() is None
    replica.replica.commit_index = first.last_index + 1
    assert replica.looks() is not None
    assert first.last_index < complete


def test_leader_accepts_only_reports_that_match_its_log() -> None:
    leader = Replica("n0")
    first, second, *_ = leader.ends()
    service = leader.service
    for wrong in (
        Base(first.index, first.term, first.pos, first.chain ^ 1),
        Base(first.index, first.term, second.pos, first.chain),
        Base(first.index, second.term + 1, first.pos, first.chain),
        Base(leader.messages.log.last_index + 1, first.term, first.pos, first.chain),
    ):
        with pytest.raises(RequestRefused, match="another log") as refused:
            service.handle(report(wrong))
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
    with pytest.raises(RequestRefused, match="archive_url of the leader"):
        service.handle(report(first, "s3://elsewhere/x"))
    assert leader.commands == []
    assert service.handle(report(second)) == b"done"
    (command,) = leader.commands
    assert decode_command(command) == noted(second)
    leader.metadata.apply(noted(second))
    service.handle(report(first))
    assert len(leader.commands) == 1, "the group knows of more"


def test_report_beyond_the_commit_index_is_retried() -> None:
    leader = Replica("n0")
    first, *_ = leader.ends()
    committed, leader.replica.commit_index = leader.replica.commit_index, first.index
    with pytest.raises(RequestRefused, match="does not know yet") as refused:
        leader.service.handle(report(first))
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    leader.service.handle_step(step(first))
    assert leader.events() == [], "nothing has failed"
    leader.replica.commit_index = committed
    leader.looks(ANSWER_SECONDS + LIMITS.look_seconds)
    assert [decode_command(command) for command in leader.commands] == [noted(first)]


def test_followers_and_old_format_levels_refuse_reports() -> None:
    for replica, code in (
        (Replica("n1"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (Replica("n0", level=5), ResponseCode.VERSION_NOT_SUPPORTED),
    ):
        replica.send(50)
        with pytest.raises(RequestRefused) as refused:
            replica.service.handle(report(replica.ends()[0]))
        assert refused.value.code == code


def test_leader_that_archives_itself_appends_the_command() -> None:
    leader = Replica("n0")
    leader.looks()
    end = leader.ends()[0]
    leader.service.handle_step(step(end, nbytes=1))
    assert [decode_command(command) for command in leader.commands] == [noted(end)]
    leader.service.handle_step(step(Base(end.index + 1, end.term, end.pos, 5)))
    assert leader.events() == ["archive_advanced", "archive_failed"]
    assert "another log" in leader.logged[1][1]["reason"]


def test_refused_report_is_logged_and_not_repeated() -> None:
    replica = Replica()
    replica.looks()
    replica.service.handle_step(step(replica.ends()[0]))
    replica.answer(Response(code=ResponseCode.INVALID_PARAMETER, opaque=0, flag=1, remark="another log"), b"")
    replica.looks(100)
    assert len(replica.asked) == 1
    assert replica.events() == ["archive_failed"]
    assert replica.looks() is not None, "it looks at the archive again"


def test_archiving_failures_are_logged_rarely_and_delay_attempts() -> None:
    replica = Replica()
    assert replica.looks() is not None
    failed = ArchiveStep(is_last=True, trouble=Trouble.STORE, reason="503")
    replica.service.handle_step(failed)
    assert replica.looks() is None
    assert replica.looks(LIMITS.retry_seconds) is not None
    for _ in range(20):
        replica.service.handle_step(failed)
    assert replica.looks(LIMITS.retry_seconds_max - 1) is None
    assert replica.looks(1) is not None
    assert replica.events() == ["archive_failed"]
    assert replica.logged[0][1]["trouble"] == "store"
    replica.service.handle_step(ArchiveStep(is_last=True, trouble=Trouble.DAMAGED, reason="an object"))
    replica.now += LOG_AGAIN_SECONDS
    replica.service.handle_step(ArchiveStep(is_last=True, trouble=Trouble.DAMAGED, reason="an object"))
    replica.service.handle_step(ArchiveStep(is_last=True, trouble=Trouble.OTHER_WRITER, reason="n2"))
    assert replica.events() == ["archive_failed"] * 3
    assert replica.service.counters()["archive_failures"] == 23


def test_lag_is_counted_from_the_last_progress() -> None:
    replica = Replica()
    replica.looks()
    replica.looks(90)
    counters = replica.service.counters()
    assert (counters["archive_lag_bytes"], counters["archive_lag_ms"]) == (replica.ends()[-1].pos, 90_000)
    replica.metadata.apply(noted(replica.ends()[1]))
    replica.looks(10)
    counters = replica.service.counters()
    assert counters["archive_lag_bytes"] == replica.ends()[-1].pos - replica.ends()[1].pos
    assert counters["archive_lag_ms"] == 0


def test_outdated_manifest_is_an_error() -> None:
    replica = Replica()
    first, second, *_ = replica.ends()
    replica.metadata.apply(noted(second))
    replica.looks()
    replica.service.handle_step(step(first, is_older=True))
    assert replica.logged == [("archive_rolled_back", {"archive_index": first.index, "known_index": second.index})]
    assert replica.asked == []


def test_replica_without_an_archive_url_archives_nothing() -> None:
    replica = Replica(url=None)
    assert [*replica.service.tasks(), *replica.service.periodic()] == []
    assert replica.service.counters()["archive_lag_bytes"] == 0


def test_snapshot_keeps_the_highest_archived_index() -> None:
    metadata = Metadata()
    assert metadata.archived.end_at(URL) == NOTHING
    low, high = Base(10, 1, 4096, 7), Base(20, 2, 8192, 8)  # type: ignore[arg-type]
    for end in (high, low):
        metadata.apply(decode_command(encode_command(noted(end))))
    assert metadata.archived.end_at(URL) == high
    restored = Metadata()
    restored.restore(metadata.snapshot())
    assert restored.archived.end_at(URL) == high
    assert restored.snapshot() == metadata.snapshot()
    assert restored.archived.end_at("s3://new/x") == NOTHING
    restored.apply(noted(low, "s3://new/x"))
    assert restored.archived.end_at("s3://new/x") == low
    assert restored.archived.end_at(URL) == NOTHING
    restored.restore(b"")
    assert restored.archived.end_at(URL) == NOTHING


def tiered(leader: str = "n0", node_id: str = "n1", **given: Any) -> Replica:
    """A replica that serves archived messages, of a group that has archived its first two files."""
    replica = Replica(node_id, leader=leader, **{"level": 7} | given)
    replica.service._tier = Tier(url=URL, log=replica.messages.log, state=replica.metadata.archived)
    replica.send(40)
    replica.service.update_progress()
    return replica


def test_leader_commits_the_beginning_of_the_archive() -> None:
    leader = tiered(leader="n1")
    end = leader.ends()[-1]
    leader.service.handle_step(step(end, begin_pos=0))
    assert decode_command(leader.commands.pop()) == noted(end)
    leader.metadata.apply(noted(end))
    assert not leader.commands
    leader.looks_later()
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=0, is_held=False)
    leader.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=False))
    leader.looks_later()
    assert not leader.commands, "it is known"


def test_outdated_manifest_is_reported_until_it_is_complete() -> None:
    leader = tiered(leader="n1")
    end = leader.ends()[-1]
    leader.metadata.apply(noted(end))
    leader.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=False))
    leader.service.handle_step(ArchiveStep(is_older=True))
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=0, is_held=True)
    assert leader.logged[-1][0] == "archive_rolled_back"
    leader.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=True))
    leader.service.handle_step(step(end, begin_pos=0))
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=0, is_held=False)


def test_follower_reports_an_older_manifest() -> None:
    follower = tiered()
    end = follower.ends()[-1]
    follower.metadata.apply(noted(end))
    follower.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=False))
    follower.service.handle_step(ArchiveStep(is_older=True))
    assert (follower.asked[-1]["index"], follower.asked[-1]["manifest"]) == (str(end.index), "older")


def test_replica_does_not_report_a_manifest_before_reading_one() -> None:
    for follower in (tiered(), tiered(leader="n1")):
        end = follower.ends()[-1]
        follower.metadata.apply(noted(end))
        follower.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=True))
        follower.looks_later()
        assert not follower.asked
        assert not follower.commands
        # What it has found is news once: later others know better.
        follower.service.handle_step(step(end, begin_pos=0))
        follower.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=False))
        follower.service.update_progress()
        follower.asked.clear()
        follower.commands.clear()
        follower.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=True))
        follower.looks_later()
        assert not follower.asked
        assert not follower.commands


def test_manifest_is_checked_though_nothing_waits() -> None:
    replica = tiered()
    end = replica.ends()[-1]
    replica.metadata.apply(noted(end))
    replica.service.update_progress()
    assert replica.service.next_job() is not None, "at first"
    replica.service.handle_step(ArchiveStep(is_last=True))
    assert replica.service.next_job() is None
    replica.now += LIMITS.check_seconds + 1
    replica.service.update_progress()
    assert replica.service.next_job() is not None


@pytest.mark.parametrize(("level", "has_tiers", "needed"), [(5, False, 6), (6, True, 7), (6, False, None)])
def test_missing_format_level_is_reported(level: int, has_tiers: bool, needed: int | None) -> None:
    replica = tiered(level=level) if has_tiers else Replica(level=level)
    replica.send(40)
    for _ in range(2):
        replica.service.update_progress()
        replica.now += LIMITS.turn_seconds - 1
    assert not replica.logged
    replica.service.update_progress()
    replica.now += 2
    replica.service.update_progress()
    told = [fields["needed_level"] for event, fields in replica.logged if event == "archive_waits_for_level"]
    assert told == ([] if needed is None else [needed])


def test_just_started_replica_does_not_report_an_older_manifest_as_complete() -> None:
    leader = tiered(leader="n1")
    first, end = leader.ends()[0], leader.ends()[-1]
    leader.service.handle_step(step(first, begin_pos=0))  # it has not applied yet that more is archived
    leader.metadata.apply(noted(end))
    leader.now += 60
    leader.commands.clear()
    leader.service.update_progress()
    assert not leader.commands, "nobody knows whether the manifest has all"
    leader.service.handle_step(step(end, begin_pos=0))
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=0, is_held=False)


def with_retention(replica: Replica, **limits: Any) -> Replica:
    replica.service._settings.has_archive_retention = True  # type: ignore[misc]
    for name, value in limits.items():
        setattr(replica.service._settings, name, value)
    own = KeptLimits.from_settings(replica.service._settings)
    replica.service._member_limits.set(own, 1e9)
    for node_id in ("n0", "n1", "n2"):
        replica.service._member_limits.set_member(node_id, own, 1e9)
    replica.metadata.apply(noted(replica.ends()[-1]))
    replica.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=False))
    return replica


def test_group_commits_the_new_beginning_of_the_archive() -> None:
    leader = with_retention(tiered(leader="n1"), archive_retention_hours=1)
    leader.service.handle_step(ArchiveStep(expired_pos=2 * SEGMENT_BYTES))
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=2 * SEGMENT_BYTES, is_held=False)
    leader.needed_pos = SEGMENT_BYTES + 7  # a delayed message
    leader.service.handle_step(ArchiveStep(expired_pos=2 * SEGMENT_BYTES))
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=SEGMENT_BYTES, is_held=False)
    leader.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=True))
    leader.service.handle_step(ArchiveStep(expired_pos=2 * SEGMENT_BYTES))
    assert not leader.commands, "nothing goes while the manifest is an older one"


def test_archiving_job_contains_the_retention_limits() -> None:
    replica = with_retention(tiered(), archive_retention_hours=0.5, archive_retention_bytes=1 << 30)
    job = replica.job(LIMITS.check_seconds)
    assert (job.oldest_ms, job.bytes_max, job.begin_pos) == (replica.now_ms - 1_800_000, 1 << 30, 0)
    replica.service.handle_step(ArchiveStep(expired_pos=SEGMENT_BYTES))
    assert (replica.asked[-1]["expiredPos"], replica.asked[-1]["nodeId"]) == (str(SEGMENT_BYTES), "")
    replica.service.handle_step(ArchiveStep(is_last=True))
    assert replica.looks(1) is None
    assert replica.looks(LIMITS.retry_seconds_max) is not None, "what was agreed is deleted soon"


def test_archive_alone_keeps_delayed_messages_and_compacted_topics() -> None:
    """They would be missing in a group that is restored from it, also if brokers serve their local messages only."""
    replica = Replica(messages=40)
    replica.service.update_progress()
    with_retention(replica, archive_retention_hours=1)
    replica.needed_pos = 2 * SEGMENT_BYTES + 7
    job = replica.job(LIMITS.check_seconds)
    assert job.begin_pos == 2 * SEGMENT_BYTES


def test_readers_continue_without_entries_of_old_messages() -> None:
    leader = with_retention(tiered(leader="n1"))
    begins = {"n0": 2 * SEGMENT_BYTES, "n2": 3 * SEGMENT_BYTES}
    leader.service._tier = SimpleNamespace(  # type: ignore[assignment]
        is_wanted=True, lacks_older_for_good=True, queues_from=SEGMENT_BYTES * 3
    )
    end = leader.ends()[-1]
    for node_id, queues_from in begins.items():
        leader.commands.clear()
        ext = ReportArchivedExt(
            identity="c", url=URL, index=end.index, term=end.term, pos=end.pos, chain=end.chain,
            node_id=node_id, queues_from=queues_from,
        )  # fmt: skip
        call = SimpleNamespace(request=ReportArchived(ext=ext), connection=None, response=lambda: b"done")
        leader.service.handle(cast("Any", call))
        if node_id == "n0":
            assert not leader.commands, "another one may have them"
    assert decode_command(leader.commands.pop()) == NoteTier(url=URL, begin_pos=2 * SEGMENT_BYTES, is_held=False)


def told(replica: Replica, member: str, seconds: int, nbytes: int = 0) -> dict[str, str]:
    """What a leader answers to a member that tells how long it is to keep archived messages."""
    ext = ReportArchivedExt(
        identity="c", url=URL, index=0, term=0, pos=0, chain=0,
        member=member, kept_seconds=seconds, kept_bytes=nbytes,
    )  # fmt: skip
    answers: list[dict[str, str]] = []

    def response(ext: dict[str, str]) -> bytes:
        answers.append(ext)
        return b"done"

    call = SimpleNamespace(request=ReportArchived(ext=ext), connection=None, response=response)
    replica.service.handle(cast("Any", call))
    return answers[0]


def test_longest_time_and_largest_size_of_all_members_apply() -> None:
    leader = tiered(leader="n1")
    leader.service._settings.archive_retention_hours = 2  # type: ignore[misc]
    leader.service._settings.archive_retention_bytes = 500  # type: ignore[misc]
    unknown = {"keptSeconds": "-1", "keptBytes": "-1"}
    assert told(leader, "n0", 3600, 900) == unknown, "n2 has told nothing"
    assert told(leader, "n2", 60, 100) == {"keptSeconds": "7200", "keptBytes": "900"}
    assert told(leader, "n2", 0, 100) == {"keptSeconds": "0", "keptBytes": "900"}, "n2 keeps them for ever"
    assert leader.service.counters()["archive_kept_unknown"] == 0
    leader.now += 3 * LIMITS.tell_seconds + 1
    assert told(leader, "n0", 3600, 900) == unknown, "n2 may be set otherwise by now"
    assert leader.service.counters()["archive_kept_unknown"] == 1


def test_replica_alone_deletes_nothing_in_the_archive() -> None:
    replica = tiered()
    replica.service._settings.has_archive_retention = True  # type: ignore[misc]
    replica.service._settings.archive_retention_hours = 1  # type: ignore[misc]
    replica.metadata.apply(noted(replica.ends()[-1]))
    replica.metadata.apply(NoteTier(url=URL, begin_pos=0, is_held=False))
    job = replica.looks(LIMITS.check_seconds)
    assert job is not None
    assert (job.oldest_ms, job.bytes_max) == (None, None), "the leader has not answered"
    ext, answered = replica.told[-1]
    assert (ext["member"], ext["keptSeconds"], ext["keptBytes"]) == ("n1", "3600", "0")

    def answer(seconds: int, code: int = ResponseCode.SUCCESS) -> None:
        fields = {"keptSeconds": str(seconds), "keptBytes": "0"}
        answered(Response(code=code, opaque=0, flag=1, ext=fields), b"")

    for seconds, code in ((-1, ResponseCode.SUCCESS), (60, ResponseCode.SERVICE_NOT_AVAILABLE)):
        answer(seconds, code)
        again = replica.service.next_job()
        assert again is not None
        assert again.oldest_ms is None
    answer(7200)
    job = replica.service.next_job()
    assert job is not None
    assert job.oldest_ms == replica.now_ms - 7_200_000, "another replica is to keep them for two hours"
    replica.now += 3 * LIMITS.tell_seconds + 1
    job = replica.service.next_job()
    assert job is not None
    assert job.oldest_ms is None, "the answer is too old"
