"""Errors of readers and writers, each with the numbers that a user needs to act on it."""

from __future__ import annotations


class AnswerDamaged(Exception):
    """A broker's response is inconsistent: its bytes are not the records that it declares.

    Nothing of the response may be used. The same range can be read from another replica.
    """


class BodyUnreadable(Exception):
    """A compressed body cannot be decompressed. Every replica has the record as its producer sent it."""

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
    """Messages of a range are deleted, or the range no longer exists. The text has their number and the remedy."""


class ReadFailed(Exception):
    """No replica has sent anything for too long. The message has the last response of each."""


class RowInvalid(Exception):
    """A row cannot be a message. ``row`` is its number within the checked rows, from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class WriteFailed(Exception):
    """Brokers refused rows, or accepted none for too long. The text has the rows and the last response."""
