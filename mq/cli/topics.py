"""`raftmq topic`: creates, changes, lists, describes and deletes topics."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from mq.cli.attributes import Attributes, attributes_of
from mq.cli.client_errors import client_errors
from mq.cli.confirm import Yes, confirm
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.operators import operator_name
from mq.cli.output import Json, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import borderless_table, print_table
from mq.cli.topic_settings import TopicSettings, kind_of, perm_bits, perm_words, settings_to_create, shape
from mq.client.admin import Admin
from mq.client.errors import TopicNotFound
from mq.client.net.routes import LEADER_ID
from mq.inspection.deletion_losses import losses_of_topic
from mq.inspection.formatting import time_of
from mq.protocol.names import is_system_topic, reply_topic
from mq.protocol.requests.broker import BrokerStatsData
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION, is_compacted
from mq.protocol.requests.namesrv import ClusterInfo
from mq.protocol.requests.retention_attributes import RESERVE_BYTES, RESERVE_TIME, reserve_bytes, reserve_hours
from mq.protocol.requests.topics import TopicConfig

app = typer.Typer(help="Create, update, list, describe and delete topics.", no_args_is_help=True)

Namesrv = Annotated[
    str, typer.Option(envvar="RAFTMQ_NAMESRV", help="Name servers, separated by semicolons.", metavar="HOST:PORT;...")
]
NAMESRV = "127.0.0.1:9876"

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
MessageType = Annotated[
    str | None,
    typer.Option(
        help="Type of messages that gRPC clients may send: normal, fifo, delay, transaction, priority, lite, mixed.",
        metavar="TYPE",
    ),
]
RetentionHours = Annotated[
    int | None,
    typer.Option(
        min=-1,
        help="Hours to keep messages, at least 1; -1: as long as brokers keep their logs.",
        metavar="HOURS",
    ),
]
RetentionBytes = Annotated[
    int | None,
    typer.Option(
        min=-1,
        help="Bytes of messages to keep in each broker group, 1048576 or more; -1: no limit.",
        metavar="BYTES",
    ),
]
Compacted = Annotated[
    bool | None,
    typer.Option("--compacted/--no-compacted", help="Keep the newest message of each key for ever, or not."),
]


@app.command("create")
def create(
    topic: Topic,
    queues: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Queues in each broker group.  [default: 8]")
    ] = None,
    perm: Annotated[
        str | None, typer.Option(help="What clients may do: rw, r, w or none; else rw.", metavar="PERM")
    ] = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Mark the topic for ordered consumption, or not.")
    ] = None,
    message_type: MessageType = None,
    retention_hours: RetentionHours = None,
    retention_bytes: RetentionBytes = None,
    compacted: Compacted = None,
    attribute: Attributes = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Only in this broker group.", metavar="NAME", show_default=False)
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create a topic in every broker group that does not have it.

    If some groups have it, such as after you added a group, the others get the same settings, unless options say
    otherwise. Exit code 1, and nothing is changed, if all have it, or some have it with settings other than you say.
    """
    limits = _retention_attributes(
        None if retention_hours == -1 else retention_hours, None if retention_bytes == -1 else retention_bytes
    )
    changes = attributes_of(attribute or ()) | limits | _policy(compacted or None)
    further = tuple(sorted((name, value or "") for name, value in changes.items()))
    if without_value := [name for name, value in further if not value]:
        raise CommandFailed(f"attribute {without_value[0]} needs a value")
    bits, kind = None if perm is None else perm_bits(perm), kind_of(message_type)
    target = TopicSettings(queues, queues, bits, order, kind, attributes=further)

    async def main(admin: Admin) -> tuple[TopicSettings, list[str], dict[str, TopicConfig]]:
        brokers = (await admin.cluster_info()).brokers
        if group is not None and group not in brokers:
            raise CommandFailed(
                f"there is no broker group {group}; known: {', '.join(sorted(brokers)) or 'none'}", EXIT_FAILED
            )
        topic_configs = await _configs(admin, topic)
        # Without any group, `create_topic` says what to do.
        settings, new_groups = settings_to_create(topic, target, topic_configs, [group] if group else brokers or [""])
        for broker in new_groups:
            if broker and LEADER_ID not in brokers[broker].broker_addrs:
                raise CommandFailed(f"broker group {broker} has no leader; nothing was changed", EXIT_FAILED)
        for broker in new_groups:
            await admin.create_topic(
                topic,
                read_queues=settings.read_queues,
                write_queues=settings.write_queues,
                perm=settings.perm or 0,
                order=bool(settings.order),
                message_type=settings.message_type,
                filter_type=settings.filter_type,
                sys_flag=settings.sys_flag,
                attributes=dict(settings.attributes),
                broker=broker or None,
            )
        configs = await admin.topic_config(topic)
        # A group that was not known before has registered meanwhile.
        return settings, [broker for broker in new_groups if broker] or sorted(configs), configs

    settings, new_brokers, configs = run_with(Admin, namesrv, main)
    if as_json:
        print_json(
            [
                {"broker": broker, "created": broker in new_brokers, **_fields(config)}
                for broker, config in sorted(configs.items())
            ]
        )
    else:
        print(f"created topic {topic} in {', '.join(new_brokers)}: {settings}")


