"""`raftmq dlq`: lists, shows, requeues, dismisses and exports dead letters.

A dead letter stays in its topic until retention deletes it. The offset of the consumer group `TOOLS_CONSUMER` in that
topic is behind the last dead letter that was dealt with: `requeue` and `dismiss` move it, and `list` begins there.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from mq.cli.client_errors import client_errors
from mq.cli.consumer_groups import Group
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.operators import operator_name
from mq.cli.output import Json, JsonLines, parse_time, print_json
from mq.cli.tables import borderless_table, print_table, visible
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.dead_letter_requeue import origin_topic
from mq.client.message import MessageQueue
from mq.inspection.dead_letters import (
    DEALT_WITH_BY,
    Letter,
    death_reason,
    letter_fields,
    letter_filter,
    queue_name,
    read_letters,
)
from mq.inspection.formatting import time_of
from mq.inspection.message_fields import message_fields
from mq.protocol.names import DEAD_LETTER_PREFIX, dead_letter_topic

app = typer.Typer(help="List, show, requeue, dismiss and export dead letters.", no_args_is_help=True)

COMMIT_EVERY = 32
"""A command that is killed requeues at most this number of dead letters a second time."""
PROGRESS_EVERY = 1000

Everything = Annotated[bool, typer.Option("--all", help="Also list requeued and dismissed dead letters.")]
Since = Annotated[
    dt.datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Given up at this time or later.")
]
Until = Annotated[
    dt.datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Given up at this time or earlier.")
]
Key = Annotated[str | None, typer.Option(help="Only dead letters with this key.", metavar="KEY")]
Failure = Annotated[
    str | None, typer.Option(help="Only dead letters with this text in the reason or the exception.", metavar="TEXT")
]
Topic = Annotated[str | None, typer.Option(help="Only dead letters of this topic.", metavar="TOPIC")]


@app.command("list")
def list_letters(
    group: Annotated[str | None, typer.Argument(metavar="[GROUP]", show_default=False)] = None,
    everything: Everything = False,
    topic: Topic = None,
    key: Key = None,
    failure: Failure = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this number of dead letters.")] = 50,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """List the unresolved dead letters of a group. It lists the oldest first; without a group, the groups that have
    some.
    """
    if group is None:
        _list_groups(as_json, namesrv)
        return
    matches = letter_filter(topic, key, failure, since, until)
    letters: list[Letter] = []
    more = False

    async def main() -> None:
        nonlocal more
        async with _reader(namesrv, group, everything=everything) as consumer:
            async for letter in await consumer.read_to_end():
                if matches(letter):
                    if len(letters) == limit:
                        more = True
                        return
                    letters.append(letter)

    with client_errors():
        run_trio(main)
    if as_json:
        print_json({"group": group, "dead_letters": [letter_fields(letter) for letter in letters], "more": more})
        return
    if not letters:
        print(f"{group} has no dead letters to deal with")
        return
    table = borderless_table(
        "queue", "offset", "given up", "topic", "attempts", "keys", "why", numbers=("offset", "attempts")
    )
    for letter in letters:
        fields = letter_fields(letter)
        cells = (queue_name(letter.queue), str(letter.queue_offset), fields["given_up"] or "-", fields["topic"] or "-")
        table.add_row(*map(str, cells), str(fields["attempts"] or "-"), " ".join(letter.keys), death_reason(letter))
    print_table(table)
    if more:
        print(f"and more; --limit {limit} was reached")


def _list_groups(as_json: bool, namesrv: str) -> None:
    async def main() -> list[dict[str, Any]]:
        rows = []
        async with Admin(namesrv) as admin:
            for topic in sorted(await admin.topics()):
                if not topic.startswith(DEAD_LETTER_PREFIX):
                    continue
                ends = await admin.topic_stats(topic)
                marks = {queue: await admin.group_offset(DEALT_WITH_BY, queue) or 0 for queue in ends}
                kept_count = sum(each.max_offset - each.min_offset for each in ends.values())
                open_count = sum(max(0, each.max_offset - max(marks[q], each.min_offset)) for q, each in ends.items())
                last = time_of(max((each.last_update_ms for each in ends.values()), default=0))
                if kept_count:
                    group = topic.removeprefix(DEAD_LETTER_PREFIX)
                    rows.append({"group": group, "to_deal_with": open_count, "kept": kept_count, "last": last})
        return rows

    with client_errors():
        rows = run_trio(main)
    if as_json:
        print_json(rows)
    elif not rows:
        print("there are no dead letters")
    else:
        table = borderless_table("group", "to deal with", "kept", "last", numbers=("to deal with", "kept"))
        for row in rows:
            table.add_row(row["group"], f"{row['to_deal_with']:,}", f"{row['kept']:,}", row["last"] or "-")
        print_table(table)


@app.command("show")
def show(
    group: Group,
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET")],
    queue: Annotated[
        str | None, typer.Option(help="Its queue, as list shows it; needed if several have dead letters.")
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show one dead letter with its properties and body. Exit code 1 if there is none."""

    async def main() -> Letter | None:
        async with _reader(namesrv, group, everything=True) as consumer:
            [queue_to_read] = _queues_named(consumer.assignment, queue)
            await consumer.assign([queue_to_read])
            await consumer.seek(queue_to_read, offset)
            async for letter in await consumer.read_to_end():
                return letter if letter.queue_offset == offset else None
        return None

    with client_errors():
        letter = run_trio(main)
    if letter is None:
        raise CommandFailed(f"{group} has no dead letter at offset {offset}", EXIT_FAILED)
    if as_json:
        print_json(letter_fields(letter) | message_fields(letter) | {"topic": origin_topic(letter)})
        return
    for name, value in ({"message_id": letter.message_id} | letter_fields(letter)).items():
        if value not in (None, []):
            print(
                f"{name.replace('_', ' '):>12}  {visible(' '.join(value) if isinstance(value, list) else str(value))}"
            )
    for name, value in sorted(letter.user_properties.items()):
        print(f"{'property':>12}  {visible(f'{name}={value}')}")
    print(f"{'body':>12}  {len(letter.body):,} bytes\n")
    print(visible(letter.body.decode("utf-8", "backslashreplace")))


