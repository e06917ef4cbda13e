"""`raftmq lite`: lite topics, who subscribes to them, and how far behind groups are."""

from __future__ import annotations

from typing import Annotated

import typer

from mq.cli.output import Json, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.inspection.formatting import time_of
from mq.protocol.requests.lite import LiteGroupInfo, ParentTopicInfo

app = typer.Typer(help="List and describe lite topics and their lag.", no_args_is_help=True)

Parent = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that has the lite topics.")]
Lite = Annotated[str, typer.Argument(metavar="LITE_TOPIC")]
Group = Annotated[str, typer.Argument(metavar="CONSUMER_GROUP")]


@app.command("list")
def list_topics(as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """List the topics that have lite topics. It shows how many, when these expire, and which groups read them."""

    async def main(admin: Admin) -> list[tuple[str, ParentTopicInfo]]:
        parents = {topic for info in (await admin.lite.brokers()).values() for topic in info.expirations}
        return [each for topic in sorted(parents) for each in (await admin.lite.parent(topic)).items()]

    infos = run_with(Admin, namesrv, main)
    if as_json:
        print_json(
            [
                {
                    "topic": info.topic,
                    "broker": broker,
                    "lite_topics": info.topic_count,
                    "expiration_minutes": info.expiration_minutes if info.expiration_minutes > 0 else None,
                    "groups": info.groups or [],
                }
                for broker, info in infos
            ]
        )
        return
    table = borderless_table("topic", "broker", "lite topics", "end after", "groups", numbers=("lite topics",))
    for broker, info in infos:
        ends = f"{info.expiration_minutes} min" if info.expiration_minutes > 0 else "never"
        table.add_row(info.topic, broker, str(info.topic_count), ends, " ".join(info.groups or []) or "-")
    print_table(table)


@app.command("describe")
def describe(topic: Parent, lite_topic: Lite, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show a lite topic and its subscribers. It shows its offsets and its last message, too.

    The client * stands for those of a group that reads all lite topics.
    """

    infos = run_with(Admin, namesrv, lambda admin: admin.lite.topic(topic, lite_topic))
    if as_json:
        print_json(
            [
                {
                    "topic": topic,
                    "lite_topic": lite_topic,
                    "broker": broker,
                    "exists": info.is_there,
                    "first_offset": info.ends.min_offset,
                    "next_offset": info.ends.max_offset,
                    "last_message": time_of(info.ends.last_update_ms),
                    "subscribers": [{"group": each.group, "client": each.client_id} for each in info.subscribers],
                }
                for broker, info in sorted(infos.items())
            ]
        )
        return
    for broker, info in sorted(infos.items()):
        if info.is_there:
            ends = f"offsets {info.ends.min_offset} to {info.ends.max_offset}"
            print(f"{lite_topic} in {broker}: {ends}, last message {time_of(info.ends.last_update_ms) or '-'}")
        else:
            print(f"{lite_topic} in {broker}: no messages")
        if info.subscribers:
            table = borderless_table("group", "client")
            for each in info.subscribers:
                table.add_row(each.group, each.client_id)
            print_table(table)


@app.command("client")
def client(
    topic: Parent,
    group: Group,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID")],
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this number of lite topics.")] = 1000,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the subscriptions of a client. It shows those that the leader of each broker group has."""

    infos = run_with(Admin, namesrv, lambda admin: admin.lite.client(topic, group, client_id, most=most))
    if as_json:
        print_json(
            [
                {
                    "broker": broker,
                    "subscriptions": info.topic_count if info.topic_count >= 0 else None,
                    "heard": time_of(info.heard_ms),
                    "lite_topics": sorted(info.lite_topics or []),
                }
                for broker, info in sorted(infos.items())
            ]
        )
        return
    for broker, info in sorted(infos.items()):
        if info.topic_count < 0:
            print(f"{broker}: {client_id} has not sent its subscriptions")
            continue
        print(f"{broker}: {info.topic_count} subscriptions, heard {time_of(info.heard_ms) or '-'}")
        for name in sorted(info.lite_topics or []):
            print(f"  {name}")


@app.command("lag")
def lag(
    group: Group,
    lite_topic: Annotated[str | None, typer.Argument(metavar="[LITE_TOPIC]", help="Only this lite topic.")] = None,
    top: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            help="How many lite topics to show: those with the most, and those with the oldest messages.",
        ),
    ] = 20,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the lag of a group in its lite topics. It shows the messages not consumed, and since when.

    Messages that a client has got and not yet acknowledged count. A group reads those in which it has an offset, and
    those that a client subscribes to.
    """

    lags = run_with(Admin, namesrv, lambda admin: admin.lite.lag(group, lite_topic, top=top))
    if as_json:
        print_json([_lag_row(broker, info) for broker, info in sorted(lags.items())])
        return
    for broker, info in sorted(lags.items()):
        if info.lag < 0:
            print(f"{broker}: there is no lite topic {lite_topic}")
            continue
        since = f", the oldest of {time_of(info.oldest_ms)}" if info.oldest_ms > 0 else ""
        print(f"{broker}: {info.lag} messages of {info.parent_topic} not consumed by {group}{since}")
        if info.progress is not None:
            print(f"  next offset to consume {info.progress.offset}, next one to be stored {info.progress.end}")
    rows = {
        (broker, each.lite_topic): each
        for broker, info in sorted(lags.items())
        for each in (*(info.longest or []), *(info.oldest or []))
    }
    if rows:
        table = borderless_table("lite topic", "broker", "lag", "oldest", numbers=("lag",))
        for (broker, name), each in sorted(rows.items(), key=lambda row: (-row[1].lag, row[0])):
            table.add_row(name, broker, str(each.lag), time_of(each.oldest_ms) or "-")
        print_table(table)


@app.command("dispatch")
def dispatch(
    group: Group,
    client_id: Annotated[
        str | None, typer.Option("--client", metavar="CLIENT_ID", help="Only this client of the group.")
    ] = None,
    broker: Annotated[str | None, typer.Option("--group", metavar="NAME", help="Only this broker group.")] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Make brokers serve waiting pops now. They search all lite topics to which the clients of a group subscribe.

    Brokers also do so every 15 s: use it only for a client that gets no messages although some are waiting.
    """

    brokers = run_with(Admin, namesrv, lambda admin: admin.lite.dispatch(group, client_id, broker=broker))
    if as_json:
        print_json([{"group": group, "client": client_id, "broker": each} for each in brokers])
        return
    for each in brokers:
        print(f"{each}: looks for messages for {client_id or 'all clients'} of {group}")


def _lag_row(broker: str, info: LiteGroupInfo) -> dict[str, object]:
    rows = {each.lite_topic: each for each in (*(info.longest or []), *(info.oldest or []))}
    return {
        "group": info.group,
        "topic": info.parent_topic,
        "broker": broker,
        "lag": info.lag if info.lag >= 0 else None,
        "oldest": time_of(info.oldest_ms),
        "next_to_consume": None if info.progress is None else info.progress.offset,
        "next_to_store": None if info.progress is None else info.progress.end,
        "lite_topics": [
            {"lite_topic": each.lite_topic, "lag": each.lag, "oldest": time_of(each.oldest_ms)}
            for each in sorted(rows.values(), key=lambda each: (-each.lag, each.lite_topic))
        ],
    }
