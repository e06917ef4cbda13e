"""The workload "schedules": schedules tick beside messages of clients, which create, change, pause, trigger and delete
them.

What must hold, by the committed log alone: each tick's message and its mark are in one entry; ticks come once and in
order, at times of the rule, and not early by the clock of the leader (by no more than clocks differ); every tick is
sent or counted as skipped, and skipped only if the catch-up policy says so. A message has the body of the version that
the log has before it, and none comes from a paused schedule. A change that a client was told is stored is in the log.
In the end no schedule is behind.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, ClassVar, NamedTuple

import msgspec

from chaos.broker_sim.clients import ClientResponse, LostResponse, ResponseOrLoss
from chaos.broker_sim.log_oracle import CommittedRecord
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.violation import Violation
from checkers import Checker
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.recurring.catch_up import ON_TIME_MS
from mq.broker.state.commands import PutTopic
from mq.broker.state.schedules import DeleteSchedule, PutSchedule, SettleTick, SwitchSchedule
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON
from mq.protocol.requests.schedules import ANY_VERSION, CATCH_UPS, DUE_MS, NO_VERSION, SCHEDULE, ScheduleDefinition

_NAMES = "abcd"
_BEHIND_MS = 1500
"""The milliseconds by which a tick may be late before its schedule counts as behind."""
_UNREAD_MAX = 8
"""The messages of ticks never end, so readers are always some behind."""


class _Model(NamedTuple):
    """A schedule according to the committed log."""

    definition: ScheduleDefinition
    version: int
    settled_ms: int

    def ticks(self, until_ms: int) -> range:
        """Return the ticks up to a time that are not done."""
        every, anchor = self.definition.every_ms, self.definition.anchor_ms or 0
        first = anchor + ((self.settled_ms - anchor) // every + 1) * every
        return range(first, until_ms + 1, every)


class ScheduledMessages(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = ()
    """None, since no client sends the messages of ticks."""
    name = "schedules"
    topic = "S"
    queues = 2

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._schedules: dict[str, _Model] = {}
        self._versions: dict[int, tuple[str, ScheduleDefinition]] = {}
        """The name and definition of each version."""
        self._trigger_counts: Counter[str] = Counter()
        """The number of times that each schedule may still be sent beside its ticks."""
        self._messages: list[tuple[CommittedRecord, _Model | None]] = []
        """The messages of this entry, each with its schedule's state before it in the log."""
        self._marks: list[tuple[SettleTick, _Model]] = []
        self._exists = False
        self._puts = 0

    def limits(self, base_limits: BrokerLimits) -> BrokerLimits:
        """Allow as many schedules as usual, since the model does not know when a broker has no room."""
        usual = DEFAULT.state
        state = dataclasses.replace(
            base_limits.state, schedules_max=usual.schedules_max, schedule_bytes_max=usual.schedule_bytes_max
        )
        return dataclasses.replace(base_limits, state=state)

    # -- what clients do -----------------------------------------------------------------------------------------------

    def run_operation(self) -> None:
        if not self._exists:
            ext = {"topic": self.topic, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
            ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
            self._ask("topic", RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            return
        chance, name = self.rng.random(), self.rng.choice(_NAMES)
        if chance < 0.02:
            self.cluster.at(self._near_a_tick(name), self._put, name)
        elif chance < 0.025:
            self._ask("delete", RequestCode.DELETE_SCHEDULE, {"name": name})
        elif chance < 0.04:
            enabled = self.rng.random() < 0.6
            self._ask("switch", RequestCode.SWITCH_SCHEDULE, {"name": name, "enabled": enabled})
        elif chance < 0.05:
            self._trigger_counts[name] += 1
            self._ask("trigger", RequestCode.TRIGGER_SCHEDULE, {"name": name})
        elif chance < 0.07:
            self._ask("list", RequestCode.LIST_SCHEDULES, {"ticks": 2})
        elif chance < 0.4:
            self.send(self.new("plain", {}))

    def _near_a_tick(self, name: str) -> float:
        """Return the present time, or a time just before a schedule ticks, so that a change is in flight then."""
        there, now_ms = self._schedules.get(name), self.cluster.true_ms()
        if there is None or self.rng.random() < 0.3:
            return self.cluster.now
        every, anchor = there.definition.every_ms, there.definition.anchor_ms or 0
        wait_ms = every - (now_ms - anchor) % every
        return self.cluster.now + max(0.0, wait_ms / 1000 - self.rng.uniform(0.0, 0.1))

    def _put(self, name: str) -> None:
        self._puts += 1
        there = self._schedules.get(name)
        if there is not None and self.rng.random() < 0.5:  # another message for the same ticks
            definition = msgspec.structs.replace(there.definition, body=b"%d" % self._puts)
        else:
            definition = ScheduleDefinition(
                name=name,
                topic=self.topic,
                body=b"%d" % self._puts,
                every_ms=self.rng.choice((1000, 1000, 1300, 2500)),
                anchor_ms=self.rng.choice((0, 7)),
                catch_up=self.rng.choice(CATCH_UPS),
                catch_up_ms=self.rng.choice((0, 2000, 60_000)),
            )
        version = NO_VERSION if there is None else there.version
        expected_version = self.rng.choice((ANY_VERSION, version, version, version - 1 if version else 5))

        def on_response(response: ClientResponse) -> None:
            number = int(response.ext["version"])
            if self._versions.get(number) != (name, definition):
                raise Violation(f"lost: {name} got version {number}, the log has {self._versions.get(number)}")

        self._ask(
            "put", RequestCode.PUT_SCHEDULE, {"expectedVersion": expected_version}, definition.encode(), on_response
        )

    def _ask(self, what: str, code: RequestCode, ext: dict[str, Any], body: bytes = b"", then: Any = None) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts[f"{what} done"] += 1
                if then is not None:
                    then(response)
            elif response is LostResponse.UNKNOWN:
                self.counts[f"{what} with unknown outcome"] += 1
            else:
                self.counts[f"{what} refused"] += 1

        client = self.rng.choice(self.clients)
        client.request(self.cluster.some_node(self.rng), code, ext, body, on_response, serialization=JSON)

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        if (name := commit.record.properties.get(SCHEDULE)) is not None:
            self._messages.append((commit, self._schedules.get(name)))

    def on_command(self, command: Any) -> None:
        match command:
            case PutTopic(config=config) if config.name == self.topic:
                self._exists = True
            case PutSchedule(definition=definition, expected=expected):
                there = self._schedules.get(definition.name)
                version = NO_VERSION if there is None else there.version
                if expected not in (ANY_VERSION, version):
                    return
                same = there is not None and (
                    there.definition.rule() == definition.rule() and there.definition.enabled == definition.enabled
                )
                settled_ms = there.settled_ms if there is not None and same else command.timestamp_ms
                if there is not None and (there.definition.start_ms, there.definition.end_ms) != (
                    definition.start_ms,
                    definition.end_ms,
                ):
                    settled_ms = max(settled_ms, command.timestamp_ms)
                self._change(definition, settled_ms)
            case DeleteSchedule(name=name, expected=expected):
                if name in self._schedules and expected in (ANY_VERSION, self._schedules[name].version):
                    del self._schedules[name]
            case SwitchSchedule(name=name, enabled=enabled):
                there = self._schedules.get(name)
                if there is not None and there.definition.enabled is not enabled:
                    self._change(msgspec.structs.replace(there.definition, enabled=enabled), command.timestamp_ms)
            case SettleTick(name=name):
                there = self._schedules.get(name)
                if there is None or there.version != command.version:
                    raise Violation(f"version: {command} is not for the version {there}")
                self._marks.append((command, there))
                self._schedules[name] = there._replace(settled_ms=command.settled_ms)
            case _:
                pass

    def _change(self, definition: ScheduleDefinition, settled_ms: int) -> None:
        version = len(self._versions) + 1
        self._versions[version] = definition.name, definition
        self._schedules[definition.name] = _Model(definition, version, settled_ms)

    def on_entry_end(self) -> None:
        """Check that each mark has its message in the same entry."""
        for mark, before in self._marks:
            self._check_mark(mark, before)
        for commit, _ in self._messages:
            name = commit.record.properties[SCHEDULE]
            self._trigger_counts[name] -= 1
            if self._trigger_counts[name] < 0:
                raise Violation(f"duplicate: {name} sent {commit.place}, but neither a mark nor a client asked for it")
            self.counts["triggered"] += 1
        self._messages.clear()
        self._marks.clear()

    def _check_mark(self, mark: SettleTick, before: _Model) -> None:
        ticks = before.ticks(mark.settled_ms)
        if not before.definition.enabled:
            raise Violation(f"paused: {mark} is of {before}, which is paused")
        if mark.due_ms and mark.due_ms not in ticks:
            raise Violation(f"duplicate: {mark.due_ms} of {mark.name} is none of the ticks {ticks} that are to be sent")
        message = self._message_of(mark, before) if mark.due_ms else None
        given_up = [tick for tick in ticks if tick != mark.due_ms]
        if len(given_up) != mark.skipped:
            raise Violation(f"lost: {mark} passes {list(ticks)}, but counts {mark.skipped} as skipped")
        self.counts["skipped"] += len(given_up)
        if message is None:
            return
        skew_ms = 2 * self.cluster.plan.wall_skew_ms
        late_ms = message.record.store_timestamp_ms - mark.due_ms
        if late_ms < -skew_ms:
            raise Violation(f"early: {mark} was stored {-late_ms} ms before its time")
        definition = before.definition
        if definition.catch_up == "all" and given_up:
            too_early = [
                tick for tick in given_up if message.record.store_timestamp_ms - tick < definition.catch_up_ms - skew_ms
            ]
            if too_early:
                raise Violation(f"given up: {too_early} of {mark}, before {definition.catch_up_ms} ms were over")
        if definition.catch_up == "skip" and late_ms > ON_TIME_MS + skew_ms + 5000:
            raise Violation(f"late: {mark} was sent {late_ms} ms late")
        self.count_delay("ticks sent", max(0, late_ms) / 1000)

    def _message_of(self, mark: SettleTick, before: _Model) -> CommittedRecord:
        """Return the message of a mark, which must be in the same entry."""
        for at, (commit, schedule) in enumerate(self._messages):
            properties = commit.record.properties
            if (properties[SCHEDULE], properties[DUE_MS]) == (mark.name, str(mark.due_ms)):
                del self._messages[at]
                if schedule != before or commit.record.body != before.definition.body:
                    raise Violation(f"version: {commit.place} has {commit.record.body!r}, the schedule was {before}")
                if not properties.get(props.UNIQUE_KEY):
                    raise Violation(f"properties: {commit.place} has no unique key: {properties}")
                return commit
        raise Violation(f"lost: {mark} is in the log without its message")

    # -- the end -------------------------------------------------------------------------------------------------------

    def pending_count(self) -> int:
        """Return the number of schedules whose ticks are late."""
        until_ms = self.cluster.true_ms() - _BEHIND_MS - 2 * self.cluster.plan.wall_skew_ms
        return sum(each.definition.enabled and bool(each.ticks(until_ms)) for each in self._schedules.values())

    @property
    def has_read_all(self) -> bool:
        return all(
            self._read_to[queue_id] >= self.ledger.end(self.topic, queue_id) - _UNREAD_MAX
            for queue_id in range(self.queues)
        )
