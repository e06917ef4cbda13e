"""Consumer offsets, with the log's rounds in the test's hands."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import structlog.testing

from mq.broker.consume.offset_corrections import OffsetCorrections
from mq.broker.consume.offsets import Offsets
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import CommitOffsets, PutTopic, ResetOffset, TopicConfig
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.offsets import UpdateConsumerOffset, UpdateConsumerOffsetExt
from tests.support.appender_rounds import Rounds
from tests.support.broker_contexts import context_of


class NoFencing:
    def fences(self, *_: object, **__: object) -> bool:
        return False


class Stage:
    """The offsets of a broker with the topic T, which has one queue."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.metadata.apply(PutTopic(config=TopicConfig(name="T", read_queues=1, write_queues=1), timestamp_ms=1))
        self.rounds = Rounds(self.metadata)
        self.tails = QueueTails(self.metadata, lambda topic, queue_id: QueueOffset(0))
        self.tails.get("T", 0).next_offset = QueueOffset(100)
        nothing: Any = None
        self.context = context_of(
            settings=BrokerSettings(),
            metadata=self.metadata,
            store=nothing,
            appender=self.rounds,
            queue_tails=self.tails,
            log=structlog.get_logger(),
            wall_clock_ms=lambda: 0,
            reads__read=lambda on_read: on_read(True),
            client_id=lambda connection, group: None,
            clients__consumer_group=lambda group: None,
        )
        self.offsets = Offsets(
            self.context,
            fencing=NoFencing(),  # type: ignore[arg-type]
            in_memory=lambda position: True,
        )

    def reset(self, offset: int) -> None:
        """Two commands."""
        self.offsets.reset("G", "T", {0: QueueOffset(offset)}, lambda known: None, restart=True)

    def pull(self, offset: int) -> int | None:
        return self.offsets.reset_to("G", "T", 0, QueueOffset(offset))

    def commit(self, offset: int) -> None:
        """One command, if it counts."""
        self.gather(offset)
        self.offsets.replicate_gathered()

    def gather(self, offset: int) -> None:
        self.offsets.gather("G", "T", 0, QueueOffset(offset))

    def store(self, offset: int) -> None:
        """A commit that is in the log when this returns."""
        self.commit(offset)
        self.rounds.commit(1)

    def check_commit(self, offset: int) -> None:
        """A commit at this moment counts."""
        self.store(offset)
        assert self.stored == offset

    @property
    def stored(self) -> int | None:
        return self.metadata.consumer_offset("G", "T", 0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_consumer_starting_at_an_earlier_reset_cannot_undo_a_later_one(stage: Stage) -> None:
    stage.reset(50)
    stage.rounds.commit(2)
    stage.reset(20)
    assert stage.pull(50) is None  # the second one is still on its way
    stage.rounds.commit(2)
    stage.commit(60)
    assert stage.rounds.waiting == 0
    assert stage.pull(60) == 20
    assert stage.pull(20) is None
    stage.check_commit(21)


def test_two_resets_at_the_same_time(stage: Stage) -> None:
    stage.reset(50)
    stage.reset(20)
    stage.rounds.commit(2)
    assert stage.pull(50) is None
    stage.commit(60)
    stage.rounds.commit(2)
    assert stage.rounds.waiting == 0
    stage.commit(70)
    assert stage.rounds.waiting == 0
    assert (stage.stored, stage.pull(70)) == (20, 20)


def test_commit_gathered_before_an_offset_reset_is_dropped(stage: Stage) -> None:
    stage.gather(60)
    stage.reset(20)
    stage.rounds.commit(2)
    stage.offsets.replicate_gathered()
    assert stage.rounds.waiting == 0
    assert stage.stored == 20


def test_offsets_gathered_before_resigning_are_dropped(stage: Stage) -> None:
    """Meanwhile another leader has reset the offset."""
    stage.gather(60)
    stage.offsets.resign()
    stage.metadata.apply(ResetOffset(group="G", topic="T", queue_id=0, offset=QueueOffset(20)))
    stage.offsets.replicate_gathered()
    assert stage.rounds.waiting == 0
    stage.check_commit(21)


def test_backward_commit_drops_gathered_offsets(stage: Stage) -> None:
    reader: Any = object()
    stage.store(50)
    stage.offsets.record_pull(reader, "G", "T", 0, QueueOffset(10))
    stage.gather(60)
    stage.offsets.commit(reader, "G", "T", 0, QueueOffset(11))
    stage.rounds.commit(2)
    stage.offsets.replicate_gathered()
    assert (stage.rounds.waiting, stage.stored) == (0, 11)
    stage.check_commit(12)


def test_repeated_read_is_not_mistaken_for_a_consumer_awaiting_a_reset(stage: Stage) -> None:
    """A reset forgets who read from further back: what comes late from there does not undo it."""
    reader: Any = object()
    stage.store(50)
    stage.offsets.record_pull(reader, "G", "T", 0, QueueOffset(10))
    stage.reset(40)
    stage.rounds.commit(2)
    stage.offsets.commit(reader, "G", "T", 0, QueueOffset(11))
    assert stage.pull(40) is None
    stage.offsets.commit(reader, "G", "T", 0, QueueOffset(11))
    assert (stage.rounds.waiting, stage.stored) == (0, 40)


def test_commit_at_the_wrong_moment_is_refused_with_a_reason(stage: Stage) -> None:
    reader: Any = object()
    other: Any = object()
    request = UpdateConsumerOffset(
        ext=UpdateConsumerOffsetExt(consumer_group="G", topic="T", queue_id=0, commit_offset=QueueOffset(51))
    )
    stage.store(50)
    stage.offsets.record_pull(reader, "G", "T", 0, QueueOffset(10))
    stage.offsets.commit(reader, "G", "T", 0, QueueOffset(11))
    with pytest.raises(RequestRefused, match=r"is being reset right now: commit again$"):
        stage.offsets.handle_update(Call(other, request, b"", 0))
    stage.rounds.commit(2)
    stage.reset(20)
    with pytest.raises(RequestRefused, match=r"is being reset right now: commit again$"):
        stage.offsets.handle_update(Call(other, request, b"", 0))
    stage.rounds.commit(2)
    with pytest.raises(RequestRefused, match=r"was reset, and no consumer has continued from there yet$"):
        stage.offsets.handle_update(Call(other, request, b"", 0))


@pytest.mark.parametrize("oneway", [False, True])
def test_commit_of_a_negative_offset_does_not_delay_others(oneway: bool, stage: Stage) -> None:
    client: Any = object()
    stage.store(50)
    stage.offsets.record_pull(client, "G", "T", 0, QueueOffset(-2))
    request = UpdateConsumerOffset(
        opaque=1,
        flag=2 if oneway else 0,
        ext=UpdateConsumerOffsetExt(consumer_group="G", topic="T", queue_id=0, commit_offset=QueueOffset(-2)),
    )
    if oneway:
        assert stage.offsets.handle_update(Call(client, request, b"", 0)) is None
    else:
        with pytest.raises(RequestRefused) as refused:
            stage.offsets.handle_update(Call(client, request, b"", 0))
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
    assert stage.rounds.waiting == 0
    stage.check_commit(60)


def test_reset_to_an_invalid_offset_changes_nothing(stage: Stage) -> None:
    with pytest.raises(CommandInvalid):
        stage.reset(-1)
    assert stage.rounds.waiting == 0
    stage.check_commit(60)


def test_commit_with_a_pull_of_an_invalid_group_changes_nothing(stage: Stage) -> None:
    """Gathered commits enter the log by a timer, where a name that is refused would end the broker."""
    connection: Any = None
    stage.offsets.commit(connection, "no group!", "T", 0, QueueOffset(5))
    stage.offsets.commit(connection, "G", "T", 0, QueueOffset(7))
    stage.offsets.replicate_gathered()
    stage.rounds.commit(1)
    assert stage.stored == 7


def test_commit_up_to_last_entry_in_log_is_accepted(stage: Stage) -> None:
    """A consumer may have read from a follower that has applied more than the leader."""
    stage.tails.get("T", 0).next_offset = QueueOffset(120)
    stage.check_commit(120)


def test_commit_gathered_before_topic_deletion_is_dropped(stage: Stage) -> None:
    stage.gather(60)
    stage.tails.reset("T")
    stage.commit(70)
    assert stage.rounds.waiting == 0
    stage.offsets.replicate_gathered()
    assert stage.rounds.waiting == 0


def test_commit_dropped_with_its_topic_does_not_hide_later_commits(stage: Stage) -> None:
    stage.gather(60)
    stage.tails.reset("T")  # below format level 3, offsets begin at 0 again
    stage.offsets.replicate_gathered()
    assert stage.rounds.waiting == 0
    stage.tails.get("T", 0).next_offset = QueueOffset(5)
    stage.check_commit(4)


def test_offset_beyond_end_is_corrected_once_by_new_leader(stage: Stage) -> None:
    for group, offset in (("G", 130), ("H", 100), ("I", 101)):
        stage.metadata.apply(CommitOffsets(offsets=[(group, "T", 0, QueueOffset(offset))]))
    corrections = OffsetCorrections(stage.context, offsets=stage.offsets)
    corrections.correct_some()
    assert stage.rounds.waiting == 0
    corrections.lead()
    with structlog.testing.capture_logs() as logged:
        corrections.correct_some()
        stage.rounds.commit(4)
    assert [stage.metadata.consumer_offset(group, "T", 0) for group in "GHI"] == [100, 100, 100]
    named = sorted((event["consumer_group"], event["offset"], event["end"]) for event in logged)
    assert named == [("G", 130, 100), ("I", 101, 100)]
    corrections.correct_some()
    assert stage.rounds.waiting == 0


def test_resigned_leader_does_not_correct_offsets(stage: Stage) -> None:
    stage.metadata.apply(CommitOffsets(offsets=[("G", "T", 0, QueueOffset(130))]))
    corrections = OffsetCorrections(stage.context, offsets=stage.offsets)
    corrections.lead()
    corrections.resign()
    corrections.correct_some()
    assert stage.rounds.waiting == 0
