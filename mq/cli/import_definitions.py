"""`raftmq import`: creates and updates the topics, groups, schedules and offsets of an exported document.

A document may be imported again and again: anything that is as it says is left alone, and so are offsets that groups
have passed since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import trio
import typer

from mq.cli.attributes import as_changes
from mq.cli.client_errors import client_errors
from mq.cli.definitions import (
    REQUESTS_AT_ONCE,
    Definitions,
    Group,
    Offset,
    Topic,
    parse_definitions,
    read_definitions,
    stored_offsets,
)
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.progress import Advance, progress_bar
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.errors import BrokerError
from mq.client.message import MessageQueue
from mq.client.schedules import schedule_of
from mq.inspection.catalogue import CatalogueAdmin, portions
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.topics import TopicConfig

LEFT: Final = "leave as it is:"
"""The step for an object with other settings that may not be changed."""
PASSED: Final = "keep, the group has passed the document's:"
"""The step for offsets."""
REFUSED: Final = "refused:"
_REFUSALS: Final = frozenset({ResponseCode.INVALID_PARAMETER, ResponseCode.VERSION_NOT_SUPPORTED})
"""Errors in the contents of a document, not of the command."""

T = TypeVar("T")
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
    """Create what an exported document defines.

    These are topics, consumer groups and schedules. Topics and schedules are created in the broker groups that the
    document names. Schedules begin now: ticks of the time between export and import are not sent. Nothing is deleted. A
    topic, group or schedule that exists with other settings is not changed without --update: the command names it, and
    exits with 1. Offsets are stored where the group has none or a lower one. What a broker refuses is named, such as an
    offset beyond the end of its queue, or a topic that is to keep messages for longer than the broker keeps its log;
    the rest is imported, and the exit code is 1.
    """
    definitions = parse_definitions(file)

    async def main() -> list[dict[str, object]]:
        async with CatalogueAdmin(namesrv) as admin:
            there = await read_definitions(admin, with_offsets=False, left_out=[], advance=advance)
            brokers = {broker for each in (await admin.cluster_info()).clusters.values() for broker in each}
            named_brokers = {broker for rows in definitions.topics.values() for broker in rows}
            named_brokers |= {broker for rows in definitions.schedules.values() for broker in rows}
            if unknown := sorted(named_brokers - brokers):
                raise CommandFailed(
                    f"{file} names the broker group{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}, and there "
                    f"{'are' if len(brokers) > 1 else 'is'} {', '.join(sorted(brokers)) or 'none'}"
                )
            steps = [
                *_topic_steps(definitions, there, update=update),
                *_group_steps(definitions, there, update=update),
                *_schedule_steps(definitions, there, update=update),
            ]
            if not dry_run:
                await _carry_out(admin, steps, definitions, there, advance)
            if offsets:
                steps += await _import_offsets(admin, definitions.offsets, dry_run=dry_run, advance=advance)
        return steps

    with client_errors(), progress_bar() as advance:
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


def _topic_steps(definitions: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The steps for topics that differ from the wanted settings in a broker group."""
    for name, rows in sorted(definitions.topics.items()):
        for broker, settings in sorted(rows.items()):
            now = there.topics.get(name, {}).get(broker)
            if now is None or now != _fill_in(settings, now):
                yield {"what": "topic", "name": name, "broker": broker, "do": _action(now, update=update)}


