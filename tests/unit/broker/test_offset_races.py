"""Consumer offsets, with the log's rounds in the test's hands."""

from __future__ import annotations

from typing import Any

from mq.broker.consuming.offsets import Offsets
from mq.broker.state.commands import PutTopic, TopicConfig
from mq.broker.state.metadata import Metadata
from tests.unit.broker.rounds import Rounds


class NoLocks:
    def fences(self, *_: object, **__: object) -> bool:
        return False


class Stage:
    """The offsets of a broker with the topic T, which has one queue."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.metadata.apply(PutTopic(config=TopicConfig(name="T", read_queues=1, write_queues=1), timestamp_ms=1))
        self.rounds = Rounds(self.metadata)
        nothing: Any = None
        self.offsets = Offsets(
            metadata=self.metadata,
            store=nothing,
            appender=self.rounds,  # type: ignore[arg-type]
            read=lambda on_read: on_read(True),
            locks=NoLocks(),  # type: ignore[arg-type]
            in_memory=lambda position: True,
        )

    def reset(self, offset: int) -> None:
        """Two commands."""
        self.offsets.reset("G", "T", {0: offset}, lambda known: None, restart=True)

    def pull(self, offset: int) -> int | None:
        return self.offsets.reset_to("G", "T", 0, offset)

    def commit(self, offset: int) -> None:
        """One command, if it counts."""
        self.offsets.gather("G", "T", 0, offset)
        self.offsets.replicate_gathered()

    @property
    def stored(self) -> int | None:
        return self.metadata.consumer_offset("G", "T", 0)


def test_a_consumer_that_begins_at_an_earlier_reset_cannot_undo_a_later_one() -> None:
    stage = Stage()
    stage.reset(50)
    stage.rounds.commit(2)
    stage.reset(20)
    assert stage.pull(50) is None  # the second one is still on its way
    stage.rounds.commit(2)
    stage.commit(60)
    assert stage.rounds.waiting == 0
    assert stage.pull(60) == 20
    assert stage.pull(20) is None
    stage.commit(21)
    stage.rounds.commit(1)
    assert stage.stored == 21


def test_two_resets_at_the_same_time() -> None:
    stage = Stage()
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
