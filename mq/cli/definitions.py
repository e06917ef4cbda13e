"""`raftmq export` and `raftmq import`: topics, consumer groups and offsets as one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from mq.cli.cluster_view import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import MESSAGE_TYPE_ATTRIBUTE, Admin
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.errors import TopicNotFound
from mq.client.message import MessageQueue
from mq.protocol.bodies import TopicConfig
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_topic, reply_topic
from mq.protocol.operator_bodies import SubscriptionGroupConfig

FORMAT: Final = 1
LEFT: Final = "leave as it is:"
"""For an object with other settings that may not be changed."""


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a topic in one broker group. ``perm`` has bit 2 for writing and bit 4 for reading."""

    read_queues: int
    write_queues: int
    perm: int
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a consumer group, the same in all broker groups."""

    enabled: bool = True
    broadcast: bool = True
    orderly: bool = False
    retries: int = 16


class Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset of the next message that a consumer group consumes in one queue."""

    topic: str
    broker: str
    queue: int
    offset: int


class Definitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one document; settings of topics are by broker group."""

    format: int
    topics: dict[str, dict[str, Topic]]
    consumer_groups: dict[str, Group]
    offsets: dict[str, list[Offset]] = msgspec.field(default_factory=dict)


def export(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write; default: standard output.")
    ] = None,
    offsets: Annotated[bool, typer.Option(help="Include the offsets of consumer groups.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary of FILE as JSON.")] = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Write topics, consumer groups and offsets as one JSON document.

    It is for `raftmq import`, and for version control. It contains neither messages nor system topics.
    """

    async def main() -> Definitions:
        async with Admin(namesrv) as admin:
            return await _read(admin, with_offsets=offsets)

    with client_errors():
        found = run_trio(main)
    text = msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2) + b"\n"
    if file is None:
        sys.stdout.write(text.decode())
        return
    try:
        file.write_bytes(text)
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    topics, groups = len(found.topics), len(found.consumer_groups)
    queues = sum(len(rows) for rows in found.offsets.values())
    if as_json:
        print_json({"file": str(file), "topics": topics, "consumer_groups": groups, "queues_with_offsets": queues})
    else:
        print(f"{file}: {topics} topics, {groups} consumer groups, offsets of {queues} queues")


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File written by `raftmq export`; - for standard input.")
    ],
    update: Annotated[
        bool, typer.Option("--update", help="Update existing topics and groups whose settings differ.")
    ] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Also store the offsets; only if the cluster has the same messages.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes, but do not make them.")] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create the topics and consumer groups of an exported document.

    Topics are created in the broker groups that the document names. Nothing is deleted. A topic or group that exists
    with other settings is not changed without --update: the command names it, and exits with 1.
    """
    wanted = _parse(file)

    async def main() -> list[dict[str, object]]:
        async with Admin(namesrv) as admin:
            there = await _read(admin, with_offsets=False)
            brokers = {broker for each in (await admin.cluster_info()).clusters.values() for broker in each}
            named = {broker for rows in wanted.topics.values() for broker in rows}
            if missing := sorted(named - brokers):
                raise CommandFailed(
                    f"{file} names the broker group{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and there "
                    f"{'are' if len(brokers) > 1 else 'is'} {', '.join(sorted(brokers)) or 'none'}"
                )
            steps = [*_topic_steps(wanted, there, update=update), *_group_steps(wanted, there, update=update)]
            if not dry_run:
                for step in steps:
                    await _carry_out(admin, step, wanted)
        if offsets:
            for group, rows in sorted(wanted.offsets.items()):
                steps.append({"what": "offsets", "name": group, "do": "store", "queues": len(rows)})
                if not dry_run:
                    await _store_offsets(namesrv, group, rows)
        return steps

    with client_errors():
        steps = run_trio(main)
    if as_json:
        print_json({"dry_run": dry_run, "steps": steps})
    else:
        for step in steps:
            where = f" in {step['broker']}" if "broker" in step else ""
            print(f"{step['do']} {step['what']} {step['name']}{where}{' (not done: --dry-run)' if dry_run else ''}")
        if not steps:
            print("everything exists already")
    if any(step["do"] == LEFT for step in steps):
        raise typer.Exit(EXIT_FAILED)


def _parse(file: Path) -> Definitions:
    """Raises CommandFailed."""
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    try:
        # Check the format first: a newer one may have unknown fields.
        version = json.loads(text).get("format")
        if version != FORMAT:
            raise CommandFailed(f"{file} has format {version}, this version of raftmq reads format {FORMAT}")
        return msgspec.json.decode(text, type=Definitions)
    except (ValueError, AttributeError, msgspec.ValidationError) as error:
        raise CommandFailed(f"{file} is not a file of raftmq export: {error}") from error


async def _read(admin: Admin, *, with_offsets: bool) -> Definitions:
    """The existing definitions. Raises ClientError."""
    info = await admin.cluster_info()
    own = {*info.clusters, *info.brokers, *map(reply_topic, info.clusters)}
    topics: dict[str, dict[str, Topic]] = {}
    for name in await admin.topics():
        if name in own or is_system_topic(name) or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            continue
        try:
            configs = await admin.topic_config(name)
        except TopicNotFound:
            continue  # deleted in the meantime
        topics[name] = {broker: _topic(config) for broker, config in configs.items()}
    groups = {
        name: _group(configs[min(configs)])
        for name, configs in (await admin.consumer_groups()).items()
        if name not in SYSTEM_GROUPS
    }
    offsets: dict[str, list[Offset]] = {}
    if with_offsets:
        for name in groups:
            progress = await admin.group_progress(name)
            rows = [
                Offset(queue.topic, queue.broker_name, queue.queue_id, each.offset)
                for queue, each in sorted(progress.items())
                if each.offset and not queue.topic.startswith(RETRY_PREFIX)
            ]
            if rows:
                offsets[name] = rows
    return Definitions(FORMAT, topics, groups, offsets)


def _topic(config: TopicConfig) -> Topic:
    return Topic(config.read_queue_nums, config.write_queue_nums, config.perm, config.order, dict(config.attributes))


def _group(config: SubscriptionGroupConfig) -> Group:
    return Group(
        config.consume_enable, config.consume_broadcast_enable, config.consume_message_orderly, config.retry_max_times
    )


def _topic_steps(wanted: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The steps for topics that differ from the wanted settings in a broker group."""
    for name, rows in sorted(wanted.topics.items()):
        for broker, settings in sorted(rows.items()):
            now = there.topics.get(name, {}).get(broker)
            if now != settings:
                yield {"what": "topic", "name": name, "broker": broker, "do": _action(now, update=update)}


