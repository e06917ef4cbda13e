"""`raftmq export`: writes and reads topics, consumer groups, schedules and offsets as one JSON document.

Fields that an earlier format lacks are None: an import leaves such a setting as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import trio
import typer

from mq.cli.client_errors import client_errors
from mq.cli.errors import CommandFailed, run_trio
from mq.cli.output import print_json
from mq.cli.progress import Advance, progress_bar
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.errors import BrokerError
from mq.client.message import MessageQueue
from mq.client.schedules import definition_of
from mq.inspection.catalogue import CatalogueAdmin
from mq.protocol.codes import ResponseCode
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_topic, reply_topic
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.schedules import ScheduleDefinition
from mq.protocol.requests.topics import TopicConfig

FORMAT: Final = 4
FORMATS: Final = (1, 2, 3, 4)
REQUESTS_AT_ONCE: Final = 16


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a topic in one broker group. ``perm`` has bit 2 for writing and bit 4 for reading."""

    read_queues: int
    write_queues: int
    perm: int
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    filter_type: str | None = None
    sys_flag: int | None = None


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a consumer group, which are the same in all broker groups."""

    enabled: bool = True
    broadcast: bool = True
    orderly: bool = False
    retries: int = 16
    from_min: bool | None = None
    retry_queues: int | None = None
    broker_id: int | None = None
    broker_id_when_slow: int | None = None
    notify_changes: bool | None = None
    attributes: dict[str, str] | None = None


class Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset of the next message that a consumer group consumes in one queue."""

    topic: str
    broker: str
    queue: int
    offset: int


class Definitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one document. The settings of topics are by broker group."""

    format: int
    topics: dict[str, dict[str, Topic]]
    consumer_groups: dict[str, Group]
    offsets: dict[str, list[Offset]] = msgspec.field(default_factory=dict)
    schedules: dict[str, dict[str, ScheduleDefinition]] = msgspec.field(default_factory=dict)


def export(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write; default: standard output.")
    ] = None,
    offsets: Annotated[bool, typer.Option(help="Include the offsets of consumer groups.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary of FILE as JSON.")] = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Write topics, groups, schedules and offsets as JSON.

    The document is for `raftmq import`, and for version control. It contains no messages, lite topics and offsets in
    them, system topics, retry and dead letter topics, users and policies, forbidden topics of groups, and request
    modes. Settings that it cannot contain are named on standard error.
    """
    left_out: list[str] = []

    async def main() -> Definitions:
        async with CatalogueAdmin(namesrv) as admin:
            return await read_definitions(admin, with_offsets=offsets, left_out=left_out, advance=advance)

    with client_errors(), progress_bar() as advance:
        definitions = run_trio(main)
    for each in left_out:
        print(f"not exported: {each}", file=sys.stderr)
    text = msgspec.json.format(msgspec.json.encode(definitions, order="sorted"), indent=2) + b"\n"
    if file is None:
        sys.stdout.write(text.decode())
        return
    try:
        file.write_bytes(text)
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    topics, groups, schedules = len(definitions.topics), len(definitions.consumer_groups), len(definitions.schedules)
    queues = sum(len(rows) for rows in definitions.offsets.values())
    if as_json:
        counts = {"topics": topics, "consumer_groups": groups, "schedules": schedules, "queues_with_offsets": queues}
        print_json({"file": str(file)} | counts)
    else:
        print(
            f"{file}: topics: {topics}, consumer groups: {groups}, schedules: {schedules}, "
            f"queues with offsets: {queues}"
        )


def parse_definitions(file: Path) -> Definitions:
    """Parse a file of definitions. Raises CommandFailed."""
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    try:
        # Check the format first: a newer one may have unknown fields.
        version = json.loads(text).get("format")
        if version not in FORMATS:
            raise CommandFailed(f"{file} has format {version}, this version of raftmq reads formats 1 to {FORMAT}")
        return msgspec.json.decode(text, type=Definitions)
    except (ValueError, AttributeError, msgspec.ValidationError) as error:
        raise CommandFailed(f"{file} is not a file of raftmq export: {error}") from error


