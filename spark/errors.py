"""What can go wrong between a reader and the brokers, each with the numbers that a user needs to act on it."""

from __future__ import annotations


class AnswerDamaged(Exception):
    """A broker's answer contradicts itself: its bytes are not the records that it announces.

    Nothing of the answer may be used. The same range can be read from another replica.
    """


class BodyUnreadable(Exception):
    """A compressed body cannot be inflated; the record is as its producer sent it, on every replica."""

    def __init__(self, topic: str, broker_name: str, queue_id: int, queue_offset: int, reason: str) -> None:
        super().__init__(
            f"topic {topic!r}, queue {broker_name}:{queue_id}, offset {queue_offset}: the body cannot be inflated "
            f"({reason}); option onBadBody=keep shows such bodies as they are stored"
        )
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason


class DataLoss(Exception):
    """Messages of a range are gone, or the range is not there any more; says which, how many, and what helps."""


class ReadFailed(Exception):
    """No replica has sent anything for too long; says what each one answered last."""


class RowRefused(Exception):
    """A row cannot be a message. ``row`` counts from 0 in what was looked at."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class WriteFailed(Exception):
    """Rows were refused for good, or nobody has taken any for too long; says which rows, and what was answered last."""
