"""`raftmq import`: creates and updates what an exported document contains.

A document may be imported again and again: what is as it says is left alone, and so are offsets that groups have passed
since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import typer

from mq.cli.attributes import as_changes
from mq.cli.client_errors import client_errors
from mq.cli.definitions import Definitions, Group, Offset, Topic, parse_definitions, read_definitions, stored_offsets
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.errors import BrokerError
from mq.client.message import MessageQueue
from mq.client.schedules import schedule_of
from mq.protocol.operator_bodies import SubscriptionGroupConfig

LEFT: Final = "leave as it is:"
"""For an object with other settings that may not be changed."""
PASSED: Final = "keep, the group has passed the document's:"
"""For offsets."""
REFUSED: Final = "refused:"

SettingsT = TypeVar("SettingsT", Topic, Group)


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File written by `raftmq export`; - for standard input.")
    ],
    update: Annotated[
        bool, typer.Option("--update", help="Update existing topics, groups and schedules that differ.")
    ] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Also store the offsets; only if the cluster has the same messages.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes, but do not make them.")] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create the topics, consumer groups and schedules of an exported document.

    Topics and schedules are created in the broker groups that the document names. Schedules begin now: ticks of the
    time between export and import are not sent. Nothing is deleted. A topic, group or schedule that exists with other
    settings is not changed without --update: the command names it, and exits with 1. Offsets are stored where the group
    has none or a lower one. One beyond the end of its queue is refused, and named; the exit code is 1.
    """
    wanted = parse_definitions(file)

    async def main() -> list[dict[str, object]]:
        async with Admin(namesrv) as admin:
            there = await read_definitions(admin, with_offsets=False, left_out=[])
            brokers = {broker for each in (await admin.cluster_info()).clusters.values() for broker in each}
            named = {broker for rows in wanted.topics.values() for broker in rows}
            named |= {broker for rows in wanted.schedules.values() for broker in rows}
            if missing := sorted(named - brokers):
                raise CommandFailed(
                    f"{file} names the broker group{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and there "
                    f"{'are' if len(brokers) > 1 else 'is'} {', '.join(sorted(brokers)) or 'none'}"
                )
            steps = [
                *_topic_steps(wanted, there, update=update),
                *_group_steps(wanted, there, update=update),
                *_schedule_steps(wanted, there, update=update),
            ]
            if not dry_run:
                for step in steps:
                    await _carry_out(admin, step, wanted, there)
            for group, rows in sorted(wanted.offsets.items()) if offsets else ():
                steps += await _import_offsets(admin, namesrv, group, rows, dry_run=dry_run)
        return steps

    with client_errors():
        steps = run_trio(main)
    if as_json:
        print_json({"dry_run": dry_run, "steps": steps})
    else:
        for step in steps:
            print(_line(step, dry_run=dry_run))
        if not steps:
            print("everything exists already")
    if any(step["do"] in (LEFT, REFUSED) for step in steps):
        raise typer.Exit(EXIT_FAILED)


def _line(step: Mapping[str, object], *, dry_run: bool) -> str:
    where = f" in {step['broker']}" if "broker" in step else ""
    how_many = f" in {step['queues']} queues" if "queues" in step else ""
    why = f": {step['reason']}" if "reason" in step else ""
    undone = " (not done: --dry-run)" if dry_run else ""
    return f"{step['do']} {step['what']} {step['name']}{where}{how_many}{why}{undone}"


