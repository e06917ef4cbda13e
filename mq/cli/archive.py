"""`raftmq archive`: lists, prints and verifies archived messages, without brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from mq.cli.backup import EndpointUrl, Pace, open_store
from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, JsonLines, parse_time, print_json, print_json_array
from mq.cli.tables import borderless_table, print_table
from mq.inspection.formatting import time_of

if TYPE_CHECKING:
    from mq.protocol.messages.records import StoredMessage
    from mq.store.archive.reader import ArchivedFile, ArchiveReader

app = typer.Typer(help="List, print and verify archived messages, without brokers.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="The archive, s3://BUCKET/PREFIX, or a backup there.")]


@app.command("ls")
def ls(
    url: Url,
    topics: Annotated[bool, typer.Option("--topics", help="Show queues and their messages instead of files.")] = False,
    as_json: Json = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List the files of an archive. With --topics, it lists the queues that have messages in it.

    It reads indexes only, and files that have none. Exit code 1: an object is damaged. 2: there is no archive.
    """
    with _open_archive(url, endpoint_url) as archive:
        rows = _queues(archive) if topics else [_file_row(file) for file in archive.files()]
        numbers = (
            ("queue", "first_offset", "end_offset", "messages") if topics else ("first_index", "last_index", "bytes")
        )
        if as_json:
            print_json_array(rows)
            return
        manifest = archive.manifest
        title = (
            f"{url}: entries {manifest.base.index + 1:,} to {manifest.last.index:,} of {manifest.cluster_id}, "
            f"{decimal(manifest.end_pos - manifest.base.pos)}; {manifest.archived.index:,} archived"
        )
        if not rows:
            print(f"{title}; no messages")
            return
        headings = [name.replace("_", " ") for name in rows[0]]
        table = borderless_table(*headings, numbers=tuple(name.replace("_", " ") for name in numbers), title=title)
        for row in rows:
            table.add_row(
                *("-" if each is None else f"{each:,}" if isinstance(each, int) else str(each) for each in row.values())
            )
        print_table(table)


@app.command("cat")
def cat(
    url: Url,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    queue: Annotated[int | None, typer.Option(min=0, help="Only this queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Only messages from this offset on.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only messages with this tag.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only messages stored at this time or later.", metavar="TIME")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only messages stored at this time or before.", metavar="TIME")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this number of messages.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print store time, queue, offset, tag and keys before each body.")
    ] = False,
    as_json: JsonLines = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print archived messages of a topic. It prints one per line in the order of the log, also those of a deleted
    topic.

    It prints no message before its entry, and the chain of all entries of its block, are verified. Exit code 1: an
    object is damaged; messages before it are printed. 2: there is no archive, or no message of the topic in it.
    """
    from mq.cli.produce_consume import print_bytes
    from mq.protocol.hashes import tag_code
    from mq.protocol.numbers import QueueOffset
    from mq.protocol.properties import TAGS
    from mq.store.archive.reader import MessageQuery

    query = MessageQuery(
        topic=topic,
        queue_id=queue,
        first_offset=None if offset is None else QueueOffset(offset),
        tag_code=None if tag is None else tag_code(tag),
        since_ms=None if since is None else round(parse_time(since).timestamp() * 1000),
        until_ms=None if until is None else round(parse_time(until).timestamp() * 1000),
    )
    rest, is_found = count, False
    with _open_archive(url, endpoint_url) as archive:
        for message in archive.messages(query):
            if tag is not None and message.properties.get(TAGS) != tag:
                continue  # another tag with the same code
            is_found = True
            print_bytes(_line(message, archive.manifest.cluster_id, verbose=verbose, as_json=as_json))
            rest = None if rest is None else rest - 1
            if rest == 0:
                break
        if not is_found and not any(each.topic == topic for each in archive.queue_ranges()):
            raise CommandFailed(f"{url} has no message of topic {topic!r}; raftmq archive ls {url} --topics lists all")


@app.command("verify")
def verify(url: Url, as_json: Json = False, endpoint_url: EndpointUrl = None) -> None:
    """Check every entry of the archive. It reads all of it, and compares each index with its file.

    Exit code 0: it is intact. 1: it is damaged. 2: there is none.
    """
    pace = Pace(0, "verified")
    with _open_archive(url, endpoint_url) as archive:
        indexes = archive.verify(pace.on_copy)
        manifest = archive.manifest
        if as_json:
            print_json(
                {
                    "url": url,
                    "cluster_id": manifest.cluster_id,
                    "first_index": manifest.base.index + 1,
                    "last_index": manifest.last.index,
                    "archived_index": manifest.archived.index,
                    "verified_bytes": pace.nbytes,
                    "indexes": indexes,
                    "intact": True,
                }
            )
            return
        print(
            f"{url}: intact; entries {manifest.base.index + 1:,} to {manifest.last.index:,}, "
            f"{decimal(manifest.end_pos - manifest.base.pos)}, {indexes:,} indexes"
        )


@contextmanager
def _open_archive(url: str, endpoint_url: str | None) -> Iterator[ArchiveReader]:
    """The archive; errors of the block and of opening it become exit codes."""
    from mq.store.archive.reader import ArchiveReader
    from raftlog import SegmentError
    from raftlog.segment.backup_store import BackupDamaged
    from raftlog.segment.disk import ReadOnlyDisk

    store = open_store(url, endpoint_url, ReadOnlyDisk())
    try:
        archive = ArchiveReader(store)
        try:
            yield archive
        finally:
            archive.close()
    except BackupDamaged as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    except SegmentError as error:
        raise CommandFailed(str(error)) from error


def _file_row(file: ArchivedFile) -> dict[str, object]:
    index = file.index
    newest_ms = 0 if index is None else max(block.newest_ms for block in index.blocks)
    return {
        "object": file.stored.name,
        "first_index": file.begin.index + 1,
        "last_index": file.last_index,
        "bytes": file.stored.nbytes,
        "newest_message": time_of(newest_ms) if newest_ms else None,
        "read_back": "yes" if file.stored.verified else "no",
        "indexed": "no" if index is None else "yes",
    }


def _queues(archive: ArchiveReader) -> list[dict[str, object]]:
    """Queues by name and id; a topic that was created again with its first offsets has several rows."""
    ranges_by_queue: dict[tuple[str, int], list[list[int]]] = {}
    for queue in archive.queue_ranges():
        ranges = ranges_by_queue.setdefault((queue.topic, queue.queue_id), [])
        if not ranges or ranges[-1][1] != queue.first_offset:
            ranges.append([queue.first_offset, queue.first_offset])
        ranges[-1][1] = queue.end_offset
    return [
        {"topic": topic, "queue": queue_id, "first_offset": first, "end_offset": end, "messages": end - first}
        for (topic, queue_id), ranges in sorted(ranges_by_queue.items())
        for first, end in ranges
    ]


def _line(message: StoredMessage, cluster_id: str, *, verbose: bool, as_json: bool) -> bytes:
    from mq.cli.tail import line_of
    from mq.client.message import MessageQueue, ReceivedMessage
    from mq.client.net.replies import INFLATED_BYTES_MAX
    from mq.protocol.messages.compression import CodecMissing, DecompressionError, inflate

    body = message.body
    with suppress(DecompressionError, CodecMissing):
        body = inflate(message.sys_flag, body, INFLATED_BYTES_MAX)
    received_message: ReceivedMessage[bytes] = ReceivedMessage(
        message, MessageQueue(message.topic, cluster_id, message.queue_id), body
    )
    return line_of(received_message, verbose=verbose, as_json=as_json)
