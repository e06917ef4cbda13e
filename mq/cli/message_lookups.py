"""`raftmq message`: finds single messages by id, by key, or by store time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated

import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, parse_time, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import visible
from mq.cli.topics import NAMESRV, Namesrv, Topic
from mq.client.admin import Admin
from mq.client.message import ReceivedMessage
from mq.inspection.message_fields import message_fields

app = typer.Typer(help="Look up single messages.", no_args_is_help=True)

Since = Annotated[dt.datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Earliest store time.")]
Until = Annotated[dt.datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Latest store time.")]
Time = Annotated[
    dt.datetime,
    typer.Argument(parser=parse_time, metavar="TIME", help="2026-03-01T09:30 is local, 2026-03-01T09:30Z is UTC."),
]
_BODY_BYTES_MAX = 200
_OTHERWISE = ("tag", "keys", "properties", "body", "body_base64")
"""Shown among the properties, or in another form."""


@app.command("by-id")
def by_id(
    offset_message_id: Annotated[str, typer.Argument(metavar="OFFSET_MESSAGE_ID")],
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the record with an offset message id, which `send` returns. Exit code 1 if there is none.

    With a message id, which stays the same from copy to copy: `raftmq message by-key --unique TOPIC ID`.
    """

    async def main(admin: Admin) -> list[ReceivedMessage]:
        message = await admin.message_by_id(offset_message_id)
        return [] if message is None else [message]

    _show(run_with(Admin, namesrv, main), as_json)


@app.command("by-key")
def by_key(
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    count: Annotated[
        int, typer.Option(min=1, max=64, help="Maximum number of messages per broker group, the newest first.")
    ] = 32,
    since: Since = None,
    until: Until = None,
    unique: Annotated[bool, typer.Option("--unique", help="The key is a message id.")] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show messages with a key, the oldest first. Exit code 1 if there are none."""

    async def main(admin: Admin) -> list[ReceivedMessage]:
        return await admin.messages_by_key(topic, key, count_max=count, begin=since, end=until, unique=unique)

    _show(run_with(Admin, namesrv, main), as_json)


@app.command("by-time")
def by_time(topic: Topic, time: Time, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show for each queue the offset of its first message stored at or after a time."""

    async def main(admin: Admin) -> list[tuple[str, int, int]]:
        queues = sorted((await admin.route(topic)).read_queues)
        return [(each.broker_name, each.queue_id, await admin.offset(each, time)) for each in queues]

    offsets = run_with(Admin, namesrv, main)
    if as_json:
        print_json([{"broker": broker, "queue": queue_id, "offset": offset} for broker, queue_id, offset in offsets])
        return
    for broker, queue_id, offset in offsets:
        print(f"{broker}/{queue_id}: {offset}")


def _show(messages: Sequence[ReceivedMessage], as_json: bool) -> None:
    if not messages:
        raise CommandFailed("no message matches", EXIT_FAILED)
    if as_json:
        print_json([message_fields(each) for each in messages])
        return
    for message in messages:
        for name, value in message_fields(message).items():
            if name not in _OTHERWISE:
                print(f"{name:>17}  {value}")
        for name, value in sorted(message.properties.items()):
            print(f"{'property':>17}  {visible(f'{name}={value}')}")
        text = visible(message.body[:_BODY_BYTES_MAX].decode("utf-8", "backslashreplace"))
        print(f"{'body':>17}  {text}{'...' if len(message.body) > _BODY_BYTES_MAX else ''}\n")
