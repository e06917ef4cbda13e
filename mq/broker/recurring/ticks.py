"""Sends the messages of schedules on the leader, one for each tick.

Theory of operation. The message of a tick and the command that marks it as sent enter the log in one entry. After any
failure either both are there or neither, and a new leader has applied all such entries before it begins. The mark is
the time up to which a schedule is done. A tick only moves it forward, so neither a clock that was set back nor a leader
whose clock is behind sends a tick again; only an operator moves it back, by a changed rule or by pause and resume. A
clock that was set forward makes many ticks due at once, and the schedule says which of them are sent
(`mq.broker.recurring.catch_up`).

Of each schedule, one tick is in flight at a time, so its messages are in order. While a change of a schedule is in
flight, it does not tick: in the log, its old message never comes behind the change.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final
from zlib import crc32

from mq.broker.base.periodic_task import Periodic
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.recurring.catch_up import Tick, next_tick
from mq.broker.recurring.rule import Rule, RuleInvalid, next_due, rule_of
from mq.broker.schedule.visible_queues import tail_of
from mq.broker.state.commands import encode_command
from mq.broker.state.schedules import SKIPPED_MAX, Schedule, SettleTick
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol import properties as props
from mq.protocol.codes import PERM_WRITE
from mq.protocol.hashes import tag_code
from mq.protocol.messages.message_types import lowest_level, takes_priorities
from mq.protocol.messages.records import IPV4_HOST_BYTES, NO_HOST
from mq.protocol.requests.schedules import DUE_MS, SCHEDULE, ScheduleDefinition

_IN_FLIGHT_MAX: Final = 64
_PLANNED_AT_ONCE: Final = 50
"""The number of schedules whose next ticks a new leader computes in one step, which takes some milliseconds."""
_STALE_MIN: Final = 64
"""The number of ticks of former versions that are kept, beside the ticks of all schedules, before they are removed."""
_PAUSE_MS: Final = 1000
"""After a refusal, because the disk is full."""
_AHEAD_MS: Final = 60_000
"""A schedule that is done up to later than this from now was sent by a leader whose clock was ahead."""


class Ticks(Service):
    """Sends the messages of schedules while this replica leads.

    Attributes:
        send_count: messages of ticks, and of requests to send one now.
        skip_count: ticks that were not sent, because they were too late or their topic does not exist.
        late_ms: lateness of the most recent tick.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._schedules = context.metadata.schedules
        self._appender = context.appender
        self._tails = context.queue_tails
        self._priority_order_asc = context.settings.priority_order_asc
        self._unique_keys = context.unique_keys
        host = context.store_host
        self._host = host if len(host) == IPV4_HOST_BYTES else NO_HOST
        self._suffix = props.encode(props.of_cluster(context.settings.cluster)).encode()
        self._clock = context.clock
        self._wall_clock_ms = context.wall_clock_ms
        self._interval_seconds = context.limits.waiting.deliver_seconds
        self._uncommitted_bytes_max = context.settings.uncommitted_bytes_max // 2
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._leads = False
        self._forget()
        self.send_count = 0
        self.skip_count = 0
        self.late_ms = 0

    def _forget(self) -> None:
        self._rules: dict[str, tuple[int, Rule]] = {}
        """The rule of each schedule by name, and the version to which it belongs."""
        self._due: list[tuple[int, str, int]] = []
        """A heap of the next ticks: time, name, version."""
        self._to_plan: deque[str] = deque()
        self._in_flight: set[str] = set()
        self._changes: Counter[str] = Counter()
        self._unusable: set[str] = set()
        self._paused_until_ms = 0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._interval_seconds, self.run, self._rests_until)

    def _rests_until(self) -> float:
        if self._to_plan:
            return float("-inf")
        if not self._due:
            return float("inf")
        return self._clock() + (self._due[0][0] - self._wall_clock_ms()) / 1000

    def lead(self) -> None:
        """Start sending the messages of all schedules, since this replica leads."""
        self._forget()
        self._leads = True
        self._to_plan.extend(sorted(self._schedules.table))

    def resign(self) -> None:
        """Stop sending messages of schedules, since this replica stops leading."""
        self._forget()
        self._leads = False

    def counters(self) -> dict[str, int]:
        """Return the number of schedules, and the counters of sent and skipped ticks."""
        return {
            "schedules": len(self._schedules.table),
            "schedule_ticks_sent": self.send_count,
            "schedule_ticks_skipped": self.skip_count,
            "schedule_ticks_late_ms": self.late_ms,
            "schedules_unusable": len(self._unusable),
        }

    def run(self) -> None:
        """Plan the next ticks of schedules, and send messages of due ticks; called by a timer many times a second."""
        if not self._leads or not self._appender.is_open:
            return
        now_ms = self._wall_clock_ms()
        for _ in range(min(len(self._to_plan), _PLANNED_AT_ONCE)):
            self._plan(self._to_plan.popleft(), now_ms)
        if now_ms < self._paused_until_ms <= now_ms + _PAUSE_MS:
            return
        while self._due and self._due[0][0] <= now_ms and self._may_send():
            _, name, version = heapq.heappop(self._due)
            schedule = self._schedules.table.get(name)
            is_free = name not in self._in_flight and not self._changes[name]
            if schedule is not None and schedule.version == version and is_free:
                self._begin(schedule, now_ms)

    def _may_send(self) -> bool:
        # One is always allowed: ticks must not starve behind fast producers.
        in_flight = len(self._in_flight)
        has_room = self._appender.pending_bytes <= self._uncommitted_bytes_max
        return not in_flight or (in_flight < _IN_FLIGHT_MAX and has_room)

    def check_invariants(self) -> None:
        """Assert, for tests:

        - While this replica leads, each schedule that has a next tick is noted, in flight or being changed: one that is
          forgotten would never tick again.
        - Otherwise nothing is noted: a tick in flight belongs to an earlier leadership.
        """
        in_flight = len(self._in_flight)
        assert in_flight <= _IN_FLIGHT_MAX, f"{in_flight} ticks are in flight"
        if self._appender.is_idle:
            changes = sum(self._changes.values())
            assert not in_flight + changes, f"{in_flight} ticks and {changes} changes in flight, and nothing pending"
        assert all(count > 0 for count in self._changes.values()), f"changes in flight: {dict(self._changes)}"
        if not self._leads:
            tick_count = len(self._due) + len(self._to_plan) + in_flight
            assert not tick_count, f"{tick_count} schedules are noted, and this replica does not lead"
            return
        versions = {(name, version) for _, name, version in self._due}
        names = self._in_flight | self._changes.keys() | self._unusable | set(self._to_plan)
        for name, each in self._schedules.table.items():
            if each.definition.enabled and name not in names and (name, each.version) not in versions:
                next_ms = next_due(self._rule(each), each.definition, each.settled_ms)
                assert next_ms is None, f"nobody has noted the tick of {name} at {next_ms}"

    # -- changes by requests -------------------------------------------------------------------------------------------

    def change(self, name: str) -> Callable[[], None]:
        """Stop a schedule's ticks during a change. The caller calls the result when the outcome is known."""
        changes = self._changes
        changes[name] += 1

        def end() -> None:
            if changes is not self._changes:
                return  # of an earlier leadership
            assert changes[name] > 0, f"a change of schedule {name} ends twice"
            changes[name] -= 1
            if not changes[name]:
                del changes[name]
                self._plan(name, self._wall_clock_ms())

        return end

    def send_now(self, definition: ScheduleDefinition, tail: QueueTail, on_outcome: OnOutcome) -> None:
        """Append the message of a schedule now. Its ticks do not change."""
        sent_ms = self._wall_clock_ms()

        def finish(outcome: Outcome) -> None:
            self.send_count += isinstance(outcome, Stored)
            on_outcome(outcome)

        self._appender.add_atomically([self._message(definition, tail, sent_ms, sent_ms, finish)])

    def tail_for(self, definition: ScheduleDefinition) -> QueueTail | None:
        """Return the queue for a schedule's messages, always the same one; None if its topic is not writable.

        A deleted topic that can be restored is treated as missing, unlike for waiting messages that clients have sent:
        a tick that no group can consume is skipped, and its message does not exist after the restore.
        """
        config = self._metadata.topics.get(definition.topic)
        if config is None or not config.perm & PERM_WRITE:
            return None
        queue_id = definition.queue_id
        if queue_id < 0:
            queue_id = crc32(definition.name.encode()) % max(config.write_queues, 1)
            if takes_priorities(config.attributes):
                queue_id = lowest_level(config.write_queues, ascending=self._priority_order_asc)
        return tail_of(definition.topic, queue_id, self._metadata, self._tails)

    # -- ticks ---------------------------------------------------------------------------------------------------------

    def _plan(self, name: str, now_ms: int) -> None:
        """Plan the next tick of a schedule, unless one is in flight or the schedule is being changed."""
        schedule = self._schedules.table.get(name)
        if schedule is None:
            self._rules.pop(name, None)
            self._unusable.discard(name)
            return
        if not schedule.definition.enabled or name in self._in_flight or self._changes[name]:
            return
        try:
            next_ms = next_due(self._rule(schedule), schedule.definition, schedule.settled_ms)
        except RuleInvalid as error:
            self._unusable.add(name)
            self._log.warning("schedule_unusable", schedule=name, error=str(error))
            return
        self._unusable.discard(name)
        if schedule.settled_ms > now_ms + _AHEAD_MS:
            self._log.warning("schedule_ahead_of_clock", schedule=name, ahead_ms=schedule.settled_ms - now_ms)
        assert next_ms is None or next_ms > schedule.settled_ms, f"{name} is done beyond its next tick {next_ms}"
        if next_ms is not None:
            heapq.heappush(self._due, (next_ms, name, schedule.version))
            if len(self._due) > 2 * len(self._schedules.table) + _STALE_MIN:
                self._remove_stale()

    def _remove_stale(self) -> None:
        """Forget ticks of schedules that were changed or deleted: ticks of next year would stay until then."""
        table = self._schedules.table
        present = {each for each in self._due if each[1] in table and table[each[1]].version == each[2]}
        self._due = sorted(present)

    def _rule(self, schedule: Schedule) -> Rule:
        name, version = schedule.definition.name, schedule.version
        entry = self._rules.get(name)
        if entry is None or entry[0] != version:
            entry = self._rules[name] = version, rule_of(schedule.definition)
        return entry[1]

    def _begin(self, schedule: Schedule, now_ms: int) -> None:
        """Append the due tick of a schedule to the log."""
        definition = schedule.definition
        name = definition.name
        tick = next_tick(self._rule(schedule), definition, schedule.settled_ms, now_ms)
        if tick is None:  # a change was refused, and the schedule was noted twice
            return
        tail = self.tail_for(definition)
        if tail is None and tick.due_ms is not None:
            reason = "not writable" if definition.topic in self._metadata.topics else "no such topic"
            self._log.warning("schedule_tick_dropped", schedule=name, topic=definition.topic, reason=reason)
            tick = Tick(None, tick.settled_ms, tick.skip_count + 1)
        settled_ms, due_ms = schedule.settled_ms, tick.due_ms
        assert tick.settled_ms > settled_ms, f"{name} is done up to {settled_ms}, and then up to {tick.settled_ms}"
        assert due_ms is None or due_ms <= now_ms, f"the tick of {name} at {due_ms} is sent at {now_ms}"
        assert name not in self._in_flight, f"two ticks of {name} are in flight"
        in_flight = self._in_flight
        in_flight.add(name)

        def finish(outcome: Outcome) -> None:
            if in_flight is self._in_flight:
                self._finish(name, tick, outcome)

        group: PendingGroup = []
        if tick.due_ms is not None and tail is not None:
            group.append(self._message(definition, tail, tick.due_ms, now_ms))
        mark = SettleTick(
            name=name,
            version=schedule.version,
            settled_ms=tick.settled_ms,
            due_ms=tick.due_ms or 0,
            skipped=min(tick.skip_count, SKIPPED_MAX),
        )
        group.append(PendingCommand(encode_command(mark), finish))
        self._appender.add_atomically(group)

    def _message(
        self,
        definition: ScheduleDefinition,
        tail: QueueTail,
        due_ms: int,
        now_ms: int,
        on_outcome: OnOutcome | None = None,
    ) -> InternalRecord:
        own = {SCHEDULE: definition.name, DUE_MS: str(due_ms), props.UNIQUE_KEY: self._unique_keys.next()}
        if definition.tags:
            own[props.TAGS] = definition.tags
        if definition.keys:
            own[props.KEYS] = " ".join(definition.keys)
        return InternalRecord(
            tail=tail,
            body=definition.body,
            properties=props.fit(definition.properties | own, self._suffix),
            tag_code=tag_code(definition.tags) if definition.tags else 0,
            born_timestamp_ms=now_ms,
            born_host=self._host,
            on_outcome=on_outcome,
        )

    def _finish(self, name: str, tick: Tick, outcome: Outcome) -> None:
        self._in_flight.discard(name)
        now_ms = self._wall_clock_ms()
        if isinstance(outcome, Stored):
            self.skip_count += tick.skip_count
            if tick.skip_count:
                self._log.warning("schedule_ticks_skipped", schedule=name, skipped=tick.skip_count)
            if tick.due_ms is not None:
                self.send_count += 1
                self.late_ms = max(now_ms - tick.due_ms, 0)
        else:
            self._paused_until_ms = now_ms + _PAUSE_MS
        self._plan(name, now_ms)
