"""`raftmq schedule`: manages messages that the brokers send at times given by a rule."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from mq.cli.attributes import Properties, properties_of
from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, parse_time, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.schedules import Cron, Every, Once, Rule, Schedule, ScheduleConflict, Schedules, ScheduleStatus
from mq.inspection.schedules import rule_text, state_text, tick_text
from mq.protocol.requests.schedules import BODY_BYTES_MAX

app = typer.Typer(
    help="Create, change, trigger and delete schedules.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="SCHEDULE")]
Group = Annotated[
    str | None,
    typer.Option("--group", help="The broker group, if several have it.", metavar="NAME", show_default=False),
]
CatchUp = Literal["last", "all", "skip"]
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_SHOWN_BYTES_MAX: Final = 200


@app.command("create")
def create(
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    cron: Annotated[
        str | None, typer.Option(metavar="'M H D M W'", help="Cron expression: 5 fields, or 6 with seconds in front.")
    ] = None,
    time_zone: Annotated[str, typer.Option("--tz", metavar="ZONE", help="Time zone of --cron.")] = "UTC",
    every: Annotated[
        str | None, typer.Option(metavar="INTERVAL", help="Interval of at least 1s, as in 30s, 5m, 12h, 1d.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="A single time.")] = None,
    body: Annotated[str | None, typer.Option(help="Body of the message. Without it: standard input.")] = None,
    body_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the body.")] = None,
    tags: Annotated[str | None, typer.Option(metavar="TAG", help="Tag of the message.")] = None,
    key: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Key of the message; may be repeated.")] = None,
    prop: Properties = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Send no tick before this time.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Send no tick from this time on.")] = None,
    catch_up: Annotated[
        CatchUp, typer.Option(help="Which missed ticks are sent; skip: none that is a minute late.")
    ] = "last",
    catch_up_within: Annotated[
        str, typer.Option(metavar="INTERVAL", help="With --catch-up all: send no tick that is later than this.")
    ] = "1h",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the schedule of this name, if it exists.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", help="The broker group that sends the ticks.", metavar="NAME", show_default=False),
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create a schedule, and print its next three ticks. The topic must exist.

    Exit code 1, and nothing is changed, if there is one of this name, unless --replace says otherwise. What replaces it
    keeps its place: with the same rule, no tick is lost or repeated.
    """
    schedule = Schedule(
        name,
        topic,
        _body(body, body_file),
        _rule(cron, time_zone, every, at),
        tags=tags,
        keys=key or (),
        properties=properties_of(prop or []),
        start=None if start is None else parse_time(start),
        end=None if end is None else parse_time(end),
        enabled=not paused,
        catch_up=catch_up,
        catch_up_within=_interval(catch_up_within),
    )

    async def main(admin: Admin) -> tuple[str, ScheduleStatus]:
        try:
            return "created", await admin.schedules.create(schedule, broker=group)
        except ScheduleConflict:
            if not replace:
                raise CommandFailed(
                    f"there is a schedule {name}; --replace replaces it, nothing was changed", EXIT_FAILED
                ) from None
        return "replaced", await admin.schedules.update(schedule, broker=group)

    action, status = run_with(Admin, namesrv, main)
    if as_json:
        print_json(_row(status))
        return
    print(f"{action} schedule {name} in {status.broker_name}")
    _print_next(status)


