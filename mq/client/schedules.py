"""Schedules: brokers send a message by a rule, once for each tick.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.schedules.create(
            Schedule("report", "Reports", b"daily", rule=Cron("0 8 * * MON-FRI", "Europe/Vienna"))
        )

A schedule belongs to one broker group, which has the topic: its name decides which one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias
from zlib import crc32

import anyio
import msgspec

from mq.client.errors import BrokerError, MessageRefused, NoRoute, TopicNotFound
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import fields_of, read_body
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.schedules import (
    ANY_VERSION,
    CATCH_UP_MS_DEFAULT,
    CATCH_UPS,
    NO_VERSION,
    CatchUp,
    CronDays,
    DeleteScheduleExt,
    ListSchedulesExt,
    PutScheduleExt,
    ScheduleChanged,
    ScheduleDefinition,
    ScheduleInfo,
    ScheduleList,
    SwitchScheduleExt,
    TriggerScheduleExt,
)
from mq.protocol.wire.request import Ext

READY_SECONDS = 5.0
"""A group that has just started takes changes before: when all its members are connected."""
POLL_SECONDS = 0.1


class ScheduleConflict(BrokerError):
    """The schedule exists, or has another version than expected. Nothing was changed."""


class ScheduleNotFound(BrokerError):
    """No schedule has this name. Nothing was changed."""


class Cron(msgspec.Struct, frozen=True):
    """Ticks by a cron expression of five fields, or six with seconds first, in a time zone.

    `days` says which must match if a day of the month and a day of the week are both restricted: `either` as in cron,
    or `both`. `docs/schedules.md` says what happens when clocks change.
    """

    expression: str
    time_zone: str = "UTC"
    days: CronDays = "either"


class Every(msgspec.Struct, frozen=True):
    """Ticks at equal intervals of at least a second, counted from `anchor`.

    Without an `anchor`, they are counted from the start of the schedule, or from its creation.
    """

    interval: dt.timedelta
    anchor: dt.datetime | None = None


class Once(msgspec.Struct, frozen=True):
    """A single tick."""

    at: dt.datetime


Rule: TypeAlias = Cron | Every | Once


class Schedule(msgspec.Struct, frozen=True):
    """A message, and the rule by which brokers send it.

    `topic` must exist. `body` has at most 64 KiB, keys, tags and properties together 16 KiB. All ticks are sent to one
    queue, `queue_id`, or one that depends on the name. The first tick is at `start` or later, the last one before
    `end`. `catch_up` chooses the ticks that are sent if several are due, after some time without a leader: the `last`
    one, `all` that are not later than `catch_up_within`, or the last one unless it is later than a minute (`skip`).
    `owner` is a mark for programs that keep a set of schedules.
    """

    name: str
    topic: str
    body: bytes
    rule: Rule
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    queue_id: int | None = None
    start: dt.datetime | None = None
    end: dt.datetime | None = None
    enabled: bool = True
    catch_up: CatchUp = "last"
    catch_up_within: dt.timedelta = dt.timedelta(milliseconds=CATCH_UP_MS_DEFAULT)
    owner: str = ""


class ScheduleStatus(msgspec.Struct, frozen=True):
    """A schedule in one broker group, and what has happened to it.

    `version` changes with each change of the schedule. `next` are the next ticks, in UTC; `last` is the last one that
    was sent. `sent` and `skipped` count ticks since the creation. `error` says why the broker cannot send it.
    """

    schedule: Schedule
    broker_name: str
    version: int
    next: Sequence[dt.datetime]
    last: dt.datetime | None
    sent: int
    skipped: int
    error: str


class ScheduleCalls(Protocol):
    """The methods of `Admin` that `Schedules` calls."""

    def _open_core(self) -> ClientCore: ...

    async def _leaders(self, cluster: str | None, broker: str | None) -> dict[str, str]: ...

    async def _leaders_of(self, topic: str) -> dict[str, str]: ...


class Schedules:
    """The calls that administer schedules: `Admin.schedules`.

    All methods raise as the methods of `Admin`; `broker` names the group of a schedule, if several have one of this
    name.
    """

    def __init__(self, admin: ScheduleCalls) -> None:
        self._admin = admin

    async def create(self, schedule: Schedule, *, broker: str | None = None) -> ScheduleStatus:
        """Create a schedule. Raises ScheduleConflict if its name is taken, TopicNotFound."""
        name = schedule.name
        leaders = await self._admin._leaders_of(schedule.topic)
        if broker is None:
            broker = next(iter(await self._holders(name, None)), None)
        if broker is None:
            names = sorted(leaders)
            broker = names[crc32(name.encode()) % len(names)]
        address = leaders.get(broker)
        if address is None:
            raise NoRoute(schedule.topic, f"broker group {broker} has none of its queues, or no leader")
        return await self._put(schedule, broker, address, NO_VERSION)

    async def update(
        self, schedule: Schedule, *, expected_version: int | None = None, broker: str | None = None
    ) -> ScheduleStatus:
        """Replace a schedule; with `expected_version` only if the schedule still has that version.

        If its rule stays the same, no tick is lost or repeated; else the new one counts from now on. Raises
        ScheduleNotFound, ScheduleConflict.
        """
        status, address = await self._find(schedule.name, broker)
        old_version = status.version if expected_version is None else expected_version
        return await self._put(schedule, status.broker_name, address, old_version)

    async def delete(self, name: str, *, expected_version: int | None = None, broker: str | None = None) -> None:
        """Delete a schedule. The messages that it has sent stay. Raises ScheduleNotFound, ScheduleConflict."""
        _, address = await self._find(name, broker)
        version = ANY_VERSION if expected_version is None else expected_version
        await self._ask(address, RequestCode.DELETE_SCHEDULE, DeleteScheduleExt(name=name, expected_version=version))

    async def get(self, name: str, *, broker: str | None = None, ticks: int = 3) -> ScheduleStatus:
        """Return a schedule with its next `ticks`, at most 20. Raises ScheduleNotFound."""
        status, _ = await self._find(name, broker, ticks=ticks)
        return status

    async def list(self, *, owner: str = "", bodies: bool = False) -> Sequence[ScheduleStatus]:
        """List all schedules, or those of one owner, by name and broker group; message bodies only with `bodies`."""
        statuses: list[ScheduleStatus] = []
        for broker, address in (await self._admin._leaders(None, None)).items():
            after, more = "", True
            while more:
                page = await self._page(address, ListSchedulesExt(after=after, owner=owner, bodies=bodies))
                statuses += [_status(each, broker) for each in page.schedules]
                more = page.more and bool(page.schedules)
                after = page.schedules[-1].definition.name if page.schedules else after
        return sorted(statuses, key=lambda each: (each.schedule.name, each.broker_name))

    async def pause(self, name: str, *, broker: str | None = None) -> None:
        """Stop sending the message of a schedule, until `resume`. Raises ScheduleNotFound."""
        await self._switch(name, broker, enabled=False)

    async def resume(self, name: str, *, broker: str | None = None) -> None:
        """Continue a paused schedule from now on. Raises ScheduleNotFound."""
        await self._switch(name, broker, enabled=True)

    async def trigger(self, name: str, *, broker: str | None = None) -> None:
        """Send a schedule's message now, besides its ticks, even if it is paused. Raises ScheduleNotFound."""
        _, address = await self._find(name, broker)
        await self._ask(address, RequestCode.TRIGGER_SCHEDULE, TriggerScheduleExt(name=name))

    async def _switch(self, name: str, broker: str | None, *, enabled: bool) -> None:
        _, address = await self._find(name, broker)
        await self._ask(address, RequestCode.SWITCH_SCHEDULE, SwitchScheduleExt(name=name, enabled=enabled))

    async def _put(self, schedule: Schedule, broker: str, address: str, old_version: int) -> ScheduleStatus:
        ext = PutScheduleExt(expected_version=old_version)
        try:
            await self._ask(address, RequestCode.PUT_SCHEDULE, ext, definition_of(schedule).encode())
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(schedule.topic) from error
            raise
        return await self.get(schedule.name, broker=broker)

    async def _find(self, name: str, broker: str | None, *, ticks: int = 3) -> tuple[ScheduleStatus, str]:
        """Find a schedule and the leader that has it. Raises ScheduleNotFound; NoRoute if several groups have it."""
        holders = await self._holders(name, broker, ticks=ticks)
        if not holders:
            where = f"in broker group {broker}" if broker is not None else "in any broker group"
            raise ScheduleNotFound(ResponseCode.SCHEDULE_NOT_EXIST, f"there is no schedule {name!r} {where}", "brokers")
        if len(holders) > 1:
            raise NoRoute("", f"the broker groups {', '.join(sorted(holders))} have a schedule {name!r}: choose one")
        [holder] = holders.values()
        return holder

    async def _holders(self, name: str, broker: str | None, *, ticks: int = 3) -> dict[str, tuple[ScheduleStatus, str]]:
        holders: dict[str, tuple[ScheduleStatus, str]] = {}
        for group, address in (await self._admin._leaders(None, broker)).items():
            page = await self._page(address, ListSchedulesExt(name=name, bodies=True, ticks=ticks))
            for each in page.schedules:
                holders[group] = _status(each, group), address
        return holders

    async def _page(self, address: str, ext: ListSchedulesExt) -> ScheduleList:
        _, body = await self._admin._open_core().call(address, RequestCode.LIST_SCHEDULES, ext.fields())
        return read_body(ScheduleList.decode, body)

    async def _ask(self, address: str, code: int, ext: Ext, body: bytes = b"") -> int:
        """Change a schedule; returns its version, 0 if the answer has none."""
        deadline = anyio.current_time() + READY_SECONDS
        while True:
            try:
                response, _ = await self._admin._open_core().call(address, code, ext.fields(), body=body)
            except BrokerError as error:
                not_yet = error.code == ResponseCode.SERVICE_NOT_AVAILABLE and error.stored == "no"
                if not not_yet or anyio.current_time() >= deadline:
                    raise _own_error(error) from None
            else:
                return fields_of(ScheduleChanged, response).version if code == RequestCode.PUT_SCHEDULE else 0
            await anyio.sleep(POLL_SECONDS)


