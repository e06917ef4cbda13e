"""A scheduler for Celery's beat: writes the schedule to the brokers, which send the tasks.

`celery beat --scheduler raftmq.celery:ScheduleScheduler` writes `beat_schedule` into the schedules of the brokers when
it starts, and again when it changes. Then it only waits: tasks are sent while it is down, and any number of them may
run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import numbers
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from celery.beat import BeatLazyFunc, Scheduler, SchedulingError
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab, schedule
from celery.utils.log import get_logger

from mq.celery import envelope
from mq.celery.session import Session
from mq.celery.transport import Transport
from mq.client.errors import ClientError
from mq.client.schedules import (
    Cron,
    Every,
    Rule,
    Schedule,
    ScheduleConflict,
    ScheduleNotFound,
    Schedules,
    ScheduleStatus,
)

NAME_BYTES_MAX: Final = 200
PUSHES_MAX: Final = 5
"""Attempts, when other processes change the same schedules at the same time."""
_REFUSED_OPTIONS: Final = ("countdown", "eta")
AGAIN_SECONDS: Final = 5.0
"""Seconds until another try after a failure, such as a long election."""
_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)
_TASK_EXPIRES: Final = "expires"

_log = get_logger("celery.beat")


class ScheduleScheduler(Scheduler):
    """Writes beat's schedule to the brokers. Raises `ImproperlyConfigured` for schedules that they cannot express."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pushed_entries: dict[str, tuple[object, ...]] | None = None
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Read the configured entries; `tick` writes them to the brokers."""
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)
        for entry in self.schedule.values():
            self._check(entry)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Write changed entries to the brokers. Returns the seconds until the next check."""
        entries: dict[str, tuple[object, ...]] = {
            name: (entry.task, entry.schedule, entry.args, entry.kwargs, entry.options)
            for name, entry in self.schedule.items()
        }
        if entries != self._pushed_entries:
            try:
                self.push()
            except (ClientError, SchedulingError, OSError) as error:
                _log.error("beat: the brokers do not have the schedule yet: %s; trying again", error)
                return AGAIN_SECONDS
            self._pushed_entries = entries
        return float(self.max_interval)

    def push(self) -> None:
        """Make the brokers' schedules of this application equal to these entries.

        Raises ClientError, SchedulingError, OSError; some of them may be there then. Raises ImproperlyConfigured before
        anything is changed.
        """
        connection = self._ensure_connected()
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise ImproperlyConfigured(
                f"the broker is {transport.driver_type}: this scheduler needs one at raftmq://..."
            )
        session = transport.session
        owner = _owner(session.address.prefix, self.app)
        schedules = {
            each.name: each for each in [self._schedule(entry, session, owner) for entry in self.schedule.values()]
        }
        change_count = session.call(push_schedules, session.calls.schedules, owner, schedules)
        _log.info("beat: the brokers send %s schedules of %s (%s changed)", len(schedules), owner, change_count)

    def _check(self, entry: Any) -> None:
        """Raise ImproperlyConfigured for an entry that a broker cannot send."""
        rule_of(entry)
        for option in _REFUSED_OPTIONS:
            if entry.options.get(option) is not None:
                raise _entry_error(entry, f"has the option {option}: let it tick later instead")
        values = [*(entry.args or ()), *(entry.kwargs or {}).values()]
        if isinstance(entry.args, BeatLazyFunc) or any(isinstance(value, BeatLazyFunc) for value in values):
            raise _entry_error(entry, "has a BeatLazyFunc, which brokers cannot call: compute the value in the task")
        if self.app.conf.task_always_eager:
            raise ImproperlyConfigured("with task_always_eager, tasks run in the sending process, not by brokers")

    def _schedule(self, entry: Any, session: Session, owner: str) -> Schedule:
        self._check(entry)
        template, exchange, routing_key = self._template_of(entry)
        queue = session.call(session.single_queue, exchange, routing_key)
        if queue is None:
            raise _entry_error(entry, f"is not sent to one queue: exchange {exchange!r}, routing key {routing_key!r}")
        topic, levels = queue
        return Schedule(
            _name(owner, entry.name),
            topic,
            template.body,
            rule_of(entry),
            properties=template.properties,
            queue_id=min(template.priority, levels - 1),
            owner=owner,
        )

    def _template_of(self, entry: Any) -> tuple[envelope.Outgoing, str, str]:
        """Return a task's message, without what differs in each tick, and its exchange and routing key."""
        task = self.app.tasks.get(entry.task)
        options = dict(entry.options)
        expires = options.pop(_TASK_EXPIRES, getattr(task, _TASK_EXPIRES, None))
        seconds = _seconds(expires)
        options |= {"task_id": envelope.TEMPLATE_ID, _TASK_EXPIRES: expires if seconds is None else None}
        channel = self.connection.channel()
        messages: list[tuple[dict[str, Any], str, str]] = []
        channel.divert = lambda message, exchange, routing_key: messages.append((message, exchange, routing_key))
        try:
            template = type(entry)(**{**dict(entry), "options": options})
            self.apply_async(template, producer=self.Producer(channel, auto_declare=False), advance=False)
        finally:
            channel.close()
        [(message, exchange, routing_key)] = [each for each in messages if "task" in (each[0].get("headers") or {})]
        return envelope.encode_template(message, routing_key, expires_seconds=seconds), exchange, routing_key