@app.command("list")
def list_schedules(
    owner: Annotated[str, typer.Option(metavar="OWNER", help="Only schedules that this owner keeps up to date.")] = "",
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """List the schedules of all broker groups with their next ticks."""

    async def main(admin: Admin) -> list[ScheduleStatus]:
        return list(await admin.schedules.list(owner=owner))

    statuses = run_with(Admin, namesrv, main)
    if as_json:
        print_json([_row(status, with_body=False) for status in statuses])
        return
    table = borderless_table(
        "schedule", "topic", "rule", "state", "next", "last", "sent", "skipped", numbers=("sent", "skipped")
    )
    for status in statuses:
        table.add_row(
            status.schedule.name,
            status.schedule.topic,
            rule_text(status.schedule.rule),
            state_text(status),
            tick_text(status.next[0]) if status.next else "-",
            tick_text(status.last) if status.last else "-",
            str(status.sent),
            str(status.skipped),
        )
    print_table(table)


@app.command("show")
def show(name: Name, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show a schedule with its message and its next three ticks."""

    status = run_with(Admin, namesrv, lambda admin: admin.schedules.get(name, broker=group))
    if as_json:
        print_json(_row(status))
        return
    schedule = status.schedule
    print(f"schedule {name} in {status.broker_name}, version {status.version}: {state_text(status)}")
    print(f"  {rule_text(schedule.rule)}{_bounds(schedule)}, to topic {schedule.topic}")
    print(f"  sent {status.sent}, skipped {status.skipped}, last {tick_text(status.last) if status.last else 'never'}")
    print(f"  missed ticks: {schedule.catch_up}" + (f", kept up to date by {schedule.owner}" if schedule.owner else ""))
    if status.error:
        print(f"  {status.error}")
    text = schedule.body[:_SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace")
    print(f"  {len(schedule.body)} bytes: {text}{'...' if len(schedule.body) > _SHOWN_BYTES_MAX else ''}")
    _print_next(status)


@app.command("pause")
def pause(name: Name, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Pause a schedule. It sends no messages until it is resumed."""
    _change("paused", Schedules.pause, name, group, namesrv, as_json=as_json)


@app.command("resume")
def resume(name: Name, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Resume a schedule. Ticks during the pause are not sent."""
    _change("resumed", Schedules.resume, name, group, namesrv, as_json=as_json)


@app.command("trigger")
def trigger(name: Name, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Send the message of a schedule now, also of a paused one. Its ticks stay as they are."""
    _change("triggered", Schedules.trigger, name, group, namesrv, as_json=as_json)


@app.command("delete")
def delete(name: Name, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Delete a schedule. The messages that it sent stay."""

    run_with(Admin, namesrv, lambda admin: admin.schedules.delete(name, broker=group))
    if as_json:
        print_json({"schedule": name})
    else:
        print(f"deleted schedule {name}")


def _change(
    verb: str, change: Callable[..., Awaitable[None]], name: str, group: str | None, namesrv: str, *, as_json: bool
) -> None:
    async def main(admin: Admin) -> ScheduleStatus:
        await change(admin.schedules, name, broker=group)
        return await admin.schedules.get(name, broker=group)

    status = run_with(Admin, namesrv, main)
    if as_json:
        print_json(_row(status))
        return
    print(f"{verb} schedule {name}")
    _print_next(status)


def _print_next(status: ScheduleStatus) -> None:
    if not status.schedule.enabled:
        print("next: none, it is paused")
    else:
        print("next: " + (", ".join(map(tick_text, status.next)) or "none"))


def _row(status: ScheduleStatus, *, with_body: bool = True) -> dict[str, object]:
    schedule = status.schedule
    row: dict[str, object] = {
        "schedule": schedule.name,
        "broker": status.broker_name,
        "version": status.version,
        "topic": schedule.topic,
        "rule": rule_text(schedule.rule),
        "enabled": schedule.enabled,
        "start": tick_text(schedule.start) if schedule.start else None,
        "end": tick_text(schedule.end) if schedule.end else None,
        "catch_up": schedule.catch_up,
        "owner": schedule.owner or None,
        "tags": schedule.tags,
        "keys": list(schedule.keys),
        "properties": dict(schedule.properties),
        "next": [tick_text(each) for each in status.next],
        "last": tick_text(status.last) if status.last else None,
        "sent": status.sent,
        "skipped": status.skipped,
        "error": status.error or None,
    }
    if with_body:
        row["body"] = schedule.body.decode("utf-8", "backslashreplace")
    return row


def _bounds(schedule: Schedule) -> str:
    begin = f", from {tick_text(schedule.start)}" if schedule.start else ""
    return begin + (f", until {tick_text(schedule.end)}" if schedule.end else "")


def _rule(cron: str | None, time_zone: str, every: str | None, at: str | None) -> Rule:
    if [cron, every, at].count(None) != 2:
        raise CommandFailed("a schedule needs one of --cron, --every and --at")
    if cron is not None:
        return Cron(cron, time_zone)
    if every is not None:
        return Every(_interval(every))
    return Once(parse_time(at or ""))


def _interval(text: str) -> dt.timedelta:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise CommandFailed(f"{text!r} is not an interval; write 30s, 5m, 12h or 1d")
    try:
        return dt.timedelta(seconds=int(match[1]) * _UNITS[match[2]])
    except OverflowError as error:
        raise CommandFailed(f"{text!r} is longer than an interval can be") from error


def _body(text: str | None, file: Path | None) -> bytes:
    if text is not None and file is not None:
        raise CommandFailed("pass --body or --body-file, not both")
    if text is not None:
        return text.encode()
    try:
        body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1) if file is None else file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    return body
