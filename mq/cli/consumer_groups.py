"""`raftmq consumer-group`: creates, lists, resets, deletes and describes consumer groups."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from mq.cli.attributes import Attributes, after, as_changes, attributes_of
from mq.cli.client_errors import client_errors
from mq.cli.confirm import Yes, confirm
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.operators import operator_name
from mq.cli.output import Json, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv, Topic
from mq.client.admin import Admin
from mq.client.consume.offsets import ConsumeFrom
from mq.client.message import MessageQueue
from mq.client.removed_members import KEEP_OUT_SECONDS_MAX, Removal
from mq.inspection.catalogue import CatalogueAdmin
from mq.inspection.deletion_losses import losses_of_group
from mq.inspection.formatting import time_of
from mq.inspection.members import Member, disagreement, members_of, queue_text, removal_means, removed_member_text
from mq.protocol.names import dead_letter_topic
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.removed_members import KeptOutMember

app = typer.Typer(help="Create, change, reset and delete consumer groups.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("create")
def create(
    group: Group,
    retries: Annotated[
        int, typer.Option(min=-1, help="Redeliveries of a message before it becomes a dead letter.")
    ] = 16,
    broadcast: Annotated[bool, typer.Option(help="Allow broadcasting: each member gets all messages.")] = True,
    enabled: Annotated[bool, typer.Option(help="Allow the group to consume.")] = True,
    orderly: Annotated[
        bool, typer.Option(help="Ordered consumption for gRPC clients behind RocketMQ's proxy.")
    ] = False,
    attribute: Attributes = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create a consumer group in every broker group.

    Exit code 1, and nothing is changed, if there is one of that name.
    """
    attributes = attributes_of(attribute or ())
    if without_value := [name for name, value in attributes.items() if value is None]:
        raise CommandFailed(f"attribute {without_value[0]} needs a value")
    config = SubscriptionGroupConfig(
        group_name=group,
        retry_max_times=retries,
        consume_broadcast_enable=broadcast,
        consume_enable=enabled,
        consume_message_orderly=orderly,
    )

    async def main() -> None:
        async with Admin(namesrv) as admin:
            if group in await admin.consumer_groups():
                raise CommandFailed(
                    f"consumer group {group} already exists; change it with raftmq consumer-group update", EXIT_FAILED
                )
            new = msgspec.structs.replace(config, attributes=as_changes(attributes))
            await admin.put_consumer_group(new)

    config.attributes = after({}, attributes)
    with client_errors():
        run_trio(main)
    if as_json:
        print_json({"group": group, **_fields(config)})
    else:
        print(f"created consumer group {group}: {_settings(config)}")


