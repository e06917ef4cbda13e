"""`raftmq message`: look single messages up, by id, by key, and by the time at which they were stored."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Annotated

import typer

from mq.cli.cluster_view import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.message import ReceivedMessage

app = typer.Typer(help="Look single messages up.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For programs: one object a line.")]
Since = Annotated[dt.datetime | None, typer.Option(help="Stored at this local time or later.")]
Until = Annotated[dt.datetime | None, typer.Option(help="Stored at this local time or earlier.")]
_BODY_BYTES_MAX = 200


@app.command("by-id")
def by_id(offset_message_id: str, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show the record with an offset message id, which `send` returns. Exit code 1 if there is none.

    With a message id, which stays the same from copy to copy: `raftmq message by-key --unique TOPIC ID`.
    """

    async def main() -> list[ReceivedMessage]:
        async with Admin(namesrv) as admin:
            found = await admin.message_by_id(offset_message_id)
            return [] if found is None else [found]

    with client_errors():
        _show(run_trio(main), as_json)


@app.command("by-key")
def by_key(
    topic: str,
    key: str,
    count: Annotated[int, typer.Option(min=1, max=64, help="At most so many, the newest, of each broker group.")] = 32,
    since: Since = None,
    until: Until = None,
    unique: Annotated[bool, typer.Option("--unique", help="The key is a message id.")] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show messages with a key, the oldest first. Exit code 1 if there are none."""

    async def main() -> list[ReceivedMessage]:
        async with Admin(namesrv) as admin:
            return await admin.messages_by_key(
                topic, key, count_max=count, begin=_local(since), end=_local(until), unique=unique
            )

    with client_errors():
        _show(run_trio(main), as_json)


@app.command("by-time")
def by_time(topic: str, time: dt.datetime, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show for each queue the offset of its first message that was stored at a local time or later."""

    async def main() -> list[tuple[str, int, int]]:
        async with Admin(namesrv) as admin:
            queues = sorted((await admin.route(topic)).read_queues)
            return [(each.broker_name, each.queue_id, await admin.offset(each, time.astimezone())) for each in queues]

    with client_errors():
        found = run_trio(main)
    for broker, queue_id, offset in found:
        if as_json:
            print(json.dumps({"broker": broker, "queueId": queue_id, "offset": offset}))
        else:
            print(f"{broker}/{queue_id}: {offset}")


def _local(time: dt.datetime | None) -> dt.datetime | None:
    return None if time is None else time.astimezone()


def _show(messages: Sequence[ReceivedMessage], as_json: bool) -> None:
    if not messages:
        raise CommandFailed("no such message", EXIT_FAILED)
    for message in messages:
        fields = _fields(message)
        if as_json:
            print(json.dumps(fields | {"body": message.body.decode("utf-8", "replace")}))
            continue
        for name, value in fields.items():
            print(f"{name:>16}  {value}")
        text = message.body[:_BODY_BYTES_MAX].decode("utf-8", "replace")
        print(f"{'body':>16}  {text!r}{'...' if len(message.body) > _BODY_BYTES_MAX else ''}\n")


def _fields(message: ReceivedMessage) -> dict[str, object]:
    record = message.record
    stored = dt.datetime.fromtimestamp(record.store_timestamp_ms / 1000, dt.UTC).astimezone()
    return {
        "messageId": message.message_id,
        "offsetMessageId": record.offset_message_id,
        "topic": record.topic,
        "queue": f"{message.queue.broker_name}/{message.queue.queue_id}",
        "offset": record.queue_offset,
        "stored": stored.isoformat(timespec="milliseconds"),
        "bornHost": f"{record.born_host.ip}:{record.born_host.port}",
        "reconsumeTimes": record.reconsume_times,
        "properties": dict(record.properties),
    }
