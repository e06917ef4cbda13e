"""The order in which pops examine the queues of a topic with priorities, and the share of lower priorities.

Each queue of such a topic has the messages of one level, and the retry topic of a group has a queue for each level,
too. A pop takes the messages of the most urgent level first, and stops when it has enough. Under constant load of that
level the others would starve. So of the messages that a group gets while less urgent ones wait, a percentage is owed to
these: of each pop to one of the lower levels, by turns. What a level gets, for whatever reason, pays what it is owed
and no debt of another: a pop that finds few messages of the first level continues with the second, and the third would
starve.

What is owed is known to the leader only: a new one begins with nothing. A group is owed at most what one pop can give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mq.broker.consume.long_polling import QueueKey
from mq.broker.context import BrokerContext
from mq.broker.pop.queue_cursor import PopBatch, PopRequest
from mq.broker.settings import BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.protocol.messages.message_types import FACTOR_MAX, factor_of, takes_priorities

LEVELS_COUNTED: Final = 10
"""Levels with a counter of their own."""
_OWED_MAX: Final = 32
"""Messages: the most that a pop may ask for."""
_KNOWN_MAX: Final = 10_000
"""Groups and topics whose debts are known; with more of them, all begin anew."""
_PERCENT: Final = 100


class PopPlan(NamedTuple):
    """The queues that one pop examines, the most urgent level first.

    ``levels`` are the queues of each level that has messages. Of level ``owed_level`` the pop takes ``owed`` messages
    before all others; none if ``owed`` is 0.
    """

    levels: dict[int, list[QueueKey]]
    owed_level: int = -1
    owed: int = 0


@dataclass(slots=True)
class _Debt:
    """The messages that higher priorities owe to lower ones, for a group and a topic."""

    pops: int = 0
    hundredths: dict[int, int] = field(default_factory=dict)
    """The owed hundredths of messages by level; only levels that are owed something."""
    last_level: int = -1
    """The level to which the last pop added."""


class PriorityOrder:
    """Decides in which order pops examine the queues of topics for messages with priorities.

    Attributes:
        given_below: messages that pops took of lower levels because these were owed.
        pop_counts: messages that pops took, by level; the last number is for all higher levels together.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._metadata: Final[Metadata] = context.metadata
        self._settings: BrokerSettings = context.settings
        self._debts: dict[tuple[str, str], _Debt] = {}
        self.given_below = 0
        self.pop_counts = [0] * (LEVELS_COUNTED + 1)

    def resign(self) -> None:
        """Forget what is owed to lower priorities, since this replica stops leading."""
        self._debts.clear()

    def counters(self) -> dict[str, int]:
        """Return the numbers of popped messages by level, and of those that lower levels were owed."""
        names = [*map(str, range(LEVELS_COUNTED)), f"{LEVELS_COUNTED}+"]
        by_level = {f"popped_level_{name}": count for name, count in zip(names, self.pop_counts, strict=True)}
        return {"pop_given_below": self.given_below, **by_level}

    def applies(self, pop_request: PopRequest) -> bool:
        """Whether this pop takes urgent messages first: it is not ordered, nor beyond the factor of its group."""
        config = self._metadata.topics[pop_request.topic]
        if pop_request.attempt is not None or not takes_priorities(config.attributes):
            return False
        group = self._metadata.groups.get(pop_request.group)
        factor = FACTOR_MAX if group is None else factor_of(group.attributes)
        return self._debt(pop_request).pops % FACTOR_MAX < factor

    def plan(self, pop_request: PopRequest, queues: Iterable[QueueKey], count_max: int) -> PopPlan:
        """Return the plan for a pop of up to ``count_max`` messages; ``queues`` are those that may have messages.

        Queues of one level are examined in the order in which they are given.
        """
        levels: dict[int, list[QueueKey]] = {}
        for key in queues:
            levels.setdefault(key[1], []).append(key)
        in_order = sorted(levels, reverse=self._settings.priority_order_asc)
        plan = PopPlan({level: levels[level] for level in in_order})
        owed_of = self._debt(pop_request).hundredths
        level = max(in_order[1:], key=lambda level: owed_of.get(level, 0), default=-1)
        owed = min(owed_of.get(level, 0) // _PERCENT, count_max)
        return plan._replace(owed_level=level, owed=owed) if owed > 0 else plan

    def record_pop(self, pop_request: PopRequest, plan: PopPlan, batches: list[PopBatch]) -> None:
        """Count the messages that a planned pop took, and update what lower levels are owed."""
        if not batches:
            return
        for each in batches:
            self.pop_counts[min(each.key[2], LEVELS_COUNTED)] += each.messages
        debt = self._debt(pop_request)
        debt.pops += 1
        _, *lower = plan.levels
        counts = Counter[int]()
        for each in batches:
            counts[each.key[2]] += each.messages
        if plan.owed:
            self.given_below += min(plan.owed, counts[plan.owed_level])
        owed_of = {level: debt.hundredths.get(level, 0) for level in lower}
        if plan.owed and not counts[plan.owed_level]:
            owed_of[plan.owed_level] = 0  # it had none
        if lower:
            turn = debt.last_level = _next_turn(lower, debt.last_level)
            passed_over = counts.total() - sum(counts[level] for level in lower[lower.index(turn) + 1 :])
            more = self._settings.lower_priorities_percent * passed_over
            owed_of[turn] += min(more, max(_PERCENT * _OWED_MAX - sum(owed_of.values()), 0))
        left_of = {level: owed - _PERCENT * counts[level] for level, owed in owed_of.items()}
        debt.hundredths = {level: owed for level, owed in left_of.items() if owed > 0}

    def count_unplanned(self, pop_request: PopRequest) -> None:
        """Count a pop that was served without a plan, so that the next pop may have one again."""
        if takes_priorities(self._metadata.topics[pop_request.topic].attributes):
            self._debt(pop_request).pops += 1

    def _debt(self, pop_request: PopRequest) -> _Debt:
        key = pop_request.group, pop_request.topic
        debt = self._debts.get(key)
        if debt is None:
            if len(self._debts) >= _KNOWN_MAX:
                self._debts.clear()
            debt = self._debts[key] = _Debt()
        assert len(self._debts) <= _KNOWN_MAX, f"{len(self._debts)} debts are known; maximum: {_KNOWN_MAX}"
        return debt


def _next_turn(levels: list[int], last: int) -> int:
    """Return the level after ``last`` in this order: the next that is owed a message."""
    if last in levels:
        return levels[(levels.index(last) + 1) % len(levels)]
    return levels[0]