async def read_definitions(
    admin: CatalogueAdmin, *, with_offsets: bool, left_out: list[str], advance: Advance
) -> Definitions:
    """Read the definitions from the cluster. ``left_out`` gets settings that they cannot have. Raises ClientError."""
    info = await admin.cluster_info()
    advance("topics", 0, 4)
    own = {*info.clusters, *info.brokers, *map(reply_topic, info.clusters)}
    configs = await admin.topic_configs()
    topics: dict[str, dict[str, Topic]] = {
        name: {broker: _topic(config) for broker, config in by_broker.items()}
        for name, by_broker in sorted(configs.items())
        if not (name in own or is_system_topic(name) or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
    }
    advance("consumer groups", 1, 4)
    groups: dict[str, Group] = {}
    for name, settings in sorted((await admin.consumer_groups()).items()):
        if name not in SYSTEM_GROUPS:
            groups[name] = group_of(settings[min(settings)])
            left_out += _left_out(name, settings, groups[name])
    advance("offsets", 2, 4)
    offsets: dict[str, list[Offset]] = {}
    group_offsets = await stored_offsets(admin, groups) if with_offsets else {}
    for name in groups:
        rows = [
            Offset(queue.topic, queue.broker_name, queue.queue_id, offset)
            for queue, offset in sorted(group_offsets.get(name, {}).items())
            if not queue.topic.startswith(RETRY_PREFIX) and _has_queue(configs, queue)
        ]
        if rows:
            offsets[name] = rows
    advance("schedules", 3, 4)
    return Definitions(FORMAT, topics, groups, offsets, await _schedules(admin))


def _has_queue(configs: Mapping[str, Mapping[str, TopicConfig]], queue: MessageQueue) -> bool:
    """Whether there is such a queue: offsets in lite topics and in queues that a topic had are not exported."""
    config = configs.get(queue.topic, {}).get(queue.broker_name)
    return config is not None and queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)


async def _schedules(admin: Admin) -> dict[str, dict[str, ScheduleDefinition]]:
    """The schedules by name and broker group; none of brokers that have no schedules. Raises ClientError."""
    schedules: dict[str, dict[str, ScheduleDefinition]] = {}
    try:
        for status in await admin.schedules.list(bodies=True):
            schedules.setdefault(status.schedule.name, {})[status.broker_name] = definition_of(status.schedule)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    return schedules


async def stored_offsets(admin: CatalogueAdmin, groups: Iterable[str]) -> dict[str, dict[MessageQueue, int]]:
    """Return the stored offsets of groups, also those that are 0. Raises ClientError."""
    try:
        return await admin.group_offsets()
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
    # A broker has too many for one answer.
    offsets: dict[str, dict[MessageQueue, int]] = {}
    limiter = trio.CapacityLimiter(REQUESTS_AT_ONCE)

    async def ask(group: str) -> None:
        async with limiter:
            offsets[group] = await _stored_offsets_of(admin, group)

    async with trio.open_nursery() as nursery:
        for group in groups:
            nursery.start_soon(ask, group)
    return offsets


async def _stored_offsets_of(admin: Admin, group: str) -> dict[MessageQueue, int]:
    offsets: dict[MessageQueue, int] = {}
    for queue, progress in (await admin.group_progress(group)).items():
        # Progress shows 0 also where nothing is stored.
        offset = progress.offset or await admin.group_offset(group, queue)
        if offset is not None:
            offsets[queue] = offset
    return offsets


def _left_out(name: str, configs: Mapping[str, SubscriptionGroupConfig], group: Group) -> Iterator[str]:
    """Name the group settings that the document omits: they differ between broker groups, or raftmq has none such."""
    for broker, config in sorted(configs.items()):
        if group_of(config) != group:
            yield f"the settings of consumer group {name} in {broker}, which differ from those in {min(configs)}"
        usual = SubscriptionGroupConfig(group_name=name)
        for field in ("group_sys_flag", "consume_timeout_minute", "group_retry_policy"):
            if getattr(config, field) != getattr(usual, field):
                yield f"{field} of consumer group {name} in {broker}, a setting that raftmq does not have"


def _topic(config: TopicConfig) -> Topic:
    return Topic(
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.order,
        dict(config.attributes),
        config.topic_filter_type,
        config.topic_sys_flag,
    )


def group_of(config: SubscriptionGroupConfig) -> Group:
    """Convert a broker's settings of a consumer group to those of a document."""
    return Group(
        enabled=config.consume_enable,
        broadcast=config.consume_broadcast_enable,
        orderly=config.consume_message_orderly,
        retries=config.retry_max_times,
        from_min=config.consume_from_min_enable,
        retry_queues=config.retry_queue_nums,
        broker_id=config.broker_id,
        broker_id_when_slow=config.which_broker_when_consume_slowly,
        notify_changes=config.notify_consumer_ids_changed_enable,
        attributes=dict(config.attributes),
    )