def rule_of(entry: Any) -> Rule:
    """Convert the schedule of an entry to a rule of the brokers. Raises ImproperlyConfigured."""
    rule = entry.schedule
    if isinstance(rule, crontab):
        return Cron(cron_of(rule), _zone_of(entry, rule), "both" if _restricts_both(rule) else "either")
    if type(rule) is schedule:
        if rule.run_every.total_seconds() < 1:
            raise _entry_error(entry, f"ticks every {rule.run_every}: an interval has at least 1 s")
        return Every(rule.run_every, _EPOCH if rule.relative else None)
    raise _entry_error(entry, f"has a schedule of type {type(rule).__name__}: brokers know crontab and intervals")


def cron_of(rule: Any) -> str:
    """Convert a crontab of Celery to a cron expression."""
    fields = (
        ("minute", 0, 59),
        ("hour", 0, 23),
        ("day_of_month", 1, 31),
        ("month_of_year", 1, 12),
        ("day_of_week", 0, 6),
    )
    return " ".join(
        _field(set(getattr(rule, name)), low, high, star=str(getattr(rule, f"_orig_{name}", "")).startswith("*"))
        for name, low, high in fields
    )


def _field(values: set[int], low: int, high: int, *, star: bool) -> str:
    """The values of a field; as steps where the crontab says so: such a field follows the clock when that changes."""
    for step in range(1, high - low + 1) if star else (1,):
        if values == set(range(low, high + 1, step)):
            return "*" if step == 1 else f"*/{step}"
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _restricts_both(rule: Any) -> bool:
    return len(rule.day_of_month) < 31 and len(rule.day_of_week) < 7


def _zone_of(entry: Any, rule: Any) -> str:
    zone = rule.tz
    name = getattr(zone, "key", None) or ("UTC" if str(zone) == "UTC" else None)
    if name is None:
        raise _entry_error(entry, f"is in the time zone {zone}: set `timezone` to a name such as Europe/Vienna")
    return str(name)


def _seconds(expires: object) -> float | None:
    """Return the seconds after which a task expires; None if it expires at a given time, or never."""
    if isinstance(expires, numbers.Real):
        return float(expires)
    total = getattr(expires, "total_seconds", None)
    return float(total()) if total is not None else None


def _owner(prefix: str, app: Any) -> str:
    return f"celery/{prefix}/{app.main or 'app'}"


def _name(owner: str, entry: str) -> str:
    """Return the name of an entry's schedule. If it is too long, it is cut and ends with a digest."""
    name = f"{owner}/{entry}"
    if len(name.encode()) <= NAME_BYTES_MAX and name.isprintable() and name == name.strip():
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return "".join(each for each in name[:100] if each.isascii() and each.isprintable()).strip() + f"|{digest}"


def _entry_error(entry: Any, why: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"beat_schedule: {entry.name!r} {why}")


async def push_schedules(schedules: Schedules, owner: str, targets: Mapping[str, Schedule]) -> int:
    """Create, change and delete schedules until the brokers have `targets`. Returns the number of changes.

    It ends when it has found nothing to change: a beat with other entries, such as that of another version, may have
    written at the same time, and what both have written would stay for ever. So the last one to write wins.
    """
    count = 0
    for attempt in range(PUSHES_MAX):
        before = count
        there: dict[str, ScheduleStatus] = {
            each.schedule.name: each for each in await schedules.list(owner=owner, bodies=True)
        }
        try:
            for name, schedule_ in targets.items():
                count += await _put(schedules, schedule_, there.get(name))
            for name in sorted(there.keys() - targets.keys()):
                status = there[name]
                await schedules.delete(name, expected_version=status.version, broker=status.broker_name)
                count += 1
        except (ScheduleConflict, ScheduleNotFound):
            if attempt == PUSHES_MAX - 1:
                raise
        else:
            if count == before:
                return count
    raise SchedulingError(f"another process also changes {owner}'s schedules: they differ after {count} changes")


async def _put(schedules: Schedules, target: Schedule, there: ScheduleStatus | None) -> int:
    """Create or change a schedule unless it equals `target`. A paused schedule stays paused."""
    if there is None:
        await schedules.create(target)
        return 1
    rule, old = target.rule, there.schedule.rule
    if isinstance(rule, Every) and isinstance(old, Every) and rule.anchor is None and rule.interval == old.interval:
        rule = old
    target = msgspec.structs.replace(target, rule=rule, enabled=there.schedule.enabled)
    if target == there.schedule:
        return 0
    await schedules.update(target, expected_version=there.version, broker=there.broker_name)
    return 1
