"""Counts how often each open half message was checked.

Half messages stay in their queue in order of arrival. For each number of checks there is an offset in the queue:
everything below it was checked that often. So a million open transactions need no counter each. Half messages that were
not to be checked yet at their turn are postponed: a bounded list of offsets.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mq.broker.limits import CHECKS_MAX
from mq.broker.state.table import SnapshotDamaged, StateTable, TableCommand, check_range
from mq.protocol.names import HALF_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset

PUT_OFF_MAX = 1000
"""Postponed half messages."""

_OFFSET_MAX = 2**63 - 1
_PUT_OFF = 0
"""The key of the list of postponed half messages in a snapshot; other keys are numbers of checks."""


class AdvanceChecks(TableCommand, frozen=True, omit_defaults=True, tag="advance_checks"):
    """Record that open half messages below ``offset`` were checked ``number`` times, except those in ``put_off``.

    A lower offset changes nothing. ``put_off``, if given, replaces the list of postponed ones.
    """

    number: int
    offset: QueueOffset
    put_off: list[QueueOffset] | None = None

    def check(self) -> None:
        check_range("number", self.number, 1, CHECKS_MAX)
        check_range("offset", self.offset, 0, _OFFSET_MAX)
        put_off = self.put_off or [FIRST_OFFSET]
        check_range("number of those put off", len(put_off), 0, PUT_OFF_MAX)
        check_range("offset put off", min(put_off), 0, _OFFSET_MAX)
        check_range("offset put off", max(put_off), 0, _OFFSET_MAX)


class CheckCursors(StateTable):
    """Maps each number of checks, from 1, to the offset below which half messages were checked so often.

    Attributes:
        put_off: the postponed half messages, ascending; some may be ended.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (AdvanceChecks,)

    def __init__(self) -> None:
        self.offsets: dict[int, QueueOffset] = {}
        self.put_off: tuple[QueueOffset, ...] = ()

    def apply(self, command: TableCommand) -> None:
        assert isinstance(command, AdvanceChecks), type(command).__name__
        self.offsets[command.number] = max(command.offset, self.offsets.get(command.number, FIRST_OFFSET))
        if command.put_off is not None:
            self.put_off = tuple(sorted(set(command.put_off)))

    def capture(self) -> Callable[[], object]:
        rows = [*((_PUT_OFF, offset) for offset in self.put_off), *sorted(self.offsets.items())]
        return lambda: rows or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[int, QueueOffset]])
        if any(not 0 <= number <= CHECKS_MAX or offset < 0 for number, offset in rows):
            raise SnapshotDamaged("a check number or an offset is out of range")
        self.offsets = {number: offset for number, offset in rows if number != _PUT_OFF}
        self.put_off = tuple(offset for number, offset in rows if number == _PUT_OFF)

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests."""
        count, in_order = len(self.put_off), sorted(set(self.put_off))
        assert count <= PUT_OFF_MAX, f"{count} half messages are postponed; maximum: {PUT_OFF_MAX}"
        assert in_order == [*self.put_off], f"half messages are postponed in the order {self.put_off}"

    def topic_deleted(self, topic: str) -> None:
        if topic == HALF_TOPIC:
            self.offsets = {}
            self.put_off = ()