@app.command("requeue")
def requeue(
    group: Group,
    offsets: Annotated[
        list[int] | None, typer.Option("--offset", min=0, help="Only the dead letter at this offset; may be repeated.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only dead letters of this queue, as list shows it.")] = None,
    topic: Topic = None,
    key: Key = None,
    failure: Failure = None,
    since: Since = None,
    until: Until = None,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="Send them to their topic: all groups get them, not only this one.")
    ] = False,
    everything: Everything = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Send dead letters to their group again. It begins with the oldest.

    Each begins with no attempts. Without options that choose some, it requeues all unresolved ones, and the next
    run begins behind them; chosen ones stay in the list. A run that was killed may send the last ones a second time.
    Exit code 1 if one could not be sent, it stops there; or if there is none at an --offset.
    """
    is_all = not (offsets or queue or topic or key or failure or since or until or everything)
    matches = letter_filter(topic, key, failure, since, until)
    operator = operator_name()
    offsets_after: dict[MessageQueue, int] = {}
    missing_offsets = set(offsets or ())
    total = 0

    async def main() -> None:
        nonlocal total
        from_first = everything or bool(offsets)
        async with _reader(namesrv, group, everything=from_first) as consumer, Admin(namesrv) as admin:
            if queue is not None:
                await consumer.assign(_queues_named(consumer.assignment, queue))
                if from_first:
                    for each in consumer.assignment:
                        await consumer.seek(each, "first")
            try:
                async for letter in await consumer.read_to_end():
                    missing_offsets.discard(letter.queue_offset)
                    if matches(letter) and (not offsets or letter.queue_offset in offsets):
                        await admin.requeue_dead_letter(group, letter, operator=operator, to_topic=to_topic)
                        total += 1
                        if total % PROGRESS_EVERY == 0:
                            print(f"requeued {total:,}", file=sys.stderr)
                    offsets_after[letter.queue] = letter.queue_offset + 1
                    if is_all and total % COMMIT_EVERY == 0:
                        await consumer.commit(offsets_after)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                    if is_all and offsets_after:
                        await consumer.commit(offsets_after)

    try:
        with client_errors():
            run_trio(main)
    except CommandFailed as error:
        before = f"; requeued {total:,} before that" if total else ""
        raise CommandFailed(f"{error}{before}", error.exit_code) from error
    if missing_offsets:
        where = ", ".join(map(str, sorted(missing_offsets)))
        raise CommandFailed(f"{group} has no dead letter at offset {where}; requeued {total:,} others", EXIT_FAILED)
    if as_json:
        print_json({"group": group, "requeued": total, "to_topic": to_topic, "operator": operator})
    else:
        where = "to their topics" if to_topic else f"to {group}"
        print(f"requeued {_count(total)} {where}")


@app.command("dismiss")
def dismiss(
    group: Group,
    until: Until = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Remove dead letters from the list. It dismisses all of a group, or those until a time; they stay in their topic.

    `raftmq dlq list --all` shows them as long as retention keeps them.
    """
    count = 0

    async def main() -> None:
        nonlocal count
        matches = letter_filter(None, None, None, None, until)
        offsets_after: dict[MessageQueue, int] = {}
        async with _reader(namesrv, group, everything=False) as consumer:
            stopped_queues: set[MessageQueue] = set()
            async for letter in await consumer.read_to_end():
                if letter.queue not in stopped_queues and matches(letter):
                    offsets_after[letter.queue] = letter.queue_offset + 1
                    count += 1
                else:
                    stopped_queues.add(letter.queue)
            await consumer.commit(offsets_after)

    with client_errors():
        run_trio(main)
    if as_json:
        print_json({"group": group, "dismissed": count})
    else:
        print(f"dismissed {_count(count)} of {group}; they stay in {dead_letter_topic(group)}")


