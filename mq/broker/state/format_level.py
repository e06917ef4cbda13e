"""The format level of a group: from a level on, the log may contain what older software does not understand.

A group begins at level 1. The leader proposes the next level when all members have reported that they support it. The
level rises with that log entry, at the same position on each replica, and its features are not used before. A replica
that does not support the level stops there, and reports both numbers.

Levels never decrease, and each includes those before it:

2. Topics that were created before topics had identities get one, so that a reader of any topic notices when it was
   deleted and recreated. Users may be created by request (`mq.broker.state.users`). Replicas that call each other's
   client ports with TLS bind their proofs to the certificate (`mq.broker.replication.peer_authentication`).
3. The queue offsets of a topic continue the offsets of a deleted topic of its name (`mq.broker.state.former_topics`).
   Queues that are added to a topic are recorded for the groups that had offsets in it
   (`mq.broker.state.younger_queues`).
4. Schedules (`mq.broker.state.schedules`). A half message may have several messages and consumer offsets
   (`mq.broker.transaction.staged_sets`).
5. Consumer groups have attributes, such as the factor of priorities. A message may be in the queue of a lite topic, too
   (`mq.store.dispatch.LitePlace`), and lite topics have offsets of their own (`mq.broker.state.lite_offsets`).
6. Topics may keep their messages for less time than the log (`mq.broker.state.expired_messages`). The group
   knows how much of its log is archived (`mq.broker.state.archived_log`).
7. A consumer may put a popped message off without having its attempt counted
   (`mq.broker.state.pop_checkpoints.DeferMessage`). Consumer groups have filter programs
   (`mq.broker.state.filter_programs`). Files of the log may be deleted locally
   while their messages are read from the archive (`mq.broker.state.archived_log.NoteTier`). Deleted topics can be
   restored (`mq.broker.state.deleted_topics`).
8. Topics may keep the newest message of each key (`mq.broker.admin.topic_compaction`): each replica keeps the files of
   the log that have messages of them. Users and topics have quotas
   (`mq.broker.state.user_quotas`). It is known where topics were created (`mq.broker.state.topic_births`). Clients
   that an operator has removed from a group stay out of it whoever leads (`mq.broker.state.removed_members`).
   Producers with generated ids cannot push others out of the table of sequence numbers
   (`mq.broker.state.producer_sequences`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mq.broker.state.table import CommandUnknown, SnapshotDamaged, StateTable, TableCommand, check_range

LEVEL_FIRST: Final = 1
LEVEL_OF_USERS: Final = 2
LEVEL_OF_BOUND_PROOFS: Final = 2
LEVEL_OF_CONTINUED_OFFSETS: Final = 3
LEVEL_OF_YOUNGER_QUEUES: Final = 3
LEVEL_OF_SCHEDULES: Final = 4
LEVEL_OF_TRANSACTION_SETS: Final = 4
LEVEL_OF_LITE_TOPICS: Final = 5
LEVEL_OF_GROUP_ATTRIBUTES: Final = 5
LEVEL_OF_TOPIC_RETENTION: Final = 6
LEVEL_OF_ARCHIVE: Final = 6
LEVEL_OF_SUSPENDED_MESSAGES: Final = 7
LEVEL_OF_FILTERS: Final = 7
LEVEL_OF_TIERS: Final = 7
LEVEL_OF_DELETED_TOPICS: Final = 7
LEVEL_OF_COMPACTION: Final = 8
LEVEL_OF_QUOTAS: Final = 8
LEVEL_OF_TOPIC_BIRTHS: Final = 8
LEVEL_OF_REMOVED_MEMBERS: Final = 8
LEVEL_OF_GENERATED_PRODUCERS: Final = 8
LEVEL_NEWEST: Final = 8
"""Up to which level this version of the software understands the log."""
FEATURES: Final = {
    2: ("topic-identities", "users", "bound-proofs"),
    3: ("continued-offsets", "younger-queues"),
    4: ("schedules", "transaction-sets"),
    5: ("group-attributes", "lite-topics"),
    6: ("topic-retention", "archive"),
    7: ("suspended-messages", "filter-programs", "archive-tier", "deleted-topics"),
    8: ("compacted-topics", "quotas", "topic-births", "kept-out-clients", "generated-producers"),
}
"""The feature that each level allows, in a word each."""
_LEVEL_MAX: Final = 2**31 - 1


class RaiseLevel(TableCommand, frozen=True, tag="raise_level"):
    """Raise the format level of the group. A level that is not above the current one changes nothing."""

    level: int
    timestamp_ms: int

    def check(self) -> None:
        check_range("level", self.level, LEVEL_FIRST, _LEVEL_MAX)
        check_range("timestamp_ms", self.timestamp_ms, 0, 2**63 - 1)


class FormatLevel(StateTable):
    """The format level at the applied end of the log. The metadata changes what depends on it.

    Args:
        newest: the highest supported level.

    Attributes:
        level: the current level.
    """

    def __init__(self, newest: int = LEVEL_NEWEST) -> None:
        self.level = LEVEL_FIRST
        self.newest = newest

    def apply(self, command: TableCommand) -> None:
        """Raise the level. Raises CommandUnknown if this software does not support it."""
        assert isinstance(command, RaiseLevel), f"{command} is not a command of the format level"
        if command.level > self.newest:
            raise CommandUnknown(_too_new(command.level, self.newest))
        self.level = max(self.level, command.level)

    def capture(self) -> Callable[[], object]:
        """Capture the level; None for level 1, so that software without format levels can read the snapshot."""
        level = self.level
        return lambda: None if level == LEVEL_FIRST else level

    def restore(self, state: object) -> None:
        level = LEVEL_FIRST if state is None else msgspec.convert(state, Annotated[int, Meta(ge=1, le=_LEVEL_MAX)])
        if level > self.newest:
            raise SnapshotDamaged(_too_new(level, self.newest))
        self.level = level


def announced_level(format_level_max: int | None) -> int:
    """Return the highest level that a replica reports as supported: `LEVEL_NEWEST`, or the setting if lower."""
    return LEVEL_NEWEST if format_level_max is None else min(LEVEL_NEWEST, format_level_max)


def next_level(current: int, own: int, others: Iterable[int | None]) -> int:
    """Return the level that a leader may propose: the highest that all members support, at least ``current``.

    Args:
        own: the highest level that the leader supports.
        others: the same for each other member; None if it is not connected.
    """
    levels = [own, *(LEVEL_FIRST if level is None else level for level in others)]
    return max(current, min(levels))


def _too_new(level: int, newest: int) -> str:
    return f"the group is at format level {level}, and this version of the software understands none above {newest}"