@app.command("update")
def update(
    group: Group,
    retries: Annotated[
        int | None, typer.Option(min=-1, help="Redeliveries of a message before it becomes a dead letter.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Allow broadcasting: each member gets all messages."),
    ] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--no-enabled", help="Allow the group to consume.")] = None,
    orderly: Annotated[
        bool | None,
        typer.Option("--orderly/--no-orderly", help="Ordered consumption for gRPC clients behind RocketMQ's proxy."),
    ] = None,
    attribute: Attributes = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Update settings of a consumer group. It changes the given settings in every broker group.

    Exit code 1 if there is no such group.
    """
    options = {
        "retry_max_times": retries,
        "consume_broadcast_enable": broadcast,
        "consume_enable": enabled,
        "consume_message_orderly": orderly,
    }
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    attributes = attributes_of(attribute or ())
    if not changes and not attributes:
        raise CommandFailed("nothing to change: pass --retries, --broadcast, --enabled, --orderly or --attribute")

    async def main(admin: Admin) -> tuple[SubscriptionGroupConfig, SubscriptionGroupConfig]:
        configs = (await admin.consumer_groups()).get(group)
        if not configs:
            raise CommandFailed(f"there is no consumer group {group}", EXIT_FAILED)
        old = configs[min(configs)]
        new = msgspec.structs.replace(old, **changes, attributes=after(old.attributes, attributes))
        await admin.put_consumer_group(msgspec.structs.replace(new, attributes=as_changes(attributes)))
        return old, new

    old, new = run_with(Admin, namesrv, main)
    if as_json:
        print_json({"group": group, "before": _fields(old), "after": _fields(new)})
    else:
        print(f"changed consumer group {group}: {_settings(old)} -> {_settings(new)}")


def _settings(config: SubscriptionGroupConfig) -> str:
    return (
        f"{'enabled' if config.consume_enable else 'DISABLED'}, up to {config.retry_max_times} retries, "
        f"broadcast {'yes' if config.consume_broadcast_enable else 'no'}, "
        f"orderly {'yes' if config.consume_message_orderly else 'no'}"
        + "".join(f", {name}={value}" for name, value in sorted(config.attributes.items()))
    )


def _fields(config: SubscriptionGroupConfig) -> dict[str, object]:
    return {
        "enabled": config.consume_enable,
        "broadcast": config.consume_broadcast_enable,
        "orderly": config.consume_message_orderly,
        "retries": config.retry_max_times,
        "attributes": config.attributes,
    }


@app.command("list")
def list_groups(as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Print the name of every consumer group, one per line."""

    async def main(admin: Admin) -> list[str]:
        return sorted(await admin.consumer_groups())

    names = run_with(Admin, namesrv, main)
    if as_json:
        print_json(names)
        return
    for name in names:
        print(name)


@app.command("delete")
def delete(
    group: Group,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep its offsets.")] = False,
    topics: Annotated[bool, typer.Option("--topics", help="Also delete its retry and dead letter topics.")] = False,
    yes: Yes = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Delete a consumer group in every broker group. One that has members comes back with their next heartbeat.

    --topics also deletes its retry topics of topics that it pops, unless another group's retry topic has the same name.

    On a terminal it says what is lost and asks. Exit code 1 if there is no such group.
    """

    async def main() -> None:
        async with Admin(namesrv) as admin:
            # A group may be deleted with its offsets kept.
            progress = await admin.group_progress(group)
            is_known = group in await admin.consumer_groups() or bool(progress)
            if is_known:
                await confirm(partial(_loss, admin, group, topics), yes=yes)
            await admin.delete_consumer_group(group, offsets=not keep_offsets, topics=topics)
        if not is_known:
            raise CommandFailed(f"there is no consumer group {group}", EXIT_FAILED)

    with client_errors():
        run_trio(main)
    if as_json:
        print_json({"group": group, "deleted": True, "offsets_kept": keep_offsets, "topics_deleted": topics})
        return
    note = ", its offsets are kept" if keep_offsets else ""
    print(f"deleted consumer group {group}{note}{', and its retry and dead letter topics' if topics else ''}")


async def _loss(admin: Admin, group: str, topics: bool) -> str:
    """A sentence that says what is lost if the group is deleted."""
    return f"consumer group {group} {', and '.join(await losses_of_group(admin, group, topics=topics))}"


@app.command("reset")
def reset(
    group: Group,
    topic: Topic,
    to: Annotated[str, typer.Argument(metavar="POSITION", help="first, last, or a local time: 2026-03-01T09:30.")],
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Reset the offsets of a group in a topic. POSITION is the first or last message, or a time.

    It moves the group forwards or backwards in all queues, also while members consume, and shows the new offsets. Exit
    code 1 if there is no such group.
    """
    position = _position(to)

    async def main(admin: Admin) -> dict[MessageQueue, int]:
        if group not in await admin.consumer_groups() and not await admin.group_progress(group):
            raise CommandFailed(f"there is no consumer group {group}", EXIT_FAILED)
        return await admin.reset_group(group, topic, position)

    offsets = run_with(Admin, namesrv, main)
    if as_json:
        rows = [{"broker": each.broker_name, "queue": each.queue_id, "offset": offsets[each]} for each in offsets]
        print_json(rows)
        return
    for queue, offset in offsets.items():
        print(f"{queue.broker_name}/{queue.queue_id}: {offset}")


@app.command("skip")
def skip(
    group: Group,
    topic: Topic,
    queue: Annotated[int, typer.Argument(min=0, help="The number of the queue.")],
    offset: Annotated[int, typer.Argument(min=0, help="The offset of the message, as describe shows it.")],
    broker_group: Annotated[
        str | None, typer.Option("--broker-group", help="Broker group of the queue; needed if several have the topic.")
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Skip the next message of a group in a queue. It works while members consume.

    The message is kept in the group's dead letter topic, with your name, time and place. Exit code 1, and nothing is
    changed, if the group stands at another offset.
    """
    operator = operator_name()

    async def main(admin: Admin) -> tuple[str, int]:
        brokers = sorted((await admin.route(topic)).brokers)
        if broker_group is None and len(brokers) > 1:
            raise CommandFailed(f"topic {topic} is in {', '.join(brokers)}: pass --broker-group")
        broker = broker_group or brokers[0]
        where = MessageQueue(topic, broker, queue)
        return broker, await admin.skip_message(group, where, offset, operator=operator)

    broker, next_offset = run_with(Admin, namesrv, main)
    letters = dead_letter_topic(group)
    if as_json:
        print_json(
            {
                "group": group,
                "topic": topic,
                "broker": broker,
                "queue": queue,
                "skipped": offset,
                "next_offset": next_offset,
                "dead_letter_topic": letters,
                "operator": operator,
            }
        )
        return
    print(f"skipped message {offset} of {broker}/{queue}, it is in {letters} now; {group} goes on at {next_offset}")


@app.command("remove-member")
def remove_member(
    group: Group,
    member: Annotated[str, typer.Argument(help="The client id, as describe shows it.")],
    keep_out: Annotated[
        float, typer.Option("--keep-out", min=1, max=KEEP_OUT_SECONDS_MAX, help="Seconds for which it stays out.")
    ] = 300,
    reason: Annotated[str, typer.Option(help="Why, for the log of the client and of the brokers.")] = "",
    yes: Yes = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Remove a member, and refuse it as a member for a while. Other members take over its queues at once.

    On a terminal it says what happens and asks. Exit code 1 if there is no such member; a client that connects later
    under this id is kept out all the same with --yes.
    """

    async def main(admin: Admin) -> Removal:
        members = [each.client_id for each in await admin.group_members(group)]
        if member not in members and not yes:
            there = f"its members are {', '.join(members[:10])}" if members else "it has no members"
            raise CommandFailed(f"{member} is not a member of {group}: {there}", EXIT_FAILED)
        await confirm(
            lambda: _loss_of_member(group, member, members, keep_out),
            yes=yes,
            question="Remove it?",
            on_no="nobody was removed",
        )
        return await admin.removed_members.remove(
            group, member, keep_out=keep_out, reason=reason, operator=operator_name()
        )

    removal = run_with(Admin, namesrv, main)
    if as_json:
        print_json(
            {
                "group": group,
                "member": member,
                "was_member": removal.was_member,
                "keep_out_seconds": keep_out,
                "unreached": dict(removal.unreached),
            }
        )
        return
    was = "removed" if removal.was_member else "it was no member, and is kept out:"
    print(f"{was} {member} from {group} for {keep_out:g} s; earlier: raftmq consumer-group readmit-member")
    for address, why in removal.unreached.items():
        print(f"{address} was not told: {why}; the leader tells it")


async def _loss_of_member(group: str, member: str, members: list[str], seconds: float) -> str:
    """A sentence that says what happens if the member is removed."""
    return f"member {member} of consumer group {group} {' '.join(removal_means(members, seconds))}"


@app.command("let-in", hidden=True, deprecated=True)
@app.command("readmit-member")
def readmit_member(
    group: Group,
    member: Annotated[str, typer.Argument(help="The client id, as describe shows it.")],
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Let a removed member join again. Exit code 1 if it was not removed."""

    async def main(admin: Admin) -> Removal:
        return await admin.removed_members.let_in(group, member, operator=operator_name())

    removal = run_with(Admin, namesrv, main)
    if not removal.was_member:
        raise CommandFailed(f"{member} is not kept out of {group}", EXIT_FAILED)
    if as_json:
        print_json({"group": group, "member": member, "let_in": True})
        return
    print(f"{member} may be a member of {group} again")


def _position(text: str) -> ConsumeFrom:
    ends: dict[str, ConsumeFrom] = {"first": "first", "last": "last"}
    if text in ends:
        return ends[text]
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise CommandFailed(f"{text!r} is neither first nor last nor a time such as 2026-03-01T09:30") from error


@app.command("describe")
def describe(group: Group, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show settings, lag and members of a group. It shows the offset in each queue.

    Exit code 1 if there is no such group.
    """
    progress: dict[MessageQueue, GroupProgress] = {}
    configs: dict[str, SubscriptionGroupConfig] = {}
    members: list[Member] = []
    kept_out: list[KeptOutMember] = []

    async def main(admin: CatalogueAdmin) -> None:
        configs.update((await admin.consumer_groups()).get(group, {}))
        progress.update(await admin.group_progress(group))
        members.extend(await members_of(admin, group))
        kept_out.extend(await admin.removed_members.kept_out(group))

    run_with(CatalogueAdmin, namesrv, main)
    if not configs and not progress:
        raise CommandFailed(f"there is no consumer group {group}", EXIT_FAILED)
    if as_json:
        members_json: dict[str, object] = {
            "members": [member.as_json() for member in members],
            "kept_out": list(map(msgspec.structs.asdict, kept_out)),
        }
        print_json(_as_json(configs, progress) | members_json)
        return
    for broker, config in sorted(configs.items()):
        print(f"{group} in {broker}: {_settings(config)}")
    if progress:
        print_table(_progress_table(progress))
    else:
        print("it has no offsets")
    print_table(_members_table(members)) if members else print("it has no members")
    for member in kept_out:
        print(removed_member_text(member))
    if lines := disagreement(members):
        print("its members subscribe differently: what one of them does not want is skipped for all")
        for line in lines:
            print(f"  {line}")


def _progress_table(progress: dict[MessageQueue, GroupProgress]) -> Table:
    numbers = ("queue", "offset", "next message", "behind")
    table = borderless_table("topic", "broker group", *numbers, "last consumed was stored", numbers=numbers)
    for queue, each in progress.items():
        table.add_row(
            queue.topic,
            queue.broker_name,
            str(queue.queue_id),
            f"{each.offset:,}",
            f"{each.end:,}",
            behind(each),
            time_of(each.last_ms) or "-",
        )
    return table


def _members_table(members: list[Member]) -> Table:
    """The members, each with its queues by topic."""
    numbers = ("version", "unfinished")
    table = borderless_table("member", "address", "language", *numbers, "queues", numbers=numbers)
    for member in members:
        client, unfinished_count = member.client, member.unfinished_count
        table.add_row(
            client.client_id,
            client.client_addr,
            client.language,
            str(client.version),
            "-" if unfinished_count is None else f"{unfinished_count:,}",
            _queues(member),
        )
    return table


def _queues(member: Member) -> str:
    if member.takes_no_queues:
        return "any, it pops"
    return "not known" if member.queues is None else ", ".join(map(queue_text, member.queues)) or "none"


def behind(progress: GroupProgress) -> str:
    """Format how many messages a group has yet to consume from a queue, or say that its offset is beyond the end."""
    if progress.offset > progress.end:
        return f"beyond the end by {progress.offset - progress.end:,}"
    return f"{progress.end - progress.offset:,}"


def _as_json(
    configs: dict[str, SubscriptionGroupConfig], progress: dict[MessageQueue, GroupProgress]
) -> dict[str, object]:
    return {
        "brokers": {broker: _fields(config) for broker, config in sorted(configs.items())},
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "offset": each.offset,
                "next_offset": each.end,
                "behind": max(each.end - each.offset, 0),
                "beyond_end": max(each.offset - each.end, 0),
                "last_consumed_stored": time_of(each.last_ms),
            }
            for queue, each in progress.items()
        ],
    }