def _own_error(error: BrokerError) -> BrokerError:
    """Return the class of an error that only schedules have."""
    if error.code == ResponseCode.SCHEDULE_CONFLICT:
        return ScheduleConflict(error.code, error.remark, error.address)
    if error.code == ResponseCode.SCHEDULE_NOT_EXIST:
        return ScheduleNotFound(error.code, error.remark, error.address)
    return error


def definition_of(schedule: Schedule) -> ScheduleDefinition:
    """Convert a schedule to its form at brokers. Raises ValueError for an invalid value, MessageRefused."""
    try:
        props.check_user_properties(schedule.properties)
    except props.PropertyInvalid as error:
        raise MessageRefused(str(error)) from error
    if schedule.catch_up not in CATCH_UPS:
        raise ValueError(f"catch_up is {schedule.catch_up!r}, not one of {', '.join(CATCH_UPS)}")
    if not schedule.body:
        raise ValueError("the body is empty: a message has at least 1 byte")
    rule = schedule.rule
    when = {"cron": "", "every_ms": 0, "at_ms": 0}
    more: dict[str, object] = {}
    match rule:
        case Cron():
            when["cron"] = rule.expression
            more = {"time_zone": rule.time_zone, "cron_days": rule.days}
        case Every():
            when["every_ms"] = _milliseconds(rule.interval)
            more = {"anchor_ms": None if rule.anchor is None else _ms(rule.anchor)}
        case Once():
            when["at_ms"] = _ms(rule.at)
    return ScheduleDefinition(
        name=schedule.name,
        topic=schedule.topic,
        body=schedule.body,
        tags=schedule.tags or "",
        keys=tuple(schedule.keys),
        properties=dict(schedule.properties),
        queue_id=-1 if schedule.queue_id is None else schedule.queue_id,
        start_ms=0 if schedule.start is None else _ms(schedule.start),
        end_ms=0 if schedule.end is None else _ms(schedule.end),
        enabled=schedule.enabled,
        catch_up=schedule.catch_up,
        catch_up_ms=_milliseconds(schedule.catch_up_within),
        owner=schedule.owner,
        **when,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def schedule_of(definition: ScheduleDefinition) -> Schedule:
    """Convert a schedule from its form at brokers."""
    rule: Rule
    if definition.cron:
        rule = Cron(definition.cron, definition.time_zone, definition.cron_days)
    elif definition.every_ms:
        anchor = None if definition.anchor_ms is None else _time(definition.anchor_ms)
        rule = Every(dt.timedelta(milliseconds=definition.every_ms), anchor)
    else:
        rule = Once(_time(definition.at_ms))
    return Schedule(
        definition.name,
        definition.topic,
        definition.body,
        rule=rule,
        tags=definition.tags or None,
        keys=definition.keys,
        properties=definition.properties,
        queue_id=None if definition.queue_id < 0 else definition.queue_id,
        start=_time(definition.start_ms) if definition.start_ms else None,
        end=_time(definition.end_ms) if definition.end_ms else None,
        enabled=definition.enabled,
        catch_up=definition.catch_up,
        catch_up_within=dt.timedelta(milliseconds=definition.catch_up_ms),
        owner=definition.owner,
    )


def _status(info: ScheduleInfo, broker: str) -> ScheduleStatus:
    return ScheduleStatus(
        schedule_of(info.definition),
        broker,
        info.version,
        [_time(each) for each in info.next_ms],
        _time(info.last_due_ms) if info.last_due_ms else None,
        info.sent,
        info.skipped,
        info.error,
    )


def _ms(time: dt.datetime) -> int:
    if time.tzinfo is None:
        raise ValueError(f"{time} needs a time zone")
    return round(time.timestamp() * 1000)


def _milliseconds(interval: dt.timedelta) -> int:
    return interval // dt.timedelta(milliseconds=1)


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=milliseconds)