def _group_steps(wanted: Definitions, there: Definitions, *, update: bool) -> Iterator[dict[str, object]]:
    """The same for consumer groups."""
    for name, settings in sorted(wanted.consumer_groups.items()):
        now = there.consumer_groups.get(name)
        if now != settings:
            yield {"what": "consumer group", "name": name, "do": _action(now, update=update)}


def _action(now: object, *, update: bool) -> str:
    if now is None:
        return "create"
    return "change" if update else LEFT


async def _carry_out(admin: Admin, step: Mapping[str, object], wanted: Definitions) -> None:
    if step["do"] not in ("create", "change"):
        return
    name = str(step["name"])
    if step["what"] == "topic":
        broker = str(step["broker"])
        topic = wanted.topics[name][broker]
        await admin.create_topic(
            name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            perm=topic.perm,
            order=topic.order,
            message_type=topic.attributes.get(MESSAGE_TYPE_ATTRIBUTE),
            broker=broker,
        )
        return
    group = wanted.consumer_groups[name]
    await admin.put_consumer_group(
        SubscriptionGroupConfig(
            group_name=name,
            consume_enable=group.enabled,
            consume_broadcast_enable=group.broadcast,
            consume_message_orderly=group.orderly,
            retry_max_times=group.retries,
        ),
    )


async def _store_offsets(namesrv: str, group: str, rows: list[Offset]) -> None:
    async with PullConsumer(namesrv, group) as consumer:
        await consumer.commit({MessageQueue(row.topic, row.broker, row.queue): row.offset for row in rows})