def _topic_steps(wanted: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The steps for topics that differ from the wanted settings in a broker group."""
    for name, rows in sorted(wanted.topics.items()):
        for broker, settings in sorted(rows.items()):
            now = there.topics.get(name, {}).get(broker)
            if now is None or now != _filled(settings, now):
                yield {"what": "topic", "name": name, "broker": broker, "do": _action(now, update=update)}


def _group_steps(wanted: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The same for consumer groups."""
    for name, settings in sorted(wanted.consumer_groups.items()):
        now = there.consumer_groups.get(name)
        if now is None or now != _filled(settings, now):
            yield {"what": "consumer group", "name": name, "do": _action(now, update=update)}


def _schedule_steps(wanted: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The same for schedules."""
    for name, rows in sorted(wanted.schedules.items()):
        for broker, definition in sorted(rows.items()):
            now = there.schedules.get(name, {}).get(broker)
            if now != definition:
                yield {"what": "schedule", "name": name, "broker": broker, "do": _action(now, update=update)}


def _filled(settings: SettingsT, now: SettingsT | None) -> SettingsT:
    """The settings, with the present ones where the document is of a format that does not have them."""
    if now is None:
        return settings
    unsaid = [name for name in settings.__struct_fields__ if getattr(settings, name) is None]
    return msgspec.structs.replace(settings, **{name: getattr(now, name) for name in unsaid})


def _action(now: object, *, update: bool) -> str:
    if now is None:
        return "create"
    return "change" if update else LEFT


async def _carry_out(admin: Admin, step: Mapping[str, object], wanted: Definitions, there: Definitions) -> None:
    if step["do"] not in ("create", "change"):
        return
    name = str(step["name"])
    if step["what"] == "topic":
        broker = str(step["broker"])
        known = there.topics.get(name, {}).get(broker)
        topic = _filled(wanted.topics[name][broker], known)
        gone = known.attributes.keys() - topic.attributes.keys() if known is not None else ()
        await admin.create_topic(
            name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            perm=topic.perm,
            order=topic.order,
            filter_type=topic.filter_type or "SINGLE_TAG",
            sys_flag=topic.sys_flag or 0,
            attributes={**dict.fromkeys(gone), **topic.attributes},
            broker=broker,
        )
        return
    if step["what"] == "schedule":
        broker = str(step["broker"])
        schedule = schedule_of(wanted.schedules[name][broker])
        put = admin.schedules.create if step["do"] == "create" else admin.schedules.update
        await put(schedule, broker=broker)
        return
    now = there.consumer_groups.get(name)
    await admin.put_consumer_group(group_config(name, _filled(wanted.consumer_groups[name], now), now))


def group_config(name: str, group: Group, now: Group | None = None) -> SubscriptionGroupConfig:
    """What a broker is asked for: attributes as changes of those that the group has now."""
    wanted, known = group.attributes or {}, (now.attributes if now is not None else None) or {}
    said = {
        "consume_enable": group.enabled,
        "consume_broadcast_enable": group.broadcast,
        "consume_message_orderly": group.orderly,
        "retry_max_times": group.retries,
        "consume_from_min_enable": group.from_min,
        "retry_queue_nums": group.retry_queues,
        "broker_id": group.broker_id,
        "which_broker_when_consume_slowly": group.broker_id_when_slow,
        "notify_consumer_ids_changed_enable": group.notify_changes,
        "attributes": as_changes({**dict.fromkeys(known), **wanted}),
    }
    usual = SubscriptionGroupConfig(group_name=name)
    return msgspec.structs.replace(usual, **{name: value for name, value in said.items() if value is not None})


async def _import_offsets(
    admin: Admin, namesrv: str, group: str, rows: list[Offset], *, dry_run: bool
) -> list[dict[str, object]]:
    """Store the offsets that are higher than the group's; returns what was done. Raises ClientError."""
    stored = await stored_offsets(admin, group)
    ahead = 0
    higher: list[tuple[MessageQueue, int]] = []
    for row in rows:
        queue = MessageQueue(row.topic, row.broker, row.queue)
        now = stored.get(queue, -1)
        ahead += now > row.offset
        if now < row.offset:
            higher.append((queue, row.offset))
    done = len(higher)
    refused: list[dict[str, object]] = []
    if not dry_run and higher:
        async with PullConsumer(namesrv, group) as consumer:
            for queue, offset in higher:
                try:
                    await consumer.commit({queue: offset})
                except BrokerError as error:
                    done -= 1
                    refused.append(
                        {"what": "offsets", "name": group, "do": REFUSED, "reason": error.remark or str(error)}
                    )
    steps: list[dict[str, object]] = []
    if done:
        steps.append({"what": "offsets", "name": group, "do": "store", "queues": done})
    if ahead:
        steps.append({"what": "offsets", "name": group, "do": PASSED, "queues": ahead})
    return steps + refused