@app.command("update")
def update(
    topic: Topic,
    queues: Annotated[int | None, typer.Option(min=1, max=1024, help="Queues in each broker group.")] = None,
    perm: Annotated[str | None, typer.Option(help="What clients may do: rw, r, w or none.", metavar="PERM")] = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Mark the topic for ordered consumption, or not.")
    ] = None,
    message_type: MessageType = None,
    retention_hours: RetentionHours = None,
    retention_bytes: RetentionBytes = None,
    compacted: Compacted = None,
    attribute: Attributes = None,
    shrink: Annotated[
        bool,
        typer.Option("--shrink", help="Allow fewer queues; messages in the removed queues are not consumed any more."),
    ] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Update the given settings of a topic. It changes them in every broker group that has it.

    Exit code 1 if there is no such topic.
    """
    further = (
        attributes_of(attribute or ()) | _retention_attributes(retention_hours, retention_bytes) | _policy(compacted)
    )
    if (queues, perm, order, message_type) == (None, None, None, None) and not further:
        raise CommandFailed(
            "nothing to change: pass --queues, --perm, --order, --no-order, --message-type, --retention-hours, "
            "--retention-bytes, --compacted, --no-compacted or --attribute"
        )
    bits, kind = None if perm is None else perm_bits(perm), kind_of(message_type)

    async def main(admin: Admin) -> tuple[dict[str, TopicConfig], dict[str, TopicConfig]]:
        configs = await _configs(admin, topic)
        if not configs:
            raise CommandFailed(f"topic {topic} does not exist", EXIT_FAILED)
        most = max(max(each.read_queue_nums, each.write_queue_nums) for each in configs.values())
        if queues is not None and queues < most and not shrink:
            raise CommandFailed(
                f"topic {topic} has {most} queues; with {queues}, messages in the last ones are no longer consumed. "
                "To confirm, pass --shrink"
            )
        for broker, config in sorted(configs.items()):
            await admin.create_topic(
                topic,
                read_queues=queues or config.read_queue_nums,
                write_queues=queues or config.write_queue_nums,
                perm=config.perm if bits is None else bits,
                order=config.order if order is None else order,
                message_type=kind,
                filter_type=config.topic_filter_type,
                sys_flag=config.topic_sys_flag,
                attributes=further,
                broker=broker,
            )
        return configs, await admin.topic_config(topic)

    old, new = run_with(Admin, namesrv, main)
    brokers = sorted(old.keys() & new.keys())  # one may have lost its leader in the meantime
    if as_json:
        print_json([{"broker": each, "before": _fields(old[each]), "after": _fields(new[each])} for each in brokers])
        return
    for each in brokers:
        before, after = shape({each: old[each]}), shape({each: new[each]})
        print(f"changed topic {topic}: {after}" if before == after else f"changed topic {topic}: {before} -> {after}")


def _retention_attributes(hours: int | None, nbytes: int | None) -> dict[str, str | None]:
    """The attributes that --retention-hours and --retention-bytes change."""
    limits = {RESERVE_TIME: hours, RESERVE_BYTES: nbytes}
    return {name: None if limit == -1 else str(limit) for name, limit in limits.items() if limit is not None}


def _policy(compacted: bool | None) -> dict[str, str | None]:
    """The attribute that --compacted and --no-compacted change."""
    return {} if compacted is None else {CLEANUP_POLICY: COMPACTION if compacted else None}


async def _configs(admin: Admin, topic: str) -> dict[str, TopicConfig]:
    """The settings of a topic in each broker group that has it; empty if it does not exist."""
    try:
        return await admin.topic_config(topic)
    except TopicNotFound:
        return {}


def _fields(config: TopicConfig) -> dict[str, object]:
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_words(config.perm),
        "order": config.order,
        "attributes": config.attributes,
    }


@app.command("list")
def list_topics(as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Print the names of all topics. It prints one per line, and marks system topics."""

    async def main(admin: Admin) -> tuple[list[str], ClusterInfo]:
        return await admin.topics(), await admin.cluster_info()

    names, info = run_with(Admin, namesrv, main)
    # Each cluster and each broker group has a topic of its name, with which tools test sending.
    own = {*info.clusters, *info.brokers, *map(reply_topic, info.clusters)}
    rows = [(name, name in own or is_system_topic(name)) for name in names]
    if as_json:
        print_json([{"topic": name, "system": is_system} for name, is_system in rows])
        return
    for name, is_system in rows:
        print(f"{name} (system)" if is_system else name)


