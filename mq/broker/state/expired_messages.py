"""Expires messages by the retention time of their topic, although the log has them.

The leader decides by its clock up to where messages of a queue are too old, and the command says so to all replicas, at
the same place in the log. So they agree about the first message of every queue. Nothing of it is kept besides the
consume queues: these begin later from then on, and what derives them from the log again applies the command again. If
the log no longer has the command, it does not have the messages before it either.
"""

from __future__ import annotations

from typing import Final

from mq.broker.state.table import TableCommand, check_range
from mq.protocol.names import check_topic
from mq.protocol.numbers import QueueOffset

ROWS_MAX: Final = 200
"""Queues in one command."""
_INT64_MAX: Final = 2**63 - 1


class ExpireMessages(TableCommand, frozen=True, tag="expire_messages"):
    """Make queues begin at these offsets. Earlier messages are not served any more.

    Each row is a topic, a queue id and the offset. A queue that begins later already is not changed, and one that ends
    earlier becomes empty.
    """

    rows: list[tuple[str, int, QueueOffset]]

    def check(self) -> None:
        check_range("number of rows", len(self.rows), 1, ROWS_MAX)
        for topic in {topic for topic, _, _ in self.rows}:
            check_topic(topic)
        for _, queue_id, offset in self.rows:
            check_range("queue_id", queue_id, 0, 2**31 - 1)
            check_range("offset", offset, 0, _INT64_MAX)


def expired_by(command: object) -> tuple[tuple[str, int, QueueOffset], ...]:
    """Return the queues in which a command expires messages, each with its new first offset."""
    return tuple(command.rows) if isinstance(command, ExpireMessages) else ()
