"""Requests to change and list schedules, codes 9012 to 9016. `mq.broker.recurring.ticks` sends their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.recurring.rule import RuleInvalid, next_due, rule_of
from mq.broker.recurring.ticks import Ticks
from mq.broker.state.commands import Command
from mq.broker.state.format_level import LEVEL_OF_SCHEDULES
from mq.broker.state.schedules import DeleteSchedule as DeleteCommand
from mq.broker.state.schedules import PutSchedule as PutCommand
from mq.broker.state.schedules import Schedule
from mq.broker.state.schedules import SwitchSchedule as SwitchCommand
from mq.broker.write_path.outcome import Outcome, Stored, answer_outcome
from mq.broker.write_path.replicate import encode
from mq.protocol import properties as props
from mq.protocol.codes import PERM_WRITE, ResponseCode
from mq.protocol.names import SEND_FORBIDDEN_TOPICS, is_system_topic
from mq.protocol.requests.compaction_attributes import is_compacted
from mq.protocol.requests.schedules import (
    DeleteSchedule,
    ListSchedules,
    PutSchedule,
    ScheduleChanged,
    ScheduleDefinition,
    ScheduleInfo,
    ScheduleList,
    SwitchSchedule,
    TriggerSchedule,
    decode_definition,
)

PAGE_MAX: Final = 100
"""Schedules in one answer, whose next ticks are computed in some milliseconds."""
PAGE_BYTES_MAX: Final = 1024 * 1024
TICKS_MAX: Final = 20
_OWN_PREFIX: Final = "RAFTMQ_"


class ScheduleRequests(Service):
    """Handles requests to put, delete, list, pause, resume and trigger schedules."""

    def __init__(self, context: BrokerContext, *, ticks: Ticks) -> None:
        self._metadata = context.metadata
        self._schedules = context.metadata.schedules
        self._appender = context.appender
        self._body_bytes_max = context.settings.message_bytes_max
        self._read = context.reads.read
        self._wall_clock_ms = context.wall_clock_ms
        self._log = context.log
        self._ticks = ticks

    def routes(self) -> Iterator[Route]:
        yield Route(PutSchedule, self.handle_put, leader_only=True)
        yield Route(DeleteSchedule, self.handle_delete, leader_only=True)
        yield Route(ListSchedules, self.handle_list)
        yield Route(SwitchSchedule, self.handle_switch, leader_only=True)
        yield Route(TriggerSchedule, self.handle_trigger, leader_only=True)

    def handle_put(self, call: Call[PutSchedule]) -> bytes | None:
        """Request code 9012: create or replace a schedule. If it has this definition already, nothing changes."""
        self._check_level()
        now_ms = self._wall_clock_ms()
        definition = self._with_anchor(decode_body(decode_definition, call.body), now_ms)
        name, expected = definition.name, call.request.ext.expected_version
        command = PutCommand(definition=definition, expected=expected, timestamp_ms=now_ms)
        encode(command)  # refuses bad names before they are looked up
        self._check_expected(name, expected)
        there = self._schedules.table.get(name)
        if there is not None and there.definition == definition:
            return _change_response(call, there)
        self._check(definition, there, now_ms)
        self._check_room(definition)

        def check() -> bytes:
            schedule = self._schedules.table.get(name)
            if schedule is None or schedule.definition != definition:
                self._check_expected(name, expected)
                self._check_room(definition)
                raise _conflict(f"the schedule {name} was changed by another client at the same time")
            return _change_response(call, schedule)

        self._change(call, command, name, "created" if there is None else "changed", check)
        return None

    def handle_delete(self, call: Call[DeleteSchedule]) -> None:
        """Request code 9013: delete a schedule. Raises RequestRefused, for example if there is no such schedule."""
        self._check_level()
        ext = call.request.ext
        self._get(ext.name)
        self._check_expected(ext.name, ext.expected_version)

        def check() -> bytes:
            if ext.name in self._schedules.table:
                self._check_expected(ext.name, ext.expected_version)
                raise _conflict(f"the schedule {ext.name} was created again by another client at the same time")
            return call.response()

        command = DeleteCommand(name=ext.name, expected=ext.expected_version)
        self._change(call, command, ext.name, "deleted", check)

    def handle_switch(self, call: Call[SwitchSchedule]) -> bytes | None:
        """Request code 9015: pause or resume a schedule. Ticks during the pause are not sent."""
        self._check_level()
        ext = call.request.ext
        there = self._get(ext.name)
        if there.definition.enabled is ext.enabled:
            return _change_response(call, there)
        command = SwitchCommand(name=ext.name, enabled=ext.enabled, timestamp_ms=self._wall_clock_ms())
        change = "resumed" if ext.enabled else "paused"
        self._change(call, command, ext.name, change, lambda: _change_response(call, self._get(ext.name)))
        return None

    def handle_trigger(self, call: Call[TriggerSchedule]) -> None:
        """Request code 9016: send the message of a schedule now, even if it is paused. Answers when it is stored."""
        self._check_level()
        self._appender.check_room()
        name = call.request.ext.name
        definition = self._get(name).definition
        tail = self._ticks.tail_for(definition)
        if tail is None:
            topic = definition.topic
            raise _not_writable(topic) if topic in self._metadata.topics else _no_topic(topic)

        def respond(_: Stored) -> bytes:
            self._log.info("schedule_changed", schedule=name, change="triggered")
            return call.response()

        def finish(outcome: Outcome) -> None:
            answer_outcome(call, "a message of a schedule was being stored", respond, outcome)

        self._ticks.send_now(definition, tail, finish)

    def handle_list(self, call: Call[ListSchedules]) -> None:
        """Request code 9014: return all schedules, or only that of a given name. Any replica answers."""
        ext = call.request.ext

        def respond() -> bytes:
            table, now_ms = self._schedules.table, self._wall_clock_ms()
            if ext.name:
                names = [ext.name] if ext.name in table else []
            else:
                names = sorted(name for name in table if name > ext.after and _is_owned(table[name], ext.owner))
            infos: list[ScheduleInfo] = []
            nbytes = 0
            for name in names[:PAGE_MAX]:
                nbytes += table[name].definition.nbytes
                if infos and nbytes > PAGE_BYTES_MAX:
                    break
                infos.append(
                    _schedule_info(table[name], now_ms, bodies=ext.bodies, ticks=min(max(ext.ticks, 0), TICKS_MAX))
                )
            return call.response(body=ScheduleList(schedules=infos, more=len(infos) < len(names)).encode())

        when_current(self._read, call, respond)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self, definition: ScheduleDefinition, there: Schedule | None, now_ms: int) -> None:
        """Raise RequestRefused if a valid definition makes no sense, for example without a writable topic."""
        topic = definition.topic
        config = self._metadata.topics.get(topic)
        if topic in SEND_FORBIDDEN_TOPICS or is_system_topic(topic) or (config is not None and config.system):
            raise _invalid(f"schedules cannot send to {topic}, a topic of the system")
        if config is None:
            raise _no_topic(topic)
        if not config.perm & PERM_WRITE or config.write_queues == 0:
            raise _not_writable(topic)
        if is_compacted(config.attributes) and not any(key.strip() for key in definition.keys):
            raise _invalid(f"the message has no key: topic {topic} keeps the newest message of each key; give it one")
        if definition.queue_id >= config.write_queues:
            raise _invalid(f"queue id {definition.queue_id} is illegal, {topic} has {config.write_queues} queues")
        if len(definition.body) > self._body_bytes_max:
            raise _invalid(f"the body has {len(definition.body)} bytes; maximum: {self._body_bytes_max}")
        try:
            props.check_user_properties(definition.properties)
        except props.PropertyInvalid as error:
            raise _invalid(str(error)) from error
        if own := [name for name in definition.properties if name.startswith(_OWN_PREFIX)]:
            raise _invalid(f"property {own[0]}: names that begin with {_OWN_PREFIX} are raftmq's own")
        if there is not None and there.definition.rule() == definition.rule():
            return  # its only time may have passed
        try:
            first_ms = next_due(rule_of(definition), definition, now_ms)
        except RuleInvalid as error:
            raise _invalid(str(error)) from error
        if first_ms is None:
            raise _invalid(f"the schedule {definition.name} would never tick: its rule has no time in the future")

    def _with_anchor(self, definition: ScheduleDefinition, now_ms: int) -> ScheduleDefinition:
        """Add the time from which intervals are counted to a definition; keeps the present one if possible."""
        if not definition.every_ms or definition.anchor_ms is not None:
            return definition
        there = self._schedules.table.get(definition.name)
        anchor_ms: int | None = definition.start_ms or now_ms
        if there is not None and there.definition.every_ms == definition.every_ms and not definition.start_ms:
            anchor_ms = there.definition.anchor_ms
        return msgspec.structs.replace(definition, anchor_ms=anchor_ms)

    def _check_level(self) -> None:
        level = self._metadata.format_level.level
        if level < LEVEL_OF_SCHEDULES:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the group is at format level {level}, schedules need {LEVEL_OF_SCHEDULES}: not all members are "
                "connected and run a release that supports schedules",
            )

    def _check_expected(self, name: str, expected: int) -> None:
        if self._schedules.is_expected(name, expected):
            return
        there = self._schedules.table.get(name)
        if there is None:
            raise _missing_error(name)
        expectation = "and the request expects none" if expected == 0 else f"and the request expects {expected}"
        raise _conflict(f"the schedule {name} exists with version {there.version} {expectation}")

    def _check_room(self, definition: ScheduleDefinition) -> None:
        if not self._schedules.has_room(definition):
            limits = self._metadata.limits
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"there is no room for the schedule {definition.name}: {len(self._schedules.table)} have "
                f"{self._schedules.nbytes} bytes; maximum: {limits.schedules_max} with {limits.schedule_bytes_max}",
            )

    def _get(self, name: str) -> Schedule:
        there = self._schedules.table.get(name)
        if there is None:
            raise _missing_error(name)
        return there

    def _change(self, call: Call[Any], command: Command, name: str, change: str, check: Callable[[], bytes]) -> None:
        """Replicate a change; ``check`` returns the answer, or raises RequestRefused if it had no effect."""
        body = encode(command)
        self._appender.check_room()
        call.drop_body()
        end = self._ticks.change(name)

        def respond(_: Stored) -> bytes:
            try:
                response = check()
            except RequestRefused as error:
                return call.response(error.code, remark=error.remark)
            self._log.info("schedule_changed", schedule=name, change=change)
            return response

        def finish(outcome: Outcome) -> None:
            end()
            answer_outcome(call, "a schedule was being stored", respond, outcome)

        self._appender.add_command(body, finish)


def _change_response(call: Call[Any], schedule: Schedule) -> bytes:
    return call.response(ext=ScheduleChanged(version=schedule.version).fields())


def _is_owned(schedule: Schedule, owner: str) -> bool:
    return not owner or schedule.definition.owner == owner


def _schedule_info(schedule: Schedule, now_ms: int, *, bodies: bool, ticks: int) -> ScheduleInfo:
    definition = schedule.definition
    next_times: list[int] = []
    error = ""
    try:
        rule, at_ms = rule_of(definition), schedule.settled_ms
        while definition.enabled and len(next_times) < ticks:
            due_ms = next_due(rule, definition, at_ms)
            if due_ms is None:
                break
            if due_ms <= now_ms:  # it is being sent, or given up
                at_ms = now_ms
                continue
            next_times.append(due_ms)
            at_ms = due_ms
    except RuleInvalid as invalid:
        error = str(invalid)
    return ScheduleInfo(
        definition=definition if bodies else msgspec.structs.replace(definition, body=b""),
        version=schedule.version,
        settled_ms=schedule.settled_ms,
        sent=schedule.sent,
        skipped=schedule.skipped,
        last_due_ms=schedule.last_due_ms,
        next_ms=next_times,
        error=error,
    )


def _invalid(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, remark)


def _conflict(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SCHEDULE_CONFLICT, remark)


def _missing_error(name: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SCHEDULE_NOT_EXIST, f"there is no schedule {name[:255]!r}")


def _not_writable(topic: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, f"the topic {topic} is not writable")


def _no_topic(topic: str) -> RequestRefused:
    return RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist: create it first")