@app.command("route")
def route(
    topic: Topic,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the broker groups and leaders of a topic. It shows their queues, too."""

    async def main() -> list[dict[str, object]]:
        async with Admin(namesrv) as admin:
            topic_route = await admin.route(topic)
        return [
            {
                "broker": broker,
                "read_queues": sum(queue.broker_name == broker for queue in topic_route.read_queues),
                "write_queues": sum(queue.broker_name == broker for queue in topic_route.write_queues),
                "leader": replicas.get(0),
                "followers": [address for number, address in sorted(replicas.items()) if number != 0],
            }
            for broker, replicas in sorted(topic_route.brokers.items())
        ]

    with client_errors():
        rows = run_trio(main)
    if as_json:
        print_json(rows)
        return
    numbers = ("queues read", "queues written")
    table = borderless_table("broker group", *numbers, "leader", "followers", numbers=numbers)
    for row in rows:
        followers = row["followers"]
        assert isinstance(followers, list)
        table.add_row(
            str(row["broker"]),
            str(row["read_queues"]),
            str(row["write_queues"]),
            str(row["leader"] or "none"),
            " ".join(followers),
        )
    print_table(table)


@app.command("delete")
def delete(
    topic: Topic,
    no_restore: Annotated[
        bool,
        typer.Option("--no-restore", help="For good, also if it is deleted already; a message may create it again."),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Delete a topic in every broker group. Its messages, consumer offsets and retry topics of pops are deleted, too.

    On a terminal it says what is lost and asks. Until retention deletes its messages, `raftmq topic restore` brings it
    back, unless it has lite topics, and a message does not create it. Exit code 1 if there is no such topic.
    """

    async def main(admin: Admin) -> bool:
        is_known = topic in await admin.topics()
        if is_known:
            await confirm(partial(_loss, admin, topic), yes=yes)
        elif no_restore and topic in await admin.deleted_topics():
            is_known = True
            await confirm(partial(_restorable_loss, topic), yes=yes)
        # Also if it is unknown: an unreachable broker group may have it.
        await admin.delete_topic(topic, operator=operator_name(), restorable=not no_restore)
        if not is_known:
            raise CommandFailed(f"topic {topic} does not exist", EXIT_FAILED)
        return topic in await admin.deleted_topics()

    can_be_restored = run_with(Admin, namesrv, main)
    if as_json:
        print_json({"topic": topic, "deleted": True, "restorable": can_be_restored})
    else:
        print(
            f"deleted topic {topic}" + (f"; `raftmq topic restore {topic}` brings it back" if can_be_restored else "")
        )


@app.command("deleted")
def list_deleted(as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """List the deleted topics that can be restored. It shows when and by whom each was deleted, and until when it can
    be.

    Retention deletes its messages as those of other topics, the oldest first; the last one goes at the time shown, or
    earlier if the disk gets full.
    """

    topics = run_with(Admin, namesrv, lambda admin: admin.deleted_topics())
    rows = [(broker, each) for brokers in topics.values() for broker, each in brokers.items() if not each.along_with]
    if as_json:
        print_json(
            [
                {
                    "topic": each.topic,
                    "broker": broker,
                    "deleted": time_of(each.deleted_ms),
                    "by": each.by,
                    "queues": each.queues,
                    "messages": each.messages,
                    "groups": list(each.groups),
                    "until": time_of(each.until_ms),
                }
                for broker, each in rows
            ]
        )
        return
    if not rows:
        print("no deleted topic can be restored")
        return
    numbers = ("messages", "groups")
    table = borderless_table("topic", "broker group", "deleted", "by", *numbers, "until", numbers=numbers)
    for broker, each in rows:
        table.add_row(
            each.topic,
            broker,
            time_of(each.deleted_ms) or "-",
            each.by or "-",
            f"{each.messages:,}",
            f"{len(each.groups):,}",
            time_of(each.until_ms) or "-",
        )
    print_table(table)


@app.command("restore")
def restore(topic: Topic, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Restore a deleted topic. Its settings, its remaining messages and the groups' offsets come back.

    Exit code 1, and nothing is changed, if it cannot be restored: a topic that was created again after its deletion
    cannot, and neither can one whose messages retention has deleted.
    """

    async def main(admin: Admin) -> tuple[list[str], int]:
        try:
            brokers = await admin.restore_topic(topic)
        except TopicNotFound:
            raise CommandFailed(
                f"no deleted topic {topic} can be restored; `raftmq topic deleted` lists those that can",
                EXIT_FAILED,
            ) from None
        return brokers, await _message_count(admin, topic)

    brokers, messages = run_with(Admin, namesrv, main)
    if as_json:
        print_json({"topic": topic, "restored_in": brokers, "messages": messages})
    else:
        print(f"restored topic {topic} in {', '.join(brokers)}, with {messages:,} messages")


async def _message_count(admin: Admin, topic: str) -> int:
    return sum(each.max_offset - each.min_offset for each in (await admin.topic_stats(topic)).values())


async def _loss(admin: Admin, topic: str) -> str:
    """A sentence that says what is lost if the topic is deleted."""
    return f"topic {topic} {', and '.join(await losses_of_topic(admin, topic))}"


async def _restorable_loss(topic: str) -> str:
    return f"topic {topic} is deleted, and cannot be restored after this"


@app.command("describe")
def describe(topic: Topic, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show a topic's settings, and the offsets of its queues."""

    async def main() -> list[dict[str, object]]:
        async with Admin(namesrv) as admin:
            configs = await admin.topic_config(topic)
            identities = await admin.topic_identities(topic)
            ends = await admin.topic_stats(topic)
        return [
            {
                "broker": broker,
                "identity": identities.get(broker) or None,
                **_fields(config),
                "queues": [
                    {
                        "queue": queue.queue_id,
                        "first_offset": each.min_offset,
                        "next_offset": each.max_offset,
                        "last_stored": time_of(each.last_update_ms),
                    }
                    for queue, each in ends.items()
                    if queue.broker_name == broker
                ],
            }
            for broker, config in sorted(configs.items())
        ]

    with client_errors():
        rows = run_trio(main)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        attributes = row["attributes"]
        assert isinstance(attributes, dict)
        hours = reserve_hours(attributes)
        retention = "" if hours is None else f", messages kept for {hours} h"
        if (nbytes := reserve_bytes(attributes)) is not None:
            retention += f", {nbytes:,} bytes of messages kept"
        if is_compacted(attributes):
            after = "after retention_hours of the brokers" if hours is None else f"after {hours} h"
            retention = f", compacted: the newest message of each key is kept, others go {after}"
        title = (
            f"{topic} in {row['broker']}: perm {row['perm']}, {row['read_queues']} queues read, "
            f"{row['write_queues']} written, identity {row['identity'] or 'unknown'}{retention}"
        )
        numbers = ("queue", "first offset", "next offset")
        table = borderless_table(*numbers, "last stored", numbers=numbers, title=title)
        queues = row["queues"]
        assert isinstance(queues, list)
        for queue in queues:
            table.add_row(
                str(queue["queue"]),
                f"{queue['first_offset']:,}",
                f"{queue['next_offset']:,}",
                queue["last_stored"] or "-",
            )
        print_table(table)


@app.command("stats")
def stats(
    topic: Topic,
    group: Annotated[
        str | None, typer.Option(help="Count messages that this group consumed, instead of messages stored.")
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show how many messages were sent or consumed in a topic. It counts those of the last minute, hour and day; with a
    group, only the group's.
    """
    kind, key = ("TOPIC_PUT", topic) if group is None else ("GROUP_GET", f"{topic}@{group}")

    async def main(admin: Admin) -> tuple[dict[str, BrokerStatsData], dict[str, BrokerStatsData]]:
        await admin.route(topic)
        return await admin.figure(f"{kind}_NUMS", key), await admin.figure(f"{kind}_SIZE", key)

    nums, sizes = run_with(Admin, namesrv, main)
    spans = ("minute", "hour", "day")
    rows: list[dict[str, object]] = []
    for broker in sorted(nums.keys() & sizes.keys()):
        for span in spans:
            count, size = (getattr(each[broker], f"stats_{span}") for each in (nums, sizes))
            rows.append(
                {
                    "broker": broker,
                    "span": span,
                    "messages": count.sum,
                    "messages_per_second": count.tps,
                    "bytes": size.sum,
                    "bytes_per_second": size.tps,
                }
            )
    if as_json:
        print_json(rows)
        return
    if not rows:
        print(f"nothing was counted for {key}")
        return
    numbers = ("messages", "messages/s", "bytes", "bytes/s")
    table = borderless_table("broker group", "last", *numbers, numbers=numbers)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
    print_table(table)
