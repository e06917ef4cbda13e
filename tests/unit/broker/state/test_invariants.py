"""`check_invariants` of the replicated state names whatever is broken."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable

import pytest

from mq.broker.state.commands import (
    CommitOffsets,
    DeleteTopic,
    ForbidTopic,
    GroupConfig,
    LockQueues,
    PutGroup,
    PutTopic,
    ResetOffset,
    TopicConfig,
)
from mq.broker.state.completion_marks import CompleteEntries, SkipEntries
from mq.broker.state.format_level import RaiseLevel
from mq.broker.state.former_topics import FormerTopic
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import AckMessages, Checkpoint, DeferMessage, PopMessages, PopQueue
from mq.protocol.numbers import FIRST_OFFSET, NO_OFFSET, PhysicalOffset, QueueOffset

KEY = ("G", "T", 0)
ORDERED = ("G", "T", 1)


def put_topic(name: str, queues: int = 2) -> PutTopic:
    return PutTopic(config=TopicConfig(name=name, read_queues=queues, write_queues=queues), timestamp_ms=1000)


def pop(queue_id: int, start: int, *, taken: int = 0b111, attempt: str | None = None) -> PopMessages:
    return PopMessages(
        group="G",
        topic="T",
        queue_id=queue_id,
        before=NO_OFFSET,
        next_offset=QueueOffset(start + 8),
        start=QueueOffset(start),
        pop_time_ms=100,
        invisible_ms=1000,
        taken=taken,
        attempt=attempt,
    )


def filled() -> Metadata:
    """State with something in every table."""
    metadata = Metadata()
    metadata.apply(RaiseLevel(level=3, timestamp_ms=1))
    for name in ("T", "U", "V"):
        metadata.apply(put_topic(name))
    metadata.apply(PutGroup(config=GroupConfig(name="G"), timestamp_ms=1000))
    metadata.apply(CommitOffsets(offsets=[("H", "T", 0, QueueOffset(5)), ("H", "U", 0, QueueOffset(5))]))
    metadata.apply(put_topic("T", 4))
    metadata.apply(ResetOffset(group="H", topic="T", queue_id=0, offset=QueueOffset(2), restart=True))
    metadata.apply(LockQueues(group="H", client_id="c", queues=[("T", 0), ("T", 1)]))
    metadata.apply(ForbidTopic(group="H", topic="T", forbidden=True))
    for topic in ("U", "V"):
        metadata.apply(DeleteTopic(name=topic, timestamp_ms=2000, continued=True), lambda _: {0: QueueOffset(7)})
    metadata.apply(put_topic("U"))
    metadata.apply(SkipEntries(topic="W", queue_id=0, offset=QueueOffset(10)))
    metadata.apply(CompleteEntries(topic="W", queue_id=0, offsets=[QueueOffset(12)]))
    for number in range(3):
        metadata.sequences.add("P", 10 * number, 10 * number + 3, PhysicalOffset(100 * number), 1)
    metadata.apply(pop(0, 0))
    metadata.apply(pop(1, 0, attempt="a"))
    metadata.apply(
        DeferMessage(
            group="G",
            topic="T",
            queue_id=1,
            start=FIRST_OFFSET,
            pop_time_ms=100,
            offset=QueueOffset(1),
            new_pop_time_ms=200,
            invisible_ms=5,
        )
    )
    metadata.check_invariants()
    return metadata


def ordered_with(metadata: Metadata, **given: object) -> None:
    queue = metadata.pops.queues[ORDERED]
    assert queue.ordered is not None
    queue.ordered = queue.ordered._replace(**given)  # type: ignore[arg-type]


def put_open(metadata: Metadata, start: int, bits: int) -> None:
    metadata.pops.queues[KEY].open[QueueOffset(start), 100] = Checkpoint(1000, bits)


def list_empty_queue(metadata: Metadata) -> None:
    metadata.pops.queues["G", "T", 3] = PopQueue()


def list_topic_without_queue(metadata: Metadata) -> None:
    metadata.pops._of_topics["X"] = set()


def unlist_queue(metadata: Metadata) -> None:
    metadata.pops._of_topics["T"].discard(KEY)


def list_queue_twice(metadata: Metadata) -> None:
    metadata.pops._of_topics["X"] = {KEY}


def age_epoch(metadata: Metadata) -> None:
    metadata.pops.queues[KEY].epoch = 9


def overlap_ranges(metadata: Metadata) -> None:
    metadata.sequences._own_ids.windows["P"].firsts[1] = 2


def lose_place(metadata: Metadata) -> None:
    metadata.sequences._own_ids.windows["P"].positions = array("q", [1])


def lose_ranges(metadata: Metadata) -> None:
    window = metadata.sequences._own_ids.windows["P"]
    window.firsts, window.extras, window.positions = array("q"), array("I"), array("q")


def shift_start(metadata: Metadata) -> None:
    metadata.sequences._own_ids.windows["P"].stored_from = 99


def mistake_for_generated(metadata: Metadata) -> None:
    parts = metadata.sequences._own_ids, metadata.sequences._generated_ids
    parts[1].replace(parts[0].windows)


BROKEN: dict[str, Callable[[Metadata], object]] = {
    "G in T/3 is listed with nothing open": list_empty_queue,
    "G in T/0 is not listed by its topic": unlist_queue,
    "G in T/0 is of epoch 9": age_epoch,
    "from 0 on, popped at 100: the open messages are 0": lambda metadata: put_open(metadata, 0, 0),
    "a span of 1025": lambda metadata: put_open(metadata, 0, 1 << 1024),
    "a negative offset": lambda metadata: put_open(metadata, -1, 1),
    "open up to 9, examined up to 8": lambda metadata: ordered_with(metadata, bits=1 << 8),
    "open up to 0, examined up to 8": lambda metadata: ordered_with(metadata, bits=0),
    "in order from 0 to 8: 8 is noted": lambda metadata: ordered_with(metadata, counts={8: 1}),
    "in order from 0 to 8: 9 is noted": lambda metadata: ordered_with(metadata, later={9: 1}),
    "3 queues are listed by topic, there are 2": list_queue_twice,
    "topics without a queue are listed": list_topic_without_queue,
    "2 checkpoints were counted, there are 1": lambda metadata: setattr(metadata.pops, "count", 2),
    "checkpoints were counted by group": lambda metadata: setattr(metadata.pops, "of_groups", Counter(X=1)),
    "marks from 10 on end with an empty one": lambda metadata: metadata.marks.queues["W", 0].bits.append(0),
    "marks below 10": lambda metadata: metadata.marks.queues["W", 0].bits.__setitem__(0, 0b10001),
    "10 is finished, everything below": lambda metadata: metadata.marks.queues["W", 0].bits.__setitem__(0, 0b100),
    "finished below -1": lambda metadata: setattr(metadata.marks.queues["W", 0], "low", -1),
    "rows were counted, there are": lambda metadata: setattr(metadata.former_topics, "_rows", 99),
    "begun, not there": lambda metadata: metadata.former_topics.begins.update(X=()),
    "deleted, and there": lambda metadata: metadata.former_topics.deleted_topics.update(T=FormerTopic()),
    "numbers from 2 on are stored twice, those up to 3 are": overlap_ranges,
    "3 ranges at 1 places": lose_place,
    "0 ranges, at most": lose_ranges,
    "99 to -1 are stored": shift_start,
    "is listed as wide: True": lambda metadata: metadata.sequences._own_ids.wide.update(P=None),
    "P is in the other part": mistake_for_generated,
    "7 ranges were counted, there are 3": lambda metadata: setattr(metadata.sequences._own_ids, "count", 7),
    "topic T is listed as X": lambda metadata: metadata.topics.update(X=metadata.topics["T"]),
    "group G is listed as X": lambda metadata: metadata.groups.update(X=metadata.groups["G"]),
    "identities of no topic": lambda metadata: metadata.topic_identities.update(X="1"),
    "two topics have one identity": lambda metadata: metadata.topic_identities.update(T="1", U="1"),
    "G has offsets in X, which does not exist": lambda metadata: metadata.consumer_offsets.to_change(("G", "X")),
    "H is at 3 of U/0, which begins at 7": lambda metadata: metadata.consumer_offsets["H", "U"].update(
        {0: QueueOffset(3)}
    ),
    "H has no reset in U, and a table of them": lambda metadata: metadata.offset_resets.to_change(("H", "U")),
    "H was reset to 2 of T/0, and is at 4": lambda metadata: metadata.consumer_offsets["H", "T"].update(
        {0: QueueOffset(4)}
    ),
    "3 locks were counted, there are 2": lambda metadata: setattr(metadata, "lock_count", 3),
    "a table without locks": lambda metadata: metadata.queue_locks.to_change(("X", "T")),
    "of no topic": lambda metadata: metadata.forbidden.add(("H", "X")),
    "queues are younger than the offsets": lambda metadata: metadata.younger_queues.topic_grew("T", 2, ["X"]),
}


@pytest.mark.parametrize("named", BROKEN)
def test_inconsistent_state_is_reported(named: str) -> None:
    metadata = filled()
    BROKEN[named](metadata)
    with pytest.raises(AssertionError, match=named):
        metadata.check_invariants()


def test_state_is_whole_after_acknowledgements() -> None:
    metadata = filled()
    rows = [(*KEY, FIRST_OFFSET, 100, 0b111), (*ORDERED, FIRST_OFFSET, 100, 0b111)]
    metadata.apply(AckMessages(rows=rows))
    metadata.check_invariants()
    assert (metadata.pops.count, metadata.pops.queues, metadata.pops.of_groups) == (0, {}, {})