@app.command("export")
def export(
    group: Group,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", show_default=False)] = None,
    everything: Everything = False,
    topic: Topic = None,
    key: Key = None,
    failure: Failure = None,
    since: Since = None,
    until: Until = None,
    as_json: JsonLines = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Write dead letters as JSON. It writes one per line, to a file or to standard output."""
    del as_json  # it writes nothing else
    matches = letter_filter(topic, key, failure, since, until)
    count = 0

    async def main() -> None:
        nonlocal count
        async with _reader(namesrv, group, everything=everything) as consumer:
            try:
                output = sys.stdout if file is None else file.open("x", encoding="utf-8")
            except OSError as error:
                raise CommandFailed(f"{file}: {error.strerror}") from error
            try:
                async for letter in await consumer.read_to_end():
                    if matches(letter):
                        output.write(json.dumps(letter_fields(letter) | message_fields(letter)) + "\n")
                        count += 1
            finally:
                output.flush()
                if file is not None:
                    output.close()

    with client_errors():
        run_trio(main)
    if file is not None:
        print(f"wrote {_count(count)} of {group} to {file}", file=sys.stderr)


@asynccontextmanager
async def _reader(namesrv: str, group: str, *, everything: bool) -> AsyncGenerator[PullConsumer]:
    """Works like `read_letters`. Raises CommandFailed if there is no such group."""
    async with read_letters(namesrv, group, everything=everything) as consumer:
        if not consumer.assignment:
            async with Admin(namesrv) as admin:
                if group not in await admin.consumer_groups():
                    raise CommandFailed(f"there is no consumer group {group}", EXIT_FAILED)
        yield consumer


def _queues_named(queues: frozenset[MessageQueue], name: str | None) -> list[MessageQueue]:
    """The queue with this name, or the only one. Raises CommandFailed."""
    names = {queue_name(queue): queue for queue in sorted(queues)}
    if name is None and len(names) == 1:
        return list(names.values())
    if not names:
        raise CommandFailed("the group has no dead letters", EXIT_FAILED)
    if name not in names:
        what = "several queues have dead letters, pass --queue" if name is None else f"there is no queue {name}"
        raise CommandFailed(f"{what}: {', '.join(names)}", EXIT_FAILED)
    return [names[name]]


def _count(count: int) -> str:
    return f"{count:,} dead letter{'s' if count != 1 else ''}"
