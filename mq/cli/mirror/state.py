"""The state of a mirror: its queues, how far each is copied, and the maps of their offsets. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from mq.cli.mirror.offset_map import OffsetMap

FORMAT: Final = 1


class MirroredQueue(msgspec.Struct):
    """A source queue, its target queue, and how far it is copied.

    Attributes:
        number: identifies the queue in this mirror; never used for another queue.
        next_offset: the source offset of the next message to copy; None to begin with the first message.
        target_next: the target offset behind the last copy; None if the target queue was not read yet.
        stretches: the map of offsets, see `OffsetMap`.
        gone: ranges of messages that the source deleted before they were copied: first offset, and end.
        skipped: source offsets of messages that the target refused.
    """

    number: int
    topic: str
    broker: str
    queue_id: int
    target_topic: str
    target_broker: str
    target_queue: int
    next_offset: int | None = None
    target_next: int | None = None
    stretches: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    gone: list[tuple[int, int]] = msgspec.field(default_factory=list)
    skipped: list[int] = msgspec.field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}/{self.queue_id}"

    def map(self) -> OffsetMap:
        """Return the map of the queue's offsets."""
        return OffsetMap(self.stretches)

    def add_copies(self, source: int, target: int, count: int) -> None:
        """Record that the next messages were copied. Raises ValueError unless they are behind all earlier ones."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and (source, target) == (last[0] + last[2], last[1] + last[2]):
            self.stretches[-1] = (last[0], last[1], last[2] + count)
        else:
            self.stretches = list(OffsetMap([*self.stretches, (source, target, count)]))
        self.next_offset = source + count
        self.target_next = target + count

    def lose(self, first: int, behind: int) -> None:
        """Record that the source deleted messages before they were copied: ``first`` to before ``behind``."""
        self.gone.append((first, behind))
        self.next_offset = behind

    def skip(self, offset: int) -> None:
        """Record that the target refused the message at this offset, and continue after it."""
        self.skipped.append(offset)
        self.next_offset = offset + 1


class MirrorState(msgspec.Struct):
    """The content of the state file.

    Attributes:
        mirror_id: distinguishes the sequence numbers of this mirror from those of others.
        source, target: the broker groups of both sides, to recognize a state file that belongs to others.
        wanted, unwanted: the patterns and exclusions of `Choice`.
    """

    format: int
    mirror_id: str
    source: list[str]
    target: list[str]
    queues: list[MirroredQueue] = msgspec.field(default_factory=list)
    wanted: list[str] = msgspec.field(default_factory=list)
    unwanted: list[str] = msgspec.field(default_factory=list)

    def producer(self, queue: MirroredQueue) -> str:
        """Return the producer id of the copies of a queue."""
        return f"mirror-{self.mirror_id}-{queue.number}"