def _group_steps(definitions: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The steps that import consumer groups."""
    for name, settings in sorted(definitions.consumer_groups.items()):
        now = there.consumer_groups.get(name)
        if now is None or now != _fill_in(settings, now):
            yield {"what": "consumer group", "name": name, "do": _action(now, update=update)}


def _schedule_steps(definitions: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The steps that import schedules."""
    for name, rows in sorted(definitions.schedules.items()):
        for broker, definition in sorted(rows.items()):
            now = there.schedules.get(name, {}).get(broker)
            if now != definition:
                yield {"what": "schedule", "name": name, "broker": broker, "do": _action(now, update=update)}


def _fill_in(settings: SettingsT, now: SettingsT | None) -> SettingsT:
    """The settings, with the present ones where the document is of a format that does not have them."""
    if now is None:
        return settings
    unsaid = [name for name in settings.__struct_fields__ if getattr(settings, name) is None]
    return msgspec.structs.replace(settings, **{name: getattr(now, name) for name in unsaid})


def _action(now: object, *, update: bool) -> str:
    if now is None:
        return "create"
    return "change" if update else LEFT


async def _carry_out(
    admin: CatalogueAdmin,
    steps: Sequence[dict[str, object]],
    definitions: Definitions,
    there: Definitions,
    advance: Advance,
) -> None:
    """Create and change what the steps say: topics first, since schedules send to them. Raises ClientError.

    What a broker refuses is noted in its step, and the rest is done.
    """
    changes = [step for step in steps if step["do"] in ("create", "change")]
    topics: dict[str, list[tuple[dict[str, object], TopicConfig]]] = {}
    groups: list[tuple[dict[str, object], SubscriptionGroupConfig]] = []
    for step in changes:
        name, broker = str(step["name"]), str(step.get("broker", ""))
        if step["what"] == "topic":
            current = there.topics.get(name, {}).get(broker)
            config = _topic_config(name, _fill_in(definitions.topics[name][broker], current), current)
            topics.setdefault(broker, []).append((step, config))
        elif step["what"] == "consumer group":
            now = there.consumer_groups.get(name)
            groups.append((step, group_config(name, _fill_in(definitions.consumer_groups[name], now), now)))
    schedules = [step for step in changes if step["what"] == "schedule"]
    total, step_count = len(changes), 0
    for broker, configs in sorted(topics.items()):
        put_one = partial(_put_topic, admin, broker)
        *others, last = configs
        for some in portions(others):
            advance("topics", step_count, total)
            await _put_all(some, partial(admin.put_topics, broker), put_one)
            step_count += len(some)
        # Name servers learn of topics in the order of their creation: when the last one is there, all are.
        if not await _put_or_note(*last, put_one):
            for config in [config for step, config in others if step["do"] != REFUSED][-1:]:
                await put_one(config)
        step_count += 1
    for those in portions(groups):
        advance("consumer groups", step_count, total)
        await _put_all(those, admin.put_groups, admin.put_consumer_group)
        step_count += len(those)
    for step in schedules:
        advance("schedules", step_count, total)
        name, broker = str(step["name"]), str(step["broker"])
        put = admin.schedules.create if step["do"] == "create" else admin.schedules.update
        await _put_or_note(step, schedule_of(definitions.schedules[name][broker]), partial(put, broker=broker))
        step_count += 1


async def _put_all(
    configs: Sequence[tuple[dict[str, object], T]],
    put: Callable[[Sequence[T]], Awaitable[None]],
    put_one: Callable[[T], Awaitable[None]],
) -> None:
    """Put topics or groups with one request. If it is refused, one by one: older brokers do not know it, and a refusal
    of many does not name the wrong one.
    """
    try:
        await put([config for _, config in configs])
    except BrokerError:
        for step, config in configs:
            await _put_or_note(step, config, put_one)


async def _put_or_note(step: dict[str, object], config: T, put_one: Callable[[T], Awaitable[object]]) -> bool:
    """Put a definition, or note in its step why a broker refuses it; returns whether it was put. Raises ClientError."""
    try:
        await put_one(config)
    except BrokerError as error:
        if error.code not in _REFUSALS:
            raise
        step.update(do=REFUSED, reason=error.remark or str(error))
        return False
    return True


def _topic_config(name: str, topic: Topic, current: Topic | None) -> TopicConfig:
    """The configuration to send to a broker; its attributes are changes of the topic's present ones."""
    obsolete = current.attributes.keys() - topic.attributes.keys() if current is not None else ()
    return TopicConfig(
        name,
        topic.read_queues,
        topic.write_queues,
        topic.perm,
        topic.filter_type or "SINGLE_TAG",
        topic.sys_flag or 0,
        topic.order,
        as_changes({**dict.fromkeys(obsolete), **topic.attributes}),
    )


async def _put_topic(admin: Admin, broker: str, config: TopicConfig) -> None:
    """Put one topic, and wait until the name servers know it."""
    await admin.create_topic(
        config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        perm=config.perm,
        order=config.order,
        filter_type=config.topic_filter_type,
        sys_flag=config.topic_sys_flag,
        attributes={name[1:]: value if name[0] == "+" else None for name, value in config.attributes.items()},
        broker=broker,
    )


def group_config(name: str, group: Group, now: Group | None = None) -> SubscriptionGroupConfig:
    """Return the configuration to send to a broker, whose attributes are changes of the group's present ones."""
    attributes, current = group.attributes or {}, (now.attributes if now is not None else None) or {}
    settings = {
        "consume_enable": group.enabled,
        "consume_broadcast_enable": group.broadcast,
        "consume_message_orderly": group.orderly,
        "retry_max_times": group.retries,
        "consume_from_min_enable": group.from_min,
        "retry_queue_nums": group.retry_queues,
        "broker_id": group.broker_id,
        "which_broker_when_consume_slowly": group.broker_id_when_slow,
        "notify_consumer_ids_changed_enable": group.notify_changes,
        "attributes": as_changes({**dict.fromkeys(current), **attributes}),
    }
    usual = SubscriptionGroupConfig(group_name=name)
    return msgspec.structs.replace(usual, **{name: value for name, value in settings.items() if value is not None})


async def _import_offsets(
    admin: CatalogueAdmin, offsets_by_group: Mapping[str, Sequence[Offset]], *, dry_run: bool, advance: Advance
) -> list[dict[str, object]]:
    """Store the offsets that are higher than the groups'; returns the steps done. Raises ClientError."""
    current_offsets = await stored_offsets(admin, offsets_by_group)
    steps: dict[str, list[dict[str, object]]] = {}
    groups = iter(sorted(offsets_by_group.items()))

    async def work() -> None:
        for group, rows in groups:
            advance("offsets of consumer groups", len(steps), len(offsets_by_group))
            now = current_offsets.get(group, {})
            offsets = {MessageQueue(row.topic, row.broker, row.queue): row.offset for row in rows}
            higher = {queue: offset for queue, offset in offsets.items() if now.get(queue, -1) < offset}
            reasons = {} if dry_run else await _store(admin, group, higher)
            ahead = sum(now.get(queue, -1) > offset for queue, offset in offsets.items())
            of_group: list[dict[str, object]] = []
            if count := len(higher) - len(reasons):
                of_group.append({"what": "offsets", "name": group, "do": "store", "queues": count})
            if ahead:
                of_group.append({"what": "offsets", "name": group, "do": PASSED, "queues": ahead})
            of_group += ({"what": "offsets", "name": group, "do": REFUSED, "reason": reason} for reason in reasons)
            steps[group] = of_group

    async with trio.open_nursery() as nursery:
        for _ in range(REQUESTS_AT_ONCE):
            nursery.start_soon(work)
    return [step for _, of_group in sorted(steps.items()) for step in of_group]


async def _store(admin: CatalogueAdmin, group: str, offsets: Mapping[MessageQueue, int]) -> list[str]:
    """Store offsets of a group; returns for each that a broker refused why. Raises ClientError."""
    reasons = []
    for queue, offset in offsets.items():
        try:
            await admin.store_offset(group, queue, offset)
        except BrokerError as error:
            reasons.append(error.remark or str(error))
    return reasons
