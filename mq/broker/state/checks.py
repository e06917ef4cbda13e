"""How far checks of half messages are: which of those that nobody ended were asked about how often.

Half messages stay where they are, in the order in which they came. For each number of checks there is an offset in
their queue: what is below was checked so often. So a million open transactions need no counter each.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mq.broker.state.parts import PartCommand, SnapshotDamaged, check_range
from mq.protocol.names import HALF_TOPIC

CHECKS_MAX = 100
"""Nobody is asked more often about one message."""

_OFFSET_MAX = 2**63 - 1


class AdvanceChecks(PartCommand, frozen=True, tag="advance_checks"):
    """Open half messages below ``offset`` were checked ``number`` times. A lower offset changes nothing."""

    number: int
    offset: int

    def check(self) -> None:
        """See `PartCommand.check`."""
        check_range("number", self.number, 1, CHECKS_MAX)
        check_range("offset", self.offset, 0, _OFFSET_MAX)


class Checks:
    """The offsets by number of checks, from 1; see the module."""

    COMMANDS: tuple[type[PartCommand], ...] = (AdvanceChecks,)

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}

    def apply(self, command: PartCommand) -> None:
        """See `Part.apply`."""
        assert isinstance(command, AdvanceChecks), type(command).__name__
        self.offsets[command.number] = max(command.offset, self.offsets.get(command.number, 0))

    def capture(self) -> Callable[[], object]:
        """See `Part.capture`."""
        rows = sorted(self.offsets.items())
        return lambda: rows or None

    def restore(self, state: object) -> None:
        """See `Part.restore`."""
        rows = msgspec.convert(state or [], list[tuple[int, int]])
        if any(not 1 <= number <= CHECKS_MAX or offset < 0 for number, offset in rows):
            raise SnapshotDamaged("offsets of checks that cannot be")
        self.offsets = dict(rows)

    def topic_deleted(self, topic: str) -> None:
        """See `Part.topic_deleted`."""
        if topic == HALF_TOPIC:
            self.offsets = {}

    def group_deleted(self, group: str) -> None:
        """See `Part.group_deleted`. Checks are of no group."""
