"""Drops the open pops of groups without clients when the table of open pops is full.

Messages that are not acknowledged come again in their place, so popped messages of a lite topic stay open until a
client of the group comes. The pops of a group that never comes back would stay for ever, and once the table is full, no
client could pop from a lite topic that is not in it. So the leader lets such groups continue where they are. Their
messages come again all the same; only how often they were delivered before is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from mq.broker.base.periodic_task import Periodic, never_rests
from mq.broker.context import BrokerContext
from mq.broker.lite.pop import LitePops
from mq.broker.net.service import Service
from mq.broker.state.commands import encode_command
from mq.broker.state.lite_offsets import ROWS_MAX, ResetLiteOffsets
from mq.broker.state.pop_checkpoints import QueueOfGroup
from mq.broker.write_path.outcome import Outcome
from mq.protocol.names import is_lite_queue
from mq.protocol.numbers import QueueOffset

LOOK_SECONDS = 1.0
_LOOKED_AT_ONCE = 20_000
_GROUPS_AT_ONCE = 10


class AbandonedPops(Service):
    """Drops the open pops of groups without clients if the table of open pops is full, while this replica leads.

    Args:
        silent_seconds: the time that a new leader waits: clients may not have come yet.
    """

    def __init__(self, context: BrokerContext, *, pops: LitePops, silent_seconds: float) -> None:
        self._metadata, self._appender = context.metadata, context.appender
        self._clock, self._wall_clock_ms = context.clock, context.wall_clock_ms
        self._checkpoints_max = context.limits.pop.checkpoints_max
        self._pops = pops
        self._silent_seconds = silent_seconds
        self._leads_since = float("inf")
        self._leadership = object()
        self._queues_to_check: Iterator[QueueOfGroup] | None = None
        self._is_waiting = False
        self.forget_count = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(LOOK_SECONDS, self.run, self._rests_until)

    def counters(self) -> dict[str, int]:
        """Return how many open pops of lite topics were dropped since the start of this replica."""
        return {"lite_pops_forgotten": self.forget_count}

    def lead(self) -> None:
        """Remember when this replica became the leader."""
        self._leads_since = self._clock()

    def resign(self) -> None:
        """Stop checking for abandoned pops, since this replica stops leading."""
        self._leads_since = float("inf")
        self._leadership = object()
        self._queues_to_check = None
        self._is_waiting = False

    def _rests_until(self) -> float:
        return never_rests() if len(self._metadata.pops.queues) >= self._checkpoints_max else float("inf")

    def run(self) -> None:
        """Check some open pops, and drop the abandoned ones, if the table of open pops is full; called by a timer."""
        pop_queues = self._metadata.pops.queues
        is_early = self._clock() < self._leads_since + self._silent_seconds
        if self._is_waiting or is_early or len(pop_queues) < self._checkpoints_max:
            return
        if not self._appender.is_open or not self._appender.has_room:
            return
        if self._queues_to_check is None:
            self._queues_to_check = iter(list(pop_queues))
        present = {group for group, _ in self._pops.subscriptions.clients}
        rows: dict[str, list[tuple[str, QueueOffset]]] = {}
        some = list(islice(self._queues_to_check, _LOOKED_AT_ONCE))
        if len(some) < _LOOKED_AT_ONCE:
            self._queues_to_check = None
        now_ms = self._wall_clock_ms()
        for key in some:
            group, queue, _ = key
            if group in present or not is_lite_queue(queue):
                continue
            open_pop = self._metadata.pops.get(key).ordered
            if open_pop is None or open_pop.blocked_until_ms() > now_ms:
                continue
            of_group = rows.setdefault(group, [])
            if len(of_group) < ROWS_MAX and len(rows) <= _GROUPS_AT_ONCE:
                of_group.append((queue, open_pop.first_open))
        for group, of_group in list(rows.items())[:_GROUPS_AT_ONCE]:
            self._forget(group, of_group)

    def _forget(self, group: str, rows: list[tuple[str, QueueOffset]]) -> None:
        leadership = self._leadership
        self._is_waiting = True

        def on_outcome(outcome: Outcome) -> None:
            if leadership is self._leadership:
                self._is_waiting = False
                self.forget_count += len(rows)
                for queue, _ in rows:
                    self._pops.group_changed(group, queue)

        self._appender.add_command(encode_command(ResetLiteOffsets(group=group, rows=rows)), on_outcome)
